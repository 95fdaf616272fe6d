"""What strangers may write: valid samples, what reads them, and what that may cost."""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from overlay.avro import parse_schema
from overlay.config import ConsumerConfig, StreamConfig, TopicsConfig, fill_defaults
from overlay.config.consumer import AckPolicy
from overlay.config.document import parse_document
from overlay.config.problems import validate
from overlay.consumer import snapshot
from overlay.consumer.acks import parse_ack
from overlay.consumer.pulls import parse_pull
from overlay.consumer.state import begin
from overlay.control import open_requests, records, tail
from overlay.control.records import Definition, Pause, Subject
from overlay.control.requests import parse_request
from overlay.dispatch.ack_decoder import AckDecoder
from overlay.errors import ConfigError, FilterSyntaxError
from overlay.field import Field, FieldKind
from overlay.filter.parse import parse as parse_filter
from overlay.fleet import status
from overlay.index.ledger import entries
from overlay.index.skip import encode as chunks
from overlay.kafka import header_names
from overlay.kafka.fetched import Fetched
from overlay.kafka.log_position import LogPosition
from overlay.kafka.records import RowReader, StoredRecord
from overlay.protobuf import Field as MessageField
from overlay.protobuf import Kind, Message
from overlay.replies.reply_address import make_rule, read_address
from overlay.scan import Decoder, Malformed, make_plan
from overlay.scan.avro.reader import AvroFormat
from overlay.scan.codec import Arena
from overlay.scan.commit import NO_ABORTS
from overlay.scan.header import split
from overlay.scan.protobuf.reader import ProtobufFormat
from overlay.state import job_plan, job_plan_codec
from overlay.state.shard_state import ConsumerState, Delta, StateReplay, StateUnreadable, encode
from tests.oracle.batches import Record
from tests.support import batches
from tests.support.tiny_records import build_tiny

from .budget import Budget
from .http_pages import list_requests, read_request
from .reader_groups import list_committed, read_committed

RULE = make_rule(TopicsConfig())
TEXTS = Budget(lines=8_000, lines_per_byte=30, bytes=200_000, bytes_per_byte=150)
"""For what is parsed in Python from JSON or text."""


@dataclass(frozen=True, slots=True)
class Surface:
    """`read` raises only `refusals`. `samples` are read without one."""

    name: str
    read: Callable[[bytes], Any]
    samples: Sequence[bytes]
    refusals: tuple[type[Exception], ...] = ()
    budget: Budget = TEXTS
    largest: int = 20_000
    """Bytes of the largest input that is counted."""

    def run(self, data: bytes) -> None:
        """Read an input, which may be refused as declared. Raises anything else."""
        with contextlib.suppress(*self.refusals):
            self.read(data)


def dump(value: object) -> bytes:
    return json.dumps(value).encode()


# acks

TOKEN = b"$JS.ACK._.9-2.S.c.1.2.3.1700000000000000000.4"
SPLIT = b"\x00|\x00"
"""Between the parts of an input that has several: token and body, key and value, headers."""


def read_ack(data: bytes) -> None:
    token, _, body = data.partition(SPLIT)
    parse_ack(token, body)


ACKS = [
    *(
        TOKEN + SPLIT + body
        for body in (b"", b"+ACK", b"-NAK", b"-NAK 10s", b'-NAK {"delay": 1000}', b"+WPI", b"+TERM why")
    ),
    TOKEN + SPLIT + b'+NXT {"batch": 5, "expires": 1000000000}',
    b"$JS.ACK.S.c.1.2.3.4.5" + SPLIT + b"+OK",
    b"$JS.ACK._.9-2.S.c" + SPLIT + b'+ACK {"consumer_seq": [[1, 4], [6, 9]]}',
    b"$JS.ACK.S.c" + SPLIT + b'+ACK {"consumer_seq": [[1, 4]], "incarnation": ""}',
]

# headers of requests and acks

HEADERS = (header_names.REPLY_TOPIC, header_names.REPLY_PARTITION, header_names.CORRELATION, header_names.CLIENT)


def read_reply(data: bytes) -> None:
    found = dict(zip(HEADERS, data.split(SPLIT), strict=False))
    read_address(found.get, RULE)


REPLIES = [SPLIT.join(parts) for parts in ((b"overlay.replies.a", b"3", b"id"), (b"overlay.replies", b"", b""))]

# the control topic

CONFIG = records.read_config(
    "S",
    {
        "durable_name": "c", "deliver_subject": "out", "filter_subjects": ["a.*", "b.>"], "ack_wait": "10s",
        "backoff": ["1s", "5s"], "max_deliver": 5, "metadata": {"a": "b"}, "filter": {"sql": "x = 1"},
        "output": {"partitions": 2, "config": {"retention.ms": "1000"}},
    },
)  # fmt: skip


