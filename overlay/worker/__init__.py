"""The service: it owns shards, reads sources, and commits output and positions together."""
