"""Kafka settings for Java's clients, which Spark uses; overlay/kafka/connection.py has those of the
other clients.

Certificates are read here and passed in the settings, because executors do not have these files.
Java has no switch for trusting any certificate, so a config that asks for it is refused.
"""

from __future__ import annotations

from pathlib import Path

from overlay.credentials import Secret, resolve
from overlay.errors import OverlayError
from overlay.kafka.properties import OAUTHBEARER, Properties

_LOGIN = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}

# by default the producer sends a record as soon as it can: small requests, which cost more than
# their records
_FULL_BATCHES = {"linger.ms": "50", "batch.size": str(1 << 18), "compression.type": "lz4"}


def for_java(kafka: Properties) -> dict[str, str]:
    """Return the settings of Java's clients that stand for Kafka settings by librdkafka's names: the servers,
    client.id, and what TLS and SASL need. Certificates and keys are the contents of their files, references to
    secrets are resolved, and the login and the private key are of type Secret.

    Raises OverlayError for what Java cannot do, or a file or a secret that cannot be read.
    """
    kafka = resolve(kafka)
    if kafka.get("enable.ssl.certificate.verification", "true").lower() == "false":
        raise OverlayError(
            "enable.ssl.certificate.verification: false has no counterpart in Java, and Spark could not connect."
            " Name the CA in ssl.ca.location instead"
        )
    settings = {"bootstrap.servers": kafka["bootstrap.servers"]}
    protocol = kafka.get("security.protocol", "PLAINTEXT").upper()
    if protocol != "PLAINTEXT":
        settings["security.protocol"] = protocol
    if "client.id" in kafka:
        settings["client.id"] = kafka["client.id"]
    if protocol.endswith("SSL"):
        settings |= _encrypt(kafka)
    if protocol.startswith("SASL"):
        settings |= _log_in(kafka)
    return settings


def for_spark(kafka: Properties) -> dict[str, str]:
    """Return the settings of `for_java` as options of Spark's Kafka source and sink, each with `kafka.`
    before its name. Raises as `for_java` does.
    """
    return {f"kafka.{name}": value for name, value in for_java(kafka).items()}


def for_sink(kafka: Properties) -> dict[str, str]:
    """Return options of Spark's Kafka sink for tasks that write much: full batches, compressed by LZ4 as the service
    does by default.

    A task ends with a flush, so linger.ms never delays its end.
    """
    return for_spark(kafka) | {f"kafka.{name}": value for name, value in _FULL_BATCHES.items()}


def _encrypt(kafka: Properties) -> dict[str, str]:
    settings: dict[str, str] = {}
    if "ssl.ca.location" in kafka:
        settings |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": _read(kafka, "ssl.ca.location")}
    if "ssl.certificate.location" in kafka:
        settings |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": _read(kafka, "ssl.certificate.location"),
            "ssl.keystore.key": Secret(_read(kafka, "ssl.key.location")),
        }
        if "ssl.key.password" in kafka:
            settings["ssl.key.password"] = kafka["ssl.key.password"]
    if kafka.get("ssl.endpoint.identification.algorithm", "https") in ("none", ""):
        settings["ssl.endpoint.identification.algorithm"] = ""
    return settings


def _log_in(kafka: Properties) -> dict[str, str]:
    mechanism = kafka.get("sasl.mechanism") or kafka.get("sasl.mechanisms") or "PLAIN"
    if mechanism == OAUTHBEARER:
        raise OverlayError(
            "sasl.mechanism: Java takes tokens only from endpoints that a property of the virtual machine names, which has to"
            ' be set on the driver and on each executor. Read with format("overlay"), which asks for tokens by itself, or give'
            " Spark's user a SCRAM mechanism or a client certificate"
        )
    user, password = (_quote(kafka[name]) for name in ("sasl.username", "sasl.password"))
    login = f"{_LOGIN[mechanism]} required username={user} password={password};"
    return {"sasl.mechanism": mechanism, "sasl.jaas.config": Secret(login)}


def _quote(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _read(kafka: Properties, name: str) -> str:
    try:
        return Path(kafka[name]).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise OverlayError(f"{name}: {kafka[name]} cannot be read: {error}") from error
