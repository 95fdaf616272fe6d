"""One record as a message for a filter: of a topic, or of a line that `overlay read` has printed.

Both are read by the kernels that the service uses. So the values that the filter is given are those
that the service would give it.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from overlay.arrays import Bytes
from overlay.config.stream import StreamConfig
from overlay.errors import CorruptBatch, OverlayError
from overlay.filter import Filter
from overlay.filter.describe import describe_name
from overlay.filter.message import Message
from overlay.kafka.admin import connect
from overlay.kafka.properties import Properties
from overlay.kafka.range_reader import read_span
from overlay.match.addressing import Addressed, make_addressing
from overlay.match.properties import find_sources
from overlay.match.reading import Reading
from overlay.output.encoded_batch import encode_records
from overlay.output.record import Record
from overlay.scan import Malformed
from overlay.scan.columns import NO_TIMESTAMP
from overlay.scan.commit import NO_ABORTS, Aborted
from overlay.scan.states import ABSENT, REASONS
from overlay.schemas.gate import open_gate
from overlay.units import parse_time

from .expression import bind_names
from .members import split_members

_PLACE = re.compile(r"(?P<topic>[a-zA-Z0-9._-]+)-(?P<partition>\d{1,9})@(?P<offset>\d{1,18})", re.ASCII)
MEMBERS = ("topic", "partition", "offset", "headers")
"""Members that tell a line of `overlay read` from a message."""


class NoRecord(OverlayError):
    """A text names no record, or the record that it names is not there. The user names another one."""


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a record."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}@{self.offset}"


@dataclass(frozen=True, slots=True)
class RecordView:
    """A record as a filter sees it.

    `subject`: None if it has none in the stream; `reason` says why then. `message`: the values that
    the filter names. `faults`: by name, why a value could not be read as its type.
    """

    place: Place
    subject: str | None
    reason: str
    message: Message
    faults: Mapping[str, str]

    def describe(self) -> dict[str, Any]:
        """Return the record as a JSON object with topic, partition, offset, subject, reason and faults,
        without the message.
        """
        where = {"topic": self.place.topic, "partition": self.place.partition, "offset": self.place.offset}
        return {**where, "subject": self.subject, "reason": self.reason or None, "faults": dict(self.faults)}


def parse_place(text: str) -> Place:
    """Return the place that a text like `orders-0@146` names. Raises NoRecord for a text of another form."""
    found = _PLACE.fullmatch(text)
    if found is None:
        raise NoRecord(f"{text!r} names no record. Write TOPIC-PARTITION@OFFSET, such as orders-0@146")
    return Place(found["topic"], int(found["partition"]), int(found["offset"]))


async def fetch_record(kafka: Properties, compiled: Filter, stream: StreamConfig, place: Place) -> RecordView:
    """Read a record from Kafka, and return it as the stream's filter sees it. Raises NoRecord if there
    is no committed record at that place, CorruptBatch, CredentialsRefused, SourceUnavailable, and
    SourceChanged if the log loses the record meanwhile.
    """
    source = place.topic, place.partition
    async with connect(kafka) as (admin, client):
        facts = (await admin.find_topics([place.topic], with_config=False)).get(place.topic)
        if facts is None or place.partition >= facts.partitions:
            raise NoRecord(f"{place}: there is no such {'topic' if facts is None else 'partition'}")
        first, end = (await admin.find_bounds([source]))[source]
        if not first <= place.offset < end:
            raise NoRecord(f"{place}: the partition has committed records from offset {first} to {end - 1}")
        async for fetched in read_span(client, *source, place.offset, place.offset + 1, gate=open_gate(stream)):
            found = _view(compiled, stream, place, fetched.data, place.offset, fetched.aborted)
            if found is not None:
                return found
    raise NoRecord(
        f"{place}: there is no record. It was aborted, or removed by compaction, or it is the marker of a transaction"
    )


def read_line(compiled: Filter, stream: StreamConfig, line: str) -> RecordView:
    """Return the record that a line of `overlay read --format json` describes. Raises NoRecord if it
    is no such line.
    """
    try:
        raw = split_members(line)
        members: Mapping[str, Any] = json.loads(line)
        place = Place(str(members["topic"]), int(members["partition"]), int(members["offset"]))
        headers = [(str(entry["name"]), _read_bytes(entry, "value")) for entry in members["headers"]]
        value = _read_value(members, raw.get("value", "null"))
        time = NO_TIMESTAMP if members.get("timestamp") is None else parse_time(members["timestamp"]) // 1_000_000
        record = Record(_read_bytes(members, "key"), value, headers)
    except (ValueError, KeyError, TypeError, binascii.Error) as error:
        raise NoRecord(f"this is no line of `overlay read --format json`: {error!r}") from error
    data = np.frombuffer(encode_records([record], time, transactional=False).build(), np.uint8)
    found = _view(compiled, stream, place, data, 0, NO_ABORTS)
    assert found is not None  # the batch has this one record
    return found


def _read_bytes(members: Mapping[str, Any], name: str) -> bytes | None:
    if (coded := members.get(f"{name}_base64")) is not None:
        return base64.b64decode(coded, validate=True)
    text = members.get(name)
    return None if text is None else str(text).encode()


def _read_value(members: Mapping[str, Any], raw: str) -> bytes | None:
    """Return the bytes of the record's value, None for null. A string stands for its UTF-8 bytes, and
    `value_base64` for bytes in base64. For any other JSON value they are the bytes of `raw`, the
    member `value` as the line spells it.
    """
    if members.get("value") is None or isinstance(members["value"], str):
        return _read_bytes(members, "value")
    return raw.encode()


def _view(
    compiled: Filter, stream: StreamConfig, place: Place, data: Bytes, offset: int, aborted: Aborted
) -> RecordView | None:
    """Return the record at `offset` of fetched bytes; None if there is none. `place`: where the record
    is, for the result and for errors. Raises CorruptBatch.
    """
    bound = bind_names(compiled, stream.properties)
    sources = find_sources(bound.values(), stream.properties)
    fields = tuple(dict.fromkeys(field for source in sources.values() for field in source.fields))
    addressing = make_addressing(stream)
    pieces = addressing.read(place.topic, place.partition, data, offset, more=fields, stop=offset + 1, aborted=aborted)
    for piece in pieces:
        if isinstance(piece, Malformed):
            raise CorruptBatch(place.topic, place.partition, place.offset, piece.fault.text)
        if len(piece.records):
            reading = Reading(piece)
            message: dict[str, dict[str, object]] = {}
            faults: dict[str, str] = {}
            for name, column in bound.items():
                read = reading.read(sources[column], column.type)
                state = int(read.states[0])
                if state != ABSENT:
                    message.setdefault(column.section.value, {})[column.name] = read.array[0].as_py()
                if state in REASONS:
                    faults[describe_name(name)] = REASONS[state]
            return RecordView(place, *_find_subject(piece), message, faults)
    return None


def _find_subject(piece: Addressed) -> tuple[str | None, str]:
    """Return the subject of a slice's only record with "", or None with the reason why it has none."""
    if reasons := piece.count_unaddressed():
        return None, next(iter(reasons))
    return piece.dictionary.subjects[int(piece.codes[0])], ""
