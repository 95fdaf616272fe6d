"""The control topic: consumers that are made, changed and asked about by request and reply, without a file."""
