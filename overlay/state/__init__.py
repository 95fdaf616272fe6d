"""The state topic: what a shard remembers, how a worker becomes its owner, and changes that an
operator orders."""
