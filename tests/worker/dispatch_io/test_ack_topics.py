"""How much of an ack topic is taken at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pytest

from overlay.dispatch.ack_offsets import AckOffsets
from overlay.kafka.fetched import Fetched, log_position_after
from overlay.kafka.log_position import LogPosition
from overlay.metrics import Metrics
from overlay.scan import Decoder, Fault, Malformed, make_plan
from overlay.scan.header import split
from overlay.state.shard_state import StreamPartition
from overlay.worker.dispatch_io import ack_topics
from overlay.worker.dispatch_io.ack_topics import MOST_RECORDS, AckTopics
from tests.oracle.batches import Record
from tests.support.batches import build, empty, end_marker
from tests.support.tiny_records import build_tiny

ACKS: StreamPartition = ("S", ("acks", 0))
AFTER = LogPosition(9_000_000)


@dataclass
class Fetches:
    """What comes of a partition, one fetch after the other."""

    left: list[Fetched]
    sought: list[int] = field(default_factory=list)
    """Where the reading went on at another place than behind what was fetched."""

    def seek(self, position: int) -> None:
        self.sought.append(position)

    def take(self) -> Fetched | None:
        return self.left.pop(0) if self.left else None


def make_topics(*fetches: Fetched) -> AckTopics:
    start = LogPosition(fetches[0].position)
    topics = AckTopics(cast("Any", None), Metrics(), {ACKS: AckOffsets(start.position)}, {ACKS: start}, {})
    topics._partition_fetches[ACKS] = cast("Any", Fetches(list(fetches)))
    return topics


def as_fetched(position: int, *batches: bytes, aborted: tuple[tuple[int, int], ...] = ()) -> Fetched:
    data = np.frombuffer(b"".join(batches), np.uint8)
    found = split(data)
    pairs = np.array(aborted, np.int64).reshape(-1, 2)
    unreadable = found.base_offset if found.fault else -1
    end = log_position_after(found.batches, position)
    return Fetched(position, data, found.batches, pairs, AFTER.position, 0, end, unreadable)


def list_offsets(fetched: Fetched) -> list[int | str]:
    offsets: list[int | str] = []
    for piece in Decoder(make_plan()).decode(fetched.data, fetched.position, aborted=fetched.aborted):
        offsets += [piece.fault.text] if isinstance(piece, Malformed) else piece.offset.tolist()
    return offsets


async def take_all(topics: AckTopics) -> list[Fetched]:
    parts: list[Fetched] = []
    while taken := await topics.take():
        ((partition, part),) = taken
        assert partition == ACKS
        assert topics.positions[ACKS] == (part.log_position if part.unreadable < 0 else LogPosition(part.reach))
        parts.append(part)
    return parts


async def test_a_fetch_of_very_many_records_is_taken_in_parts() -> None:
    each = MOST_RECORDS * 2 // 5
    fetched = as_fetched(0, *(build_tiny(each, base_offset=each * number) for number in range(5)))
    parts = await take_all(make_topics(fetched, as_fetched(5 * each, build_tiny(3, base_offset=5 * each))))
    assert [list_offsets(part) for part in parts] == [
        list(range(2 * each)),
        list(range(2 * each, 4 * each)),
        list(range(4 * each, 5 * each)),
        list(range(5 * each, 5 * each + 3)),
    ]
    assert parts[2].log_position == fetched.log_position


async def test_a_batch_of_more_records_is_taken_alone() -> None:
    parts = await take_all(
        make_topics(as_fetched(0, build_tiny(MOST_RECORDS + 1), build_tiny(1, base_offset=MOST_RECORDS + 1)))
    )
    assert [len(list_offsets(part)) for part in parts] == [MOST_RECORDS + 1, 1]


@pytest.mark.parametrize("most", [1, 2, 3, 100])
@pytest.mark.parametrize("position", [0, 1, 5])
async def test_parts_have_together_what_the_fetch_has(
    most: int, position: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A marker in an earlier part ends the aborted transaction, and what cannot be read is in one part."""
    monkeypatch.setattr(ack_topics, "MOST_RECORDS", most)
    batches = [
        build([Record(at, 0, b"k", b"v", []) for at in (0, 1)], transactional=True, producer_id=7),
        end_marker(2, 7, commit=False),
        build([Record(3, 0, b"k", b"v", [])], base_offset=3, transactional=True, producer_id=7),
        build([Record(at, 0, b"k", b"v", []) for at in (4, 5)], base_offset=4),
        end_marker(6, 7, commit=True),
        build([Record(7, 0, b"k", b"v", [])], base_offset=7, crc=1),
        empty(8, 2),
        build([Record(11, 0, b"k", b"v", [])], base_offset=11, magic=7),
    ]
    fetched = as_fetched(position, *batches, aborted=((7, 0),))
    topics = make_topics(fetched)
    parts = await take_all(topics)
    assert [offset for part in parts for offset in list_offsets(part)] == list_offsets(fetched)
    assert parts[-1].reach == fetched.reach
    assert cast("Fetches", topics._partition_fetches[ACKS]).sought == [12]
    assert len(parts) == 1 or most < 100


@pytest.mark.parametrize("position", [11, 12, 13])
async def test_a_batch_whose_header_cannot_be_read_is_passed(position: int) -> None:
    """It is unknown where it ends, so the broker may return it again for the offset behind."""
    topics = make_topics(as_fetched(position, build([Record(11, 0, b"k", b"v", [])], base_offset=11, magic=7)))
    (part,) = await take_all(topics)
    assert list_offsets(part) == [Fault.MAGIC.text]
    assert topics.positions[ACKS] == LogPosition(position + 1)
    assert cast("Fetches", topics._partition_fetches[ACKS]).sought == [position + 1]
