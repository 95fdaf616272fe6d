"""One section of Kafka settings for every client in use: librdkafka's names, and what aiokafka calls the same things."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import Any

from aiokafka import client as aiokafka_client
from aiokafka.client import AIOKafkaClient
from aiokafka.conn import collect_hosts
from aiokafka.errors import (
    AuthenticationFailedError,
    AuthenticationMethodNotSupported,
    ClusterAuthorizationFailedError,
    IllegalSaslStateError,
    KafkaError,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanismError,
)
from aiokafka.protocol.metadata import MetadataRequest

from overlay.errors import CredentialsRefused, SourceUnavailable

Properties = Mapping[str, str]

_REFUSALS = (
    ssl.SSLError,
    AuthenticationFailedError,
    AuthenticationMethodNotSupported,
    ClusterAuthorizationFailedError,
    IllegalSaslStateError,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanismError,
)
FAILURES = (OSError, KafkaError, UnicodeError)
"""What connecting and asking raise. Python raises the last for a host name that is none, as `a..b`."""
_FILES = ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location")
DEADLINE_S = 10.0
GRACE_S = 1.0
"""How long other addresses are waited for after one has refused us."""
RETRY_S = 0.5
# by itself librdkafka comes to wait 10 s between two tries, so that a broker that is back would be found that much later
_RECONNECT_MS = "500"


def find_refusal(error: BaseException) -> BaseException | None:
    """Return the error with which a broker refuses us, None if `error` may pass.

    With TLS 1.3 the client ends its handshake before the broker has looked at the client's certificate: the broker refuses it
    under the first request, and aiokafka then says why as the cause of the broken connection.
    """
    for each in (error, error.__cause__):
        # a broker that stops, perhaps
        if isinstance(each, _REFUSALS) and not isinstance(each, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
            return each
    return None


def describe_failure(error: BaseException) -> str:
    """Return what went wrong, and why, as far as the system or TLS says so."""
    text = str(error) or type(error).__name__
    return f"{text}: {error.__cause__}" if isinstance(error.__cause__, OSError) else text


def for_confluent(kafka: Properties) -> dict[str, str]:
    """Settings for confluent-kafka's clients: they are librdkafka's own already."""
    return {"reconnect.backoff.max.ms": _RECONNECT_MS, **kafka}


def name_files(kafka: Properties) -> str:
    """The files of the settings: neither client says which of them it could not read."""
    return "".join(f"{name} {kafka[name]}: " for name in _FILES if name in kafka)


def list_servers(kafka: Properties) -> list[str]:
    """Return the addresses of the settings, each as host:port."""
    return [server.strip() for server in kafka["bootstrap.servers"].split(",")]


def for_aiokafka(kafka: Properties) -> dict[str, Any]:
    """Keyword arguments for aiokafka's clients. Raises SourceUnavailable while certificates cannot be read: at the start they
    could be (reach), so somebody is about to replace them."""
    protocol = kafka.get("security.protocol", "PLAINTEXT").upper()
    arguments: dict[str, Any] = {
        "bootstrap_servers": list_servers(kafka),
        "client_id": kafka.get("client.id", "kafka-overlay"),
        "security_protocol": protocol,
    }
    if protocol.endswith("SSL"):
        try:
            arguments["ssl_context"] = make_ssl_context(kafka)
        except OSError as error:  # what ssl raises is one as well
            raise SourceUnavailable(f"{name_files(kafka)}certificates cannot be read: {error}") from error
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


async def reach(kafka: Properties, deadline_s: float = DEADLINE_S) -> None:
    """Connect to any of the addresses. Raises CredentialsRefused or SourceUnavailable, each with the address and the reason."""
    address = kafka["bootstrap.servers"]
    try:
        settings = for_aiokafka(kafka)
    except SourceUnavailable as error:
        raise CredentialsRefused(f"{error}. Check ssl.* of the Kafka settings") from error
    hosts = [(host, port) for host, port, _ in collect_hosts(settings.pop("bootstrap_servers"))]
    failures: list[BaseException] = []
    refusals: list[BaseException] = []
    tries = {asyncio.create_task(_try_host(host, settings, failures)) for host in hosts}
    pending = tries
    try:
        async with asyncio.timeout(deadline_s):
            # a refusal is known at once; another address may do meanwhile
            while pending:
                patience = GRACE_S if refusals else None
                done, pending = await asyncio.wait(pending, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    break
                for task in done:
                    if (refusal := task.result()) is None:
                        return
                    refusals.append(refusal)
    except TimeoutError as error:
        if not refusals:
            reason = describe_failure(failures[-1]) if failures else f"no answer within {deadline_s:g} s"
            raise SourceUnavailable(f"{address}: Kafka cannot be reached: {reason}") from error
    finally:
        for task in tries:
            task.cancel()
        await asyncio.gather(*tries, return_exceptions=True)
    raise CredentialsRefused(
        f"{address}: Kafka refused the connection: {refusals[-1]}. Check security.protocol, ssl.* and sasl.* of the Kafka"
        " settings"
    ) from refusals[-1]


async def _try_host(
    host: tuple[str, int], settings: Mapping[str, Any], failures: list[BaseException]
) -> BaseException | None:
    """Return None once a broker answers, or the error with which it refuses us. `failures` takes what may pass."""
    while True:
        try:
            connection = await aiokafka_client.create_conn(*host, **settings)
            try:
                await connection.send(MetadataRequest([]))
            finally:
                await connection.close()
            return None
        except FAILURES as error:
            if (refusal := find_refusal(error)) is not None:
                return refusal
            failures.append(error)
        await asyncio.sleep(RETRY_S)


async def open_client(kafka: Properties, **more: Any) -> AIOKafkaClient:
    """A connected aiokafka client. Raises SourceUnavailable."""
    client = AIOKafkaClient(**{**for_aiokafka(kafka), "metadata_max_age_ms": 5_000, **more})
    try:
        await client.bootstrap()
    except FAILURES as error:
        await client.close()
        reason = describe_failure(error)
        raise SourceUnavailable(f"{kafka['bootstrap.servers']}: Kafka cannot be reached: {reason}") from error
    return client
