"""`client.read`: records of a stream as Arrow batches, without the service."""
