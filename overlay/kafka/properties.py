"""Kafka settings of the overlay: one section in librdkafka's names, for each client library. No
client is loaded here.
"""

from __future__ import annotations

from collections.abc import Mapping

Properties = Mapping[str, str]

DEADLINE_S = 10.0
_FILES = ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location")
# By default librdkafka waits up to 10 s between two tries, and would find a broker that is back
# that much later.
_RECONNECT_MS = "500"


def for_confluent(kafka: Properties) -> dict[str, str]:
    """Return settings for confluent-kafka's clients, which take librdkafka's names."""
    return {"reconnect.backoff.max.ms": _RECONNECT_MS, **kafka}


def name_files(kafka: Properties) -> str:
    """Return the names of the certificate files as a prefix of a message: neither library says
    which file it could not read.
    """
    return "".join(f"{name} {kafka[name]}: " for name in _FILES if name in kafka)


def list_servers(kafka: Properties) -> list[str]:
    """Return the bootstrap addresses of the settings, each as host:port."""
    return [server.strip() for server in kafka["bootstrap.servers"].split(",")]
