"""Inspection of a Kafka cluster: a first config from samples of topics, and a config's needs.

sample → formats, column → proposal → draft is pure. So are needs, answers → verdict. reading and
cluster talk to Kafka; folder writes to the disk; schema_registry asks a registry, and writes too.
"""
