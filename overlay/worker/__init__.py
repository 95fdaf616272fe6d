"""The service: owns shards, reads source topics, and commits output and positions in one
transaction."""
