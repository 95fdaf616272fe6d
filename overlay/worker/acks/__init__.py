"""Acks and redelivery of a session: the dispatch loop does the IO of the dispatcher; see
dispatch_loop.py."""
