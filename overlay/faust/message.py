"""What an agent gets: a message of the overlay, in a record that Faust has read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, cast

from confluent_kafka import Message as KafkaRecord
from faust.types.tuples import Message as FaustRecord

from overlay.client.subscribe.message import Acks, AsyncMessage
from overlay.client.subscribe.properties import PropertyReader, Value


class _Record:
    """A record of Faust with the methods of confluent-kafka's records, which `Delivered` calls."""

    __slots__ = ("_record",)

    def __init__(self, record: FaustRecord) -> None:
        self._record = record

    def headers(self) -> list[tuple[str, bytes | None]]:
        return list_headers(self._record)

    def key(self) -> bytes | None:
        return self._record.key

    def value(self) -> bytes | None:
        return self._record.value

    def topic(self) -> str:
        return self._record.topic

    def partition(self) -> int:
        return self._record.partition

    def offset(self) -> int:
        return self._record.offset


def list_headers(record: FaustRecord) -> list[tuple[str, bytes | None]]:
    """Return a record's headers in order, with repetitions."""
    found = record.headers or ()
    return cast("list[tuple[str, bytes | None]]", list(found.items() if isinstance(found, dict) else found))


class AcksAfterFlush(Acks, Protocol):
    """A receiver of acks with one more method: `ack_later` queues an ack that is sent only once Kafka has what the agents
    have sent.
    """

    def ack_later(self, token: bytes) -> None: ...


class AgentMessage(AsyncMessage):
    """A message of an overlay consumer, as the value of a Faust event.

    It has the contents and the verbs of `AsyncMessage`. A message that is neither settled by a verb nor abandoned is
    acked when Faust acknowledges its event: as a rule when the agent takes the next one.
    """

    __slots__ = ("_decode", "_is_abandoned", "_properties", "_reader")

    _acks: AcksAfterFlush

    def __init__(
        self,
        record: FaustRecord,
        token: bytes,
        acks: AcksAfterFlush,
        reader: PropertyReader,
        decode: Callable[[FaustRecord], Any],
    ) -> None:
        super().__init__(cast(KafkaRecord, _Record(record)), token, acks)
        self._reader = reader
        self._decode: Callable[[], Any] = lambda: decode(record)
        self._properties: dict[str, Value] | None = None
        self._is_abandoned = False

    @property
    def properties(self) -> dict[str, Value]:
        """The application properties that the stream's file declares, by name; {} if the config folder has no such
        stream. None for one that the message does not have, that does not spell its type, or that is made of the
        source's topic or partition. Names of fixed fields, such as `p.message_id`, are left out.
        """
        if self._properties is None:
            self._properties = self._reader.read(self)
        return self._properties

    @property
    def content(self) -> Any:
        """The value as Faust decodes it: by the topic's value_type and value_serializer, else by
        the application's (JSON). Raises faust.exceptions.ValueDecodeError.
        """
        return self._decode()

    def abandon(self) -> None:
        """Have Faust's acknowledgement of the event not ack the message: if no verb settles it, it is delivered again
        after ack_wait. Too late if Faust has acknowledged the event. An agent that ends with an exception abandons
        the message that it had.
        """
        self._is_abandoned = True

    def finish(self) -> None:
        """Queue an ack, to be sent after a flush of Faust's producer, unless the message is settled or abandoned. Called
        when all agents have acknowledged its event.
        """
        if not self._is_settled and not self._is_abandoned:
            self._acks.ack_later(self._token)
            self._is_settled = True
