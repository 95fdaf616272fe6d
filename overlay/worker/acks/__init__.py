"""Acks and redelivery in a session: the clerk keeps the desk at work; see clerk.py."""
