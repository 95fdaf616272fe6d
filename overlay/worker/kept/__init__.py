"""What a shard keeps of streams besides their consumers: chunk indexes and ledgers."""
