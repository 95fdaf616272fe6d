"""Chunk headers, and which chunks of a log a reader can skip. Pure."""
