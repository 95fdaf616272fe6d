"""Output topics: record batches for them, produce requests, and transactions."""
