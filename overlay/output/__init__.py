"""Output topics: the record batches for them, produce requests, and transactions."""
