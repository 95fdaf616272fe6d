"""The ledger: stream sequences for the records of several partitions. Pure."""
