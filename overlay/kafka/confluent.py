"""Helpers for confluent-kafka's clients: an admin client, a reachability check, and detection of a
lost client.

The client library and the command line use them. The service does not (docs/architecture.md).
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from concurrent.futures import Future
from types import MappingProxyType
from typing import Any

from confluent_kafka import KafkaError as RdKafkaError
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from overlay.credentials import stamp
from overlay.errors import CredentialsRefused, SourceUnavailable

from .properties import DEADLINE_S, Properties, for_confluent, name_files

ANSWER_S = 15.0
LOOK_MS = 5_000
"""Time between two statistics reports, which name the brokers that a client knows."""
_REFUSALS = (
    RdKafkaError._AUTHENTICATION,
    RdKafkaError._SSL,
    RdKafkaError.SASL_AUTHENTICATION_FAILED,
    RdKafkaError.CLUSTER_AUTHORIZATION_FAILED,
)


@contextlib.contextmanager
def refuse_settings(kafka: Properties) -> Iterator[None]:
    """Open a context for the call that makes a client of these settings. Raises CredentialsRefused
    if that fails, for example because a certificate file is missing or is not a certificate, or a
    secret cannot be read.
    """
    try:
        yield
    except SourceUnavailable as error:
        raise CredentialsRefused(str(error)) from error
    except KafkaException as error:
        raise CredentialsRefused(
            f"{name_files(kafka)}the Kafka settings cannot be used: {error.args[0].str()}. Check ssl.* of the Kafka settings"
        ) from error


def make_admin_client(kafka: Properties, **more: Any) -> AdminClient:
    """Return an admin client without log output; `more`: settings added to `kafka`.

    Raises CredentialsRefused if the settings cannot be used.
    """
    with refuse_settings(kafka):
        return AdminClient({**for_confluent(kafka), "log_level": "0", **more})


def get_answer(future: Future[Any]) -> Any:
    """Return the result of an admin call. Raises KafkaException if it failed or did not end within
    ANSWER_S.

    The client gives up after its own deadline, but not while it waits for a broker that has died.
    """
    try:
        return future.result(ANSWER_S)
    except TimeoutError as error:
        raise KafkaException(RdKafkaError(RdKafkaError._TIMED_OUT)) from error


def check_reachable(kafka: Properties, deadline_s: float = DEADLINE_S) -> None:
    """Ask Kafka for its metadata, again and again until it answers; blocks. Raises
    CredentialsRefused if Kafka refuses the connection or the settings cannot be used,
    SourceUnavailable if there is no answer within `deadline_s` seconds, with address and reason.

    This uses librdkafka, whose errors distinguish a refused password from a closed port.
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


def _is_usable(kafka: Properties) -> bool:
    """Return whether the secrets and certificates of settings can be read."""
    from .connection import for_aiokafka

    try:
        for_aiokafka(kafka)
    except SourceUnavailable:
        return False
    return True


class Contact:
    """A detector for a Kafka client that has to be replaced by a new one: it no longer knows any
    broker, and never recovers, or the files with its credentials were replaced.

    From 2.10 on librdkafka forgets brokers that metadata does not name. While the last broker of a
    cluster shuts down, its metadata names none. The client then asks its bootstrap addresses,
    forgets what it found there for the same reason, and may end without any address to ask. It then
    connects no more and reports no error (seen with 2.11 to 2.16 after one restart of a broker in a
    hundred, and always with the metadata that tests/kafka/test_confluent.py sends). Its own
    statistics show this.

    librdkafka reads certificates and takes passwords when a client is made, and keeps them.

    Make a Contact for each client, before the client and from the same settings (`kafka`); without
    them only a lost client is detected. The module that makes the client adds `settings` to the
    client's settings and polls the client every few seconds.
    """

    def __init__(self, kafka: Properties = MappingProxyType({})) -> None:
        self._missed = 0
        self._kafka = kafka
        self._seen = stamp(kafka)
        self.is_outdated = False
        """Whether the client was made with credentials that have been replaced since."""

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that make the client report its statistics to this object."""
        return {"statistics.interval.ms": LOOK_MS, "stats_cb": self.hear}

    @property
    def is_lost(self) -> bool:
        """Return whether at least the last two statistics reports, LOOK_MS apart, named no broker."""
        return self._missed > 1

    @property
    def is_spent(self) -> bool:
        """Return whether the client has to be replaced."""
        return self.is_lost or self.is_outdated

    def announce(self, log: Any, **where: str) -> None:
        """Log why the client is replaced: it is lost, or else its credentials were replaced.
        `where`: fields of the log that tell which client it is.
        """
        if self.is_lost:
            log.warning("the Kafka client knows no broker any more: it is made anew", **where)
        else:
            log.info("the credentials for Kafka were replaced: the client is made anew", **where)

    def hear(self, statistics: str) -> None:
        """Update `is_lost` by a statistics report of the client: JSON, as defined by librdkafka's
        STATISTICS.md. Set `is_outdated` if the files with the credentials were replaced and can be
        used.
        """
        # files that cannot be used are in the middle of a replacement, and are looked at again
        if not self.is_outdated and stamp(self._kafka) != self._seen:
            self.is_outdated = _is_usable(self._kafka)
        brokers = json.loads(statistics)["brokers"].values()
        # Other sources are the group coordinator, and a placeholder for partitions without a
        # leader.
        knows_one = any(broker["source"] in ("configured", "learned") for broker in brokers)
        self._missed = 0 if knows_one else self._missed + 1
