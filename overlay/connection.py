"""One section of Kafka settings for every client in use: librdkafka's names, and what aiokafka calls the same things."""

from __future__ import annotations

import ssl
import time
from collections.abc import Mapping
from typing import Any

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaConnectionError, KafkaError
from confluent_kafka import KafkaError as RdKafkaError
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from overlay.errors import CredentialsRefused, SourceUnavailable

Properties = Mapping[str, str]

_REFUSALS = (
    RdKafkaError._AUTHENTICATION,
    RdKafkaError._SSL,
    RdKafkaError.SASL_AUTHENTICATION_FAILED,
    RdKafkaError.CLUSTER_AUTHORIZATION_FAILED,
)
_FILES = ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location")
DEADLINE_S = 10.0
# by itself librdkafka comes to wait 10 s between two tries, so that a broker that is back would be found that much later
_RECONNECT_MS = "500"


def for_confluent(kafka: Properties) -> dict[str, str]:
    """Settings for confluent-kafka's clients: they are librdkafka's own already."""
    return {"reconnect.backoff.max.ms": _RECONNECT_MS, **kafka}


def make_admin_client(kafka: Properties, **more: Any) -> AdminClient:
    """A client that says nothing by itself; `more`: beside its settings. Raises CredentialsRefused for settings that it cannot
    use: a certificate that is not there, or is none."""
    try:
        return AdminClient({**for_confluent(kafka), "log_level": "0", **more})
    except KafkaException as error:
        raise CredentialsRefused(
            f"{_name_files(kafka)}the Kafka settings cannot be used: {error.args[0].str()}. Check ssl.* of the Kafka settings"
        ) from error


def _name_files(kafka: Properties) -> str:
    """The files of the settings: neither client says which of them it could not read."""
    return "".join(f"{name} {kafka[name]}: " for name in _FILES if name in kafka)


def for_aiokafka(kafka: Properties) -> dict[str, Any]:
    """Keyword arguments for aiokafka's clients. Raises SourceUnavailable while certificates cannot be read: at the start they
    could be (check_reachable), so somebody is about to replace them."""
    protocol = kafka.get("security.protocol", "PLAINTEXT").upper()
    arguments: dict[str, Any] = {
        "bootstrap_servers": [server.strip() for server in kafka["bootstrap.servers"].split(",")],
        "client_id": kafka.get("client.id", "kafka-overlay"),
        "security_protocol": protocol,
    }
    if protocol.endswith("SSL"):
        try:
            arguments["ssl_context"] = make_ssl_context(kafka)
        except OSError as error:  # what ssl raises is one as well
            raise SourceUnavailable(f"{_name_files(kafka)}certificates cannot be read: {error}") from error
    if protocol.startswith("SASL"):
        arguments["sasl_mechanism"] = kafka.get("sasl.mechanism", "PLAIN")
        arguments["sasl_plain_username"] = kafka["sasl.username"]
        arguments["sasl_plain_password"] = kafka["sasl.password"]
    return arguments


def make_ssl_context(kafka: Properties) -> ssl.SSLContext:
    """The TLS side of the settings, for aiokafka."""
    context = ssl.create_default_context(cafile=kafka.get("ssl.ca.location"))
    # from Python 3.13 on by default: it refuses many a company's own CA, which librdkafka and Java take
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if "ssl.certificate.location" in kafka:
        context.load_cert_chain(
            kafka["ssl.certificate.location"], kafka.get("ssl.key.location"), kafka.get("ssl.key.password")
        )
    if kafka.get("ssl.endpoint.identification.algorithm", "https") in ("none", ""):
        context.check_hostname = False
    if kafka.get("enable.ssl.certificate.verification", "true").lower() == "false":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def check_reachable(kafka: Properties, deadline_s: float = DEADLINE_S) -> None:
    """Ask Kafka for its metadata. Raises CredentialsRefused or SourceUnavailable, each with the address and the reason.

    This goes through librdkafka, whose errors tell a refused password from a closed port.
    """
    seen: list[RdKafkaError] = []
    client = make_admin_client(kafka, error_cb=seen.append)
    address = kafka["bootstrap.servers"]
    until = time.monotonic() + deadline_s
    while True:
        try:
            # in short steps, since a refusal is known long before the deadline
            client.list_topics(timeout=min(1.0, deadline_s))
            return
        except KafkaException as error:
            client.poll(0)
            refused = [e for e in seen if e.code() in _REFUSALS]
            if refused:
                raise CredentialsRefused(
                    f"{address}: Kafka refused the connection: {refused[-1].str()}. Check security.protocol, ssl.* and"
                    " sasl.* of the Kafka settings"
                ) from error
            if time.monotonic() >= until:
                cause = seen[-1].str() if seen else error.args[0].str()
                raise SourceUnavailable(f"{address}: Kafka cannot be reached: {cause}") from error


async def open_client(kafka: Properties, **more: Any) -> AIOKafkaClient:
    """A connected aiokafka client. Raises SourceUnavailable."""
    client = AIOKafkaClient(**{**for_aiokafka(kafka), "metadata_max_age_ms": 5_000, **more})
    try:
        await client.bootstrap()
    except (TimeoutError, KafkaConnectionError, KafkaError) as error:
        await client.close()
        raise SourceUnavailable(f"{kafka['bootstrap.servers']}: Kafka cannot be reached: {error}") from error
    return client
