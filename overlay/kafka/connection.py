"""Connections of aiokafka's clients: settings in its names, and the errors of connecting."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping, Set
from typing import Any

from aiokafka import client as aiokafka_client
from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.cluster import ClusterMetadata
from aiokafka.conn import AIOKafkaConnection, CloseReason, collect_hosts
from aiokafka.errors import (
    AuthenticationFailedError,
    AuthenticationMethodNotSupported,
    ClusterAuthorizationFailedError,
    IllegalSaslStateError,
    KafkaConnectionError,
    KafkaError,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanismError,
)
from aiokafka.protocol.metadata import MetadataRequest

from overlay.chance import shuffle
from overlay.credentials import Stamp, list_files, resolve, stamp
from overlay.errors import CredentialsRefused, SourceUnavailable
from overlay.logs import get_logger
from overlay.waits import finish_within

from .properties import DEADLINE_S, OAUTHBEARER, Properties, list_servers, name_files

log = get_logger(__name__)

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
"""Errors of connecting and of requests. Python raises UnicodeError for an invalid host name such as
`a..b`.
"""
GRACE_S = 1.0
"""Time to wait for the other addresses after one broker has refused the connection."""
RETRY_S = 0.5
_STARTING = "bootstrap"
"""aiokafka's name for the broker of the connection by which a client has started."""
BOOTSTRAP_S = 1.0
"""Seconds for which the start of a client of aiokafka goes on after it was cancelled. Cancelled between
connecting and the answer to its first request, it would leave the connection open.
"""


