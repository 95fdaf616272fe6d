"""Reading positions: which consumers read a partition together, where they are, and in which order
partitions are read. Pure."""
