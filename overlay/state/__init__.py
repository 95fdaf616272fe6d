"""The state topic: what a shard remembers, becoming its owner, and changes that an operator orders."""
