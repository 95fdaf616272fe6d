"""Requests to the control topic, and their answers."""