def find_refusal(error: BaseException) -> BaseException | None:
    """Return the error by which a broker refuses the connection for good, None if `error` may pass.

    With TLS 1.3 the client ends its handshake before the broker has checked the client's
    certificate. The broker then refuses the first request, and aiokafka gives the reason as the
    cause of the broken connection.
    """
    for each in (error, error.__cause__):
        # These two also occur when a broker shuts down.
        if isinstance(each, _REFUSALS) and not isinstance(each, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
            return each
    return None


def describe_failure(error: BaseException) -> str:
    """Return the text of an error, with the cause if the system or TLS gave one."""
    text = str(error) or type(error).__name__
    return f"{text}: {error.__cause__}" if isinstance(error.__cause__, OSError) else text


def for_aiokafka(given: Properties) -> dict[str, Any]:
    """Return the keyword arguments for aiokafka's clients. They have secrets in them.

    Raises SourceUnavailable while certificates or secrets cannot be read. If they could be read
    before, as `reach` does, they are probably being replaced.
    """
    kafka = resolve(given)
    protocol = kafka.get("security.protocol", "PLAINTEXT").upper()
    arguments: dict[str, Any] = {
        "bootstrap_servers": list_servers(kafka),
        "client_id": kafka.get("client.id", "kafka-overlay"),
        "security_protocol": protocol,
    }
    if protocol.endswith("SSL"):
        try:
            arguments["ssl_context"] = make_ssl_context(kafka)
        except OSError as error:  # ssl.SSLError is an OSError too
            raise SourceUnavailable(f"{name_files(kafka)}certificates cannot be read: {error}") from error
    if protocol.startswith("SASL"):
        arguments["sasl_mechanism"] = kafka.get("sasl.mechanism", "PLAIN")
    if arguments.get("sasl_mechanism") == OAUTHBEARER:
        # an HTTP client, which few need and which takes time to import
        from .oauth import Tokens

        arguments["sasl_oauth_token_provider"] = Tokens(given)
    elif protocol.startswith("SASL"):
        arguments["sasl_plain_username"] = kafka["sasl.username"]
        arguments["sasl_plain_password"] = kafka["sasl.password"]
    return arguments


def make_ssl_context(kafka: Properties) -> ssl.SSLContext:
    """Return the SSL context for aiokafka. Raises OSError if a file cannot be read."""
    context = ssl.create_default_context(cafile=kafka.get("ssl.ca.location"))
    # Python sets this flag by default from 3.13 on. It refuses many private CAs that librdkafka and
    # Java accept.
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
    """Check that a broker at any of the bootstrap addresses accepts a connection and answers. All addresses are tried
    at once, and again after errors that may pass.

    Raises CredentialsRefused if one refuses the connection and none accepts it within GRACE_S after the last refusal,
    or within `deadline_s` seconds; also if certificates or secrets cannot be read. Raises SourceUnavailable if none
    has answered or refused after `deadline_s`. All give the reason.
    """
    address = kafka["bootstrap.servers"]
    try:
        settings = for_aiokafka(kafka)
    except SourceUnavailable as error:
        raise CredentialsRefused(f"{error}. Check ssl.* and sasl.* of the Kafka settings") from error
    hosts = [(host, port) for host, port, _ in collect_hosts(settings.pop("bootstrap_servers"))]
    failures: list[BaseException] = []
    refusals: list[BaseException] = []
    tries = {asyncio.create_task(_try_host(host, settings, failures)) for host in hosts}
    pending = tries
    try:
        async with asyncio.timeout(deadline_s):
            # A refusal is known at once, but another address may still accept within GRACE_S.
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
        # out of time: a refusal by any address tells more than the others' failures
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
    """Try to connect to one address again and again. Return None once a broker has answered, or the
    error by which it refuses the connection.

    `failures` receives the errors that may pass.
    """
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


def mend_client(client: AIOKafkaClient, kafka: Properties, seen: Stamp) -> None:
    """Change what an aiokafka client does in four cases, before it is started. `kafka`: the settings that it was
    made of; `seen`: the stamp of their files from before `for_aiokafka` read them.

    A broker that the controller does not hear from answers, but lists no broker, not even itself. aiokafka takes that
    for a start, and fails an assertion when it needs a broker. Here the start fails with KafkaConnectionError.

    A connection that breaks without a word answers nothing. aiokafka goes on asking it for metadata, each time until
    the request times out, and with a single broker for ever. Here the connections that serve such requests (the
    default group) are closed if no broker has answered, and the next request makes new ones.

    A request for metadata lets a broker create the topics that are missing, which is the default of brokers as well. A
    topic that was deleted would come back within seconds, with other settings, for as long as a client knows its name.
    Here no request for metadata creates a topic: what this service needs, it creates itself.

    A client keeps the certificates and passwords that it was made with. Here they are read again before the start and
    before a new connection, if their files were replaced.
    """
    bootstrap = client.bootstrap
    renewal = _Renewal(client, kafka, seen) if list_files(kafka) else None
    if renewal is not None:
        client._get_conn = renewal.get_connection

    async def bootstrap_and_look() -> None:
        if renewal is not None:
            await renewal.renew()
        await bootstrap()
        if not client.cluster.brokers():
            raise KafkaConnectionError("the cluster lists no broker: none is heard by its controller at present")

    async def update_or_leave(cluster: ClusterMetadata, topics: Set[str]) -> bool:
        is_done = await _update_metadata(client, cluster, topics)
        if not is_done:
            for (_, group), connection in list(client._conns.items()):
                if group == ConnectionGroup.DEFAULT:
                    connection.close(CloseReason.CONNECTION_TIMEOUT)
        return is_done

    client.bootstrap = bootstrap_and_look
    client._metadata_update = update_or_leave


async def _update_metadata(client: AIOKafkaClient, cluster: ClusterMetadata, topics: Set[str] | None) -> bool:
    """Do what `AIOKafkaClient._metadata_update` does, by a request that creates no topic: ask one broker after the other,
    in random order, until one answers; the connection of the start as well, as long as there is one. `topics`: those to
    ask for; all if there are none. Return whether one has answered with a broker.
    """
    request = MetadataRequest(list(topics) if topics else None, allow_auto_topic_creation=False)
    starting = (_STARTING, ConnectionGroup.DEFAULT)
    nodes: list[int | str] = [broker.nodeId for broker in client.cluster.brokers()]
    if starting in client._conns:
        nodes.append(_STARTING)
    for node in shuffle(nodes):
        connection = await client._get_conn(node)
        if connection is None:
            continue
        try:
            answer = await connection.send(request)
        except (KafkaError, TimeoutError) as error:
            log.info("a broker did not answer", node=node, reason=str(error) or type(error).__name__)
            continue
        if not answer.brokers:
            return False
        cluster.update_metadata(answer)
        if client.cluster.brokers() and (connection := client._conns.pop(starting, None)) is not None:
            connection.close()
        return True
    cluster.failed_update(None)
    return False


class _Renewal:
    """The credentials of a client, which are read again when their files were replaced."""

    def __init__(self, client: AIOKafkaClient, kafka: Properties, seen: Stamp) -> None:
        self._client, self._kafka = client, kafka
        self._get = client._get_conn
        # a stamp from after the reading would hide a replacement in between for ever
        self._seen = self._told = seen

    async def get_connection(
        self, node: int | str, *, group: ConnectionGroup = ConnectionGroup.DEFAULT, no_hint: bool = False
    ) -> AIOKafkaConnection | None:
        """Return a connection to a broker as the client does, None if it cannot be made. Before a new
        one is made, read the credentials again if their files were replaced.
        """
        connection = self._client._conns.get((node, group))
        if connection is None or not connection.connected():
            await self.renew()
        found: AIOKafkaConnection | None = await self._get(node, group=group, no_hint=no_hint)
        return found

    async def renew(self) -> None:
        """Give the client the present content of the files, if one of them was replaced. If they cannot be read, as
        in the middle of a replacement, leave the client as it is until they can, and log that once for each
        replacement.
        """
        if (found := stamp(self._kafka)) == self._seen:
            return
        try:
            settings = await asyncio.to_thread(for_aiokafka, self._kafka)
        except SourceUnavailable as error:
            if found != self._told:
                log.warning("connections are made with the former credentials", reason=str(error))
            self._told = found
            return
        self._seen = self._told = found
        self._client._ssl_context = settings.get("ssl_context")
        self._client._sasl_plain_username = settings.get("sasl_plain_username")
        self._client._sasl_plain_password = settings.get("sasl_plain_password")
        log.info("the credentials for Kafka were replaced")


async def open_client(kafka: Properties, **more: Any) -> AIOKafkaClient:
    """Return a connected aiokafka client, which the caller has to close. `more`: further arguments
    for it. Raises SourceUnavailable if Kafka cannot be reached, refuses the connection, or lists no
    broker, or if credentials cannot be read.
    """
    seen = stamp(kafka)
    client = AIOKafkaClient(**{**for_aiokafka(kafka), "metadata_max_age_ms": 5_000, **more})
    mend_client(client, kafka, seen)
    try:
        await finish_within(client.bootstrap(), BOOTSTRAP_S)
    except asyncio.CancelledError:
        await client.close()
        raise
    except FAILURES as error:
        await client.close()
        reason = describe_failure(error)
        raise SourceUnavailable(f"{kafka['bootstrap.servers']}: Kafka cannot be reached: {reason}") from error
    return client