def read_control(data: bytes) -> None:
    key, _, value = data.partition(SPLIT)
    subject, names = records.split_key(key)
    if subject is Subject.CONSUMER:
        records.read_definition((names[0], names[1]), value)
    elif subject is Subject.PAUSE:
        records.read_pause(value)
    else:
        found = parse_request(names[0], value, lambda _: None, 1_700_000_000_000, RULE)
        if "config" in found.body:
            records.read_config(found.stream, found.body["config"])


# the requests topic

ORDERED = {
    "name": "ordered-1", "deliver_subject": "overlay-ordered-1", "ack_policy": "none",
    "output": {"temporary": True, "config": {"retention.ms": 1}},
}  # fmt: skip


def read_open_request(data: bytes) -> None:
    parts = data.split(SPLIT)
    key, value, *headers = (*parts, b"", b"")[: max(2, len(parts))]
    row = StoredRecord(7, 1_700_000_000_000, key, value, dict(zip(HEADERS, headers, strict=False)))
    request = open_requests.read_open(row, RULE)
    assert request is not None
    open_requests.judge_open(request, RULE.prefix)
    open_requests.copy_request(request, row, "id")


OPEN = [
    SPLIT.join((b"request id-1", dump({"v": 1, "op": "consumer.next", "stream": "S", "consumer": "c", "batch": 5}))),
    SPLIT.join((b"request id-2", dump({"op": "consumer.create", "stream": "S", "config": ORDERED}), REPLIES[0])),
    SPLIT.join((b"request id-3", dump({"op": "consumer.delete", "stream": "S", "consumer": "ordered-1"}), REPLIES[1])),
]


@cache
def list_control() -> list[bytes]:
    definition = records.write_definition(Definition(fill_defaults(CONFIG), 1_700_000_000_000_000_000))
    ends: dict[str, object] = {
        "v": 1,
        "origin": "request",
        "created": "2026-01-31T12:00:00Z",
        "ends": {"t": ["id", [1, 2]]},
    }
    pause = records.write_pause(("S", "c"), Pause(1_700_000_000_000_000_000))
    config = records.write_config(CONFIG)
    requests: list[dict[str, object]] = [
        {"op": "consumer.create", "stream": "S", "timeout": "10s", "config": config},
        {"op": "consumer.pause", "stream": "S", "consumer": "c", "pause_until": "2030-01-31T12:00:00Z"},
        {"op": "consumer.next", "stream": "S", "consumer": "c", "batch": 5, "expires": "1s", "no_wait": True},
        {"op": "consumer.list", "offset": 5},
    ]
    return [
        *((record.key or b"") + SPLIT + (record.value or b"") for record in (definition, pause)),
        b"consumer S c" + SPLIT + dump({**ends, "config": config}),
        *(b"request id" + SPLIT + dump({"v": 1, **request}) for request in requests),
    ]


# the state of shards and jobs


def read_state(data: bytes) -> None:
    key, _, value = data.partition(SPLIT)
    StateReplay().apply(0, key or None, value)


@cache
def list_state() -> list[bytes]:
    own = ConsumerState(
        5, {("t", 0): LogPosition(3, 1, 9)}, {("t", 0): 4}, {("t", 0): 1}, {("acks", 0): 2}, 7, "explicit"
    )
    delta = Delta(
        {("S", ("t", 0)): LogPosition(3, 1, 9)}, {("S", "c"): own}, {("S", "t"): "id"}, (("S", "d"),), 4, ("T",),
        {("S", ("acks", 0)): LogPosition(2)},
    )  # fmt: skip
    return [SPLIT + encode(delta, checkpoint=whole) for whole in (False, True)] + [b"machine S/c 1 1" + SPLIT + b"x"]


@cache
def list_snapshots() -> list[bytes]:
    config = fill_defaults(CONFIG.model_copy(update={"ack_policy": AckPolicy.EXPLICIT}))
    return [snapshot.encode_checkpoint(begin(config, 0, incarnation="9-2"))]


@cache
def list_plans() -> list[bytes]:
    reads = {("t", 0): (0, 9)}
    consumer = job_plan.ConsumerPlan("f", 1, 2, 0, {("t", 0): 0}, "claim", reads)
    plan = job_plan.BatchPlan(
        3, 1_700, "job", "S", reads, {"c": consumer}, {("out", 0): 1}, True, {}, {("t", 0): 9}, "app", 9
    )
    return [job_plan_codec.encode_plan(plan)]


# the index


def read_index(data: bytes) -> None:
    found = chunks.decode(data)
    chunks.parse_values([data, data[:9], None, data])
    entries.decode(data)
    entries.parse_values([data, data[:9], None, data])
    assert found is not None


@cache
def list_index() -> list[bytes]:
    runs = (entries.LedgerRun("t", 0, 5, 3, 9), entries.LedgerRun("u", 1, 0, 0, 12, 4, 7))
    return [entries.encode("S", entries.LedgerEntry(runs))[1], *list_chunks()]


