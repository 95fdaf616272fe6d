"""Kafka as the overlay speaks to it: settings, questions to brokers, fetches, and positions in logs."""
