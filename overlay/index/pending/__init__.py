"""How many records lie ahead of a consumer, and the last record of each subject, by chunk headers. Pure."""
