"""Subjects, filters and per-message acks on the Kafka you already have."""

__version__ = "0.1.0"
