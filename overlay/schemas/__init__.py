"""Schemas of values that a schema registry has: how it is asked, and how readers wait for its answers."""