@cache
def list_chunks() -> list[bytes]:
    from tests.index.headers import any_headers

    found: list[bytes] = []

    def keep(header: Any) -> None:
        found.append(chunks.encode(header)[1])

    from hypothesis import Phase, given, settings

    settings(max_examples=8, database=None, derandomize=True, phases=[Phase.generate])(given(any_headers())(keep))()
    return found


# the fleet


def read_status(data: bytes) -> None:
    status.decode(b"w", data, "overlay")


@cache
def list_statuses() -> list[bytes]:
    consumer = status.ConsumerStatus(stream="S", name="c", state="running", sequence=3, positions={"t-0": 4})
    worker = status.WorkerStatus(
        prefix="overlay", worker="w", boot="b", number=1, started=2, clock=3, version="1", digest="d", shard_count=2,
        shards=(status.ShardStatus(number=0, ready=True), status.ShardStatus(number=1, ready=False, reason="why")),
    )  # fmt: skip
    stream = status.StreamStatus(name="S", topic="t", state="running", lag=3, index="running", index_lag=0)
    return status.encode(worker, [consumer], ["S/d"], [stream], ["T"])


# source records

PLAN = make_plan(
    (
        Field(FieldKind.HEADER, "to"),
        Field(FieldKind.KEY, ""),
        *(Field(FieldKind.VALUE, path) for path in ("a", "a.b", "a.b.c", "d.0", "e")),
    )
)
ARENA_BYTES = 1 << 20
VALUES = (
    b'{"a": {"b": {"c": 1}}, "d": [1, 2], "e": "x"}', b'{"a":{"b":null},"d":[],"e":"\\u00e9"}', b"[1]", b'"a"', b"1", b"",
)  # fmt: skip


SLICE_ROWS = 1_000
BATCHES = Budget(lines=8_000, lines_per_byte=30, bytes=4 * ARENA_BYTES, bytes_per_byte=20)
"""Beside what the decompressed bytes take, which have a limit, and the rows of a slice."""
WRITTEN = Budget(lines=8_000, lines_per_byte=80, bytes=2 * tail.MOST_BYTES, bytes_per_byte=150)
"""For batches of topics that clients write to: the limits of what they decompress to, and of their records."""


def read_batches(data: bytes) -> None:
    decoder = Decoder(PLAN, slice_rows=SLICE_ROWS, arena=Arena(1 << 16, ARENA_BYTES))
    for piece in decoder.decode(np.frombuffer(data, np.uint8)):
        assert isinstance(piece, Malformed) or len(piece) <= SLICE_ROWS


def read_ack_batches(data: bytes) -> None:
    AckDecoder("S", ["c"], ["d"], RULE).read(np.frombuffer(data, np.uint8), 0, NO_ABORTS)


def read_control_batches(data: bytes) -> None:
    buf = np.frombuffer(data, np.uint8)
    fetched = Fetched(0, buf, split(buf).batches, NO_ABORTS, 0, 0, LogPosition(0), -1)
    for _ in RowReader(tail.HEADERS, most_bytes=tail.MOST_BYTES, most_records=tail.MOST_RECORDS).read(fetched, 0):
        pass


def list_ack_batches() -> list[bytes]:
    pairs = [sample.partition(SPLIT) for sample in ACKS]
    rows = [Record(i, 1, key, value, []) for i, (key, _, value) in enumerate(pairs)]
    return [batches.build(rows), batches.build(rows, codec=4), build_tiny(4_000)]


ENCODED = (
    # in each: a text, a map, a list of itself, a double that Python has to spell
    b"\x06abc\x02\x02k\x04\x00\x02\x00\x00" + struct.pack("<d", 5e-324),
    b'\x01\x02\x06a"b\x02\x06xyz\x00\x00\x00' + bytes(16),
    b'\x0a\x03abc\x12\x05\x0a\x03a"b\x21' + struct.pack("<d", 5e-324) + b"\x1b\x08\x01\x1c",
)
RECORD = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "a", "type": "string"},
        {"name": "m", "type": {"type": "map", "values": "long"}},
        {"name": "e", "type": {"type": "array", "items": ["null", "R"]}},
        {"name": "x", "type": "double"},
    ],
}


@cache
def list_decoders() -> list[Decoder]:
    """Return decoders of values of Avro and of Protobuf, with the fields of a record that contains itself."""
    message = Message(
        "M",
        {"a": MessageField("a", 1, Kind.STRING, False, False), "x": MessageField("x", 4, Kind.DOUBLE, False, False)},
    )
    message.fields["b"] = MessageField("b", 2, Kind.MESSAGE, False, True, 0, message)
    formats = (
        AvroFormat({0: parse_schema(RECORD)}, is_framed=False),
        ProtobufFormat({0: [((0,), message)]}, is_framed=False),
    )
    plan = make_plan(Field(FieldKind.VALUE, path) for path in ("a", "b.a", "b.b.x", "x"))
    return [Decoder(plan, values=each, arena=Arena(1 << 16, ARENA_BYTES)) for each in formats]


