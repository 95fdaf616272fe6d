"""The dispatcher and its parts, between the machines of consumers and Kafka.

Acks and requests are decoded into events, effects are encoded into batches. See dispatcher.py.
"""
