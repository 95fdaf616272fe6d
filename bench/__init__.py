"""Measurements of the overlay beside what a user would pick instead: `python -m bench NAME`."""
