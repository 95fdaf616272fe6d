"""Whether what was fetched of the control topic is all that was written, and what happens while it is taken in."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import numpy as np
import pytest

from overlay.control import tail
from overlay.control.records import Misfit
from overlay.control.registry import Registry
from overlay.control.tail import MOST_RECORDS, Tail, has_hole
from overlay.kafka.fetched import Fetched, log_position_after
from overlay.kafka.passed_over import OnPassedOver, PassedOver
from overlay.scan.commit import NO_ABORTS
from overlay.scan.header import split
from tests.control.registries import make_files
from tests.oracle.batches import Record
from tests.support.batches import build
from tests.support.tiny_records import build_tiny


def fetch(position: int, *batches: list[int]) -> Fetched:
    """Return a fetch from a position on, of batches with records at these offsets."""
    texts = [
        build([Record(offset, 0, b"k", b"v", []) for offset in offsets], base_offset=offsets[0]) for offsets in batches
    ]
    return as_fetched(position, *texts)


def as_fetched(position: int, *batches: bytes) -> Fetched:
    data = np.frombuffer(b"".join(batches), np.uint8)
    found = split(data).batches
    return Fetched(position, data, found, NO_ABORTS, 100, 0, log_position_after(found, position))


@pytest.mark.parametrize(
    ("position", "batches", "since", "expected"),
    [
        (3, [[3, 4], [5]], 0, False),
        (4, [[3, 4, 5]], 0, False),
        (3, [[4, 5]], 0, True),
        (3, [[3], [5]], 0, True),
        (3, [[3, 5]], 0, True),
        (0, [[2], [4, 5]], 4, False),
        (0, [[2], [5]], 4, True),
        (0, [[2], [4], [6]], 4, True),
        (0, [[2], [6]], 9, False),
        (0, [], 0, False),
    ],
)
def test_offsets_that_are_missing(position: int, batches: list[list[int]], since: int, expected: bool) -> None:
    assert has_hole(fetch(position, *batches), since) is expected


def make_large(number: int, size: int) -> bytes:
    return build([Record(number, 0, b"zork", bytes(size), [])], base_offset=number, codec=4)


def note_in(counts: dict[str, int]) -> OnPassedOver:
    def note(found: PassedOver) -> None:
        counts[found.reason] = found.count

    return note


@pytest.mark.parametrize("size", [1 << 20, 3 << 20], ids=["within the limit", "beyond the limit"])
async def test_the_event_loop_goes_on_after_each_large_batch(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compressed they are small, so a fetch may have thousands of them."""
    monkeypatch.setattr(tail, "MOST_BYTES", 2 << 20)
    counts: dict[str, int] = {}
    reader = Tail({}, cast("Any", None), Registry(make_files()), note_in(counts))
    fetched = as_fetched(0, *(make_large(number, size) for number in range(10)))
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count_turns())
    await reader._take(fetched, cast("Any", None))
    counting.cancel()
    assert turns >= 10
    assert counts == {(Misfit.KEY if size < tail.MOST_BYTES else Misfit.BATCH).value: 10}


@pytest.mark.parametrize("plain", [False, True])
async def test_a_batch_of_too_many_records_is_counted_by_itself(plain: bool) -> None:
    counts: dict[str, int] = {}
    reader = Tail({}, cast("Any", None), Registry(make_files()), note_in(counts), plain)
    full = build_tiny(MOST_RECORDS, base_offset=MOST_RECORDS + 1)
    await reader._take(as_fetched(0, build_tiny(MOST_RECORDS + 1), full), cast("Any", None))
    assert counts == {Misfit.RECORDS.value: 1, Misfit.KEY.value: MOST_RECORDS}
    assert reader.seen == 2 * MOST_RECORDS + 1
