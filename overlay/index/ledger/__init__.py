"""The ledger of a stream with several partitions: which sequence each offset has. Pure."""
