"""Inputs that strangers may write, for each surface of the overlay: nothing is raised but what is declared, and the cost of
each byte is bounded."""
