"""A stream's ledger as any client reads it, decoded by the oracle, and deliveries held against it."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from overlay.kafka.own_topics import index_topic
from tests.oracle.ledger import Run, Twin
from tests.worker.scenes import Scene, Seen, check_tokens, describe_difference, read_committed

STRANGE = b"who knows"
"""At the end of values that a test has written."""

_HEAD = struct.Struct("<BBIqHI")
_RUN = struct.Struct("<Hiqqiq")


def parse_round(value: bytes) -> tuple[int, list[Run]]:
    """First sequence and runs of a ledger record, by the table of docs/index.md."""
    _, _, _, first_sequence, topics, runs = _HEAD.unpack_from(value)
    at, names = _HEAD.size, list[str]()
    for _ in range(topics):
        (size,) = struct.unpack_from("<H", value, at)
        names.append(value[at + 2 : at + 2 + size].decode())
        at += 2 + size
    rows = [_RUN.unpack_from(value, at + i * _RUN.size) for i in range(runs)]
    return first_sequence, [(names[topic], *rest) for topic, *rest in rows]


def read_ledger(scene: Scene, stream: str = "S") -> Twin:
    """The ledger by its topic; nothing in it may contradict the rest."""
    twin = Twin()
    for record in read_committed(scene.bootstrap, index_topic(scene.prefix, stream)):
        if (record.key or b"").startswith(f"run {stream} ".encode()) and not (record.value or b"").endswith(STRANGE):
            assert twin.append(*parse_round(record.value or b"")) == "NONE"
    return twin


def check_in_order(
    found: Sequence[Seen], wanted: Sequence[Seen], ledger: Twin, consumer: str = "c", stream: str = "S"
) -> None:
    """Exactly the wanted records, each once, by their sequences, in an output of one partition."""
    ordered = sorted(found, key=lambda record: record.offset)
    check_tokens(ordered, stream, consumer)
    sequences = [record.token.sequence for record in ordered]
    assert sequences == sorted(set(sequences)), "not in the order of sequences"
    source = {ledger.sequences[(record.topic, record.partition), record.offset]: record for record in wanted}
    assert len(source) == len(wanted)
    assert sequences == sorted(source), describe_difference(sequences, [])
    for record in ordered:
        was = source[record.token.sequence]
        assert (record.key, record.value) == (was.key, was.value)
        assert record.token.time == was.timestamp * 1_000_000
