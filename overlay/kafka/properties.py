"""Kafka settings of the overlay: one section in librdkafka's names, for each client library. No
client is loaded here.
"""

from __future__ import annotations

from collections.abc import Mapping

from overlay.credentials import CERTIFICATES, resolve

Properties = Mapping[str, str]

DEADLINE_S = 10.0
OAUTHBEARER = "OAUTHBEARER"
"""The mechanism that needs tokens of a token endpoint."""
# By default librdkafka waits up to 10 s between two tries, and would find a broker that is back
# that much later.
_RECONNECT_MS = "500"


def for_confluent(kafka: Properties) -> dict[str, str]:
    """Return settings for confluent-kafka's clients, which take librdkafka's names. They have secrets in them.

    librdkafka gets tokens of OAUTHBEARER itself. Raises SourceUnavailable while a secret cannot be read.
    """
    oauth = {"sasl.oauthbearer.method": "oidc"} if kafka.get("sasl.mechanism") == OAUTHBEARER else {}
    return {"reconnect.backoff.max.ms": _RECONNECT_MS, **oauth, **resolve(kafka)}


def name_files(kafka: Properties) -> str:
    """Return setting and path of each file with certificates or a key that the settings name, as a prefix of a
    message; empty if there is none. Neither library says which file it could not read.
    """
    return "".join(f"{name} {kafka[name]}: " for name in CERTIFICATES if name in kafka)


def list_servers(kafka: Properties) -> list[str]:
    """Return the bootstrap addresses of the settings, each as host:port."""
    return [server.strip() for server in kafka["bootstrap.servers"].split(",")]
