"""`client.subscribe` and ordered consumers: messages of output topics, and their acks."""
