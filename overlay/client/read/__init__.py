"""`client.read`: records of a stream or topic as Arrow batches, without the service."""
