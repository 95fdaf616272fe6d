"""Filters over single messages and over column batches: SQL and property filter expressions."""