def read_encoded(data: bytes) -> None:
    batch = np.frombuffer(batches.build([Record(0, 1_700_000_000_000, b"k", data, [])]), np.uint8)
    for decoder in list_decoders():
        for piece in decoder.decode(batch):
            assert isinstance(piece, Malformed) or len(piece) <= 1


def list_batches() -> list[bytes]:
    rows = [Record(i, 1_700_000_000_000 + i, b"k", value, [(b"to", b"a")]) for i, value in enumerate(VALUES)]
    return [*(batches.build(rows, codec=codec, xerial=True) for codec in range(5)), build_tiny(4_000)]


def read_value(data: bytes) -> None:
    """The input as the value of a record that is sound otherwise."""
    row = Record(0, 1, None, data, [(b"to", data[:99])])
    read_batches(batches.build([row]))


# files and pages

SQL = (
    b"a = 1 AND b IN ('x', 'y') OR NOT (c LIKE 'd%' ESCAPE '!')", b"[a.b] IS NOT NULL AND -c * 2 + 3 >= 4.5E3 % 7",
    b"x <> 'it''s' AND TRUE", b"NOT a",
)  # fmt: skip
FILTERS = replace(TEXTS, lines=30_000, lines_per_byte=80, us_per_byte=30)
"""The parser takes 240 lines for each token, and a chain of operators is refused once it is too deep, after some 24,000."""
FILES = Budget(lines=20_000, lines_per_byte=800, bytes=1_000_000, bytes_per_byte=3_000, us_per_byte=200)
"""A YAML parser in Python takes hundreds of lines for each byte. Files come from operators, in the size that they have."""


def read_filter(data: bytes) -> None:
    parse_filter(data.decode(errors="surrogateescape"))


STREAM = b"""# a stream
name: FLIGHTS
topics: [flights, {topic: others, partitions: [0, 1]}]
subject: {template: "flights.{header:origin}.{value:a.b}", empty: skip}
properties:
  delay: {type: double, value: a.delay}
on_corrupt: stop
"""
TAGGED = b"""%YAML 1.2
---
a: !!int 0x1f
b: [!!float .5, !!float 1, !!bool true, !!null ~, !!timestamp 2020-01-01]
c: !!map {d: !!seq [!!str 1], !!str e: "\\U0001F600"}
"""
"""YAML with a tag before each value, which has to fit."""


def read_file(data: bytes) -> None:
    document = parse_document("file.yaml", data.decode("utf-8", errors="replace"))
    for model in (StreamConfig, ConsumerConfig):
        _, problems = validate(model, document)
        " ".join(map(str, problems))


@cache
def list_surfaces() -> list[Surface]:
    """Every surface; the samples are made at the first call."""
    unreadable = records.Unreadable
    return [
        Surface("acks", read_ack, ACKS),
        Surface(
            "pulls",
            parse_pull,
            [b"5", b"-5", b"+5", b'{"batch": 5, "expires": 1000000000, "no_wait": true, "group": "g"}'],
        ),
        Surface("replies", read_reply, REPLIES),
        Surface("control", read_control, list_control(), (unreadable, ConfigError)),
        Surface("requests", read_open_request, OPEN, (unreadable,)),
        Surface("state", read_state, list_state(), (StateUnreadable,)),
        Surface("machines", snapshot.decode, list_snapshots(), (snapshot.SnapshotUnreadable,)),
        Surface("plans", job_plan_codec.decode_plan, list_plans(), (StateUnreadable,)),
        Surface("index", read_index, list_index(), (), replace(TEXTS, bytes=4 << 20)),
        Surface("fleet", read_status, list_statuses()),
        Surface("batches", read_batches, list_batches(), (), BATCHES),
        Surface("ack batches", read_ack_batches, list_ack_batches(), (), WRITTEN),
        Surface("control batches", read_control_batches, list_batches(), (), WRITTEN),
        Surface("values", read_value, VALUES, (), replace(TEXTS, bytes=4 * ARENA_BYTES)),
        Surface("encoded values", read_encoded, ENCODED, (), replace(TEXTS, bytes=4 * ARENA_BYTES)),
        Surface("filters", read_filter, SQL, (FilterSyntaxError,), FILTERS),
        Surface("pages", lambda data: read_request(data, SPLIT), list_requests(SPLIT)),
        Surface("committed offsets", read_committed, list_committed()),
        Surface("files", read_file, [STREAM, TAGGED], (ConfigError,), FILES, 3_000),
    ]
