"""Acks and redelivery in a session: the clerk keeps the desk at work; see dispatch_loop.py."""
