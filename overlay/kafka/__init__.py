"""Kafka access for the overlay: client settings, admin requests, raw fetches, and positions in
logs.
"""
