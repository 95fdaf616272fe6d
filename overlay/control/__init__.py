"""The control topic: consumers that are created, changed and looked up by request and reply,
without a file."""
