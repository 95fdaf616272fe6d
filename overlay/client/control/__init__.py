"""Requests on the control topic, and their answers."""
