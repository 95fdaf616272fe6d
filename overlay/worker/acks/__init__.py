"""Acks and redelivery in a session: the dispatch loop keeps the dispatcher at work; see dispatch_loop.py."""
