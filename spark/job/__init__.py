"""Consumers of a stream as one Spark job, exactly once. See job.py."""
