"""Fetches that are joined or cut are what one fetch would have brought."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from overlay.kafka.fetched import Fetched, join, log_position_after
from overlay.scan import Decoder, Records, make_plan
from overlay.scan.header import split
from tests.oracle.batches import Record
from tests.support.batches import build, end_marker

Spans = Sequence[tuple[int, int]]


def write_log(steps: Sequence[tuple[int, str]]) -> tuple[list[bytes], list[tuple[int, int, int]]]:
    """Return the batches of a log, and its aborted transactions: producer id, first offset and offset of the marker.

    `steps`: of each batch the producer, and what it writes: records of a transaction, or the marker of its end. Batch number n
    has the offsets from 2n on, as if compaction had taken every second record.
    """
    batches: list[bytes] = []
    open: dict[int, int] = {}
    aborted = []
    for number, (producer, what) in enumerate(steps):
        offset = 2 * number
        if what == "records":
            open.setdefault(producer, offset)
            records = [Record(offset, 5, None, b"%d" % offset)]
            batches.append(build(records, base_offset=offset, transactional=True, producer_id=producer))
        else:
            batches.append(end_marker(offset, producer, commit=what == "commit"))
            began = open.pop(producer, None)
            if began is not None and what == "abort":
                aborted.append((producer, began, offset))
    return batches, aborted


def fetch(
    batches: Sequence[bytes], first: int, aborted: Sequence[tuple[int, int, int]], cut_off: bytes = b""
) -> Fetched:
    """Return what a fetch of these batches brings, the first of which is number `first`: with the aborted transactions that
    overlap. `cut_off`: the front of the next batch, which has come with them."""
    data = np.frombuffer(b"".join(batches) + cut_off, np.uint8)
    found = split(data).batches
    start, end = 2 * first, 2 * (first + len(batches))
    overlap = [(producer, began) for producer, began, marker in aborted if began < end and marker >= start]
    position = 0 if first == 0 else start - 1
    pairs = np.array(overlap, np.int64).reshape(-1, 2)
    return Fetched(position, data, found, pairs, 1_000, 0, log_position_after(found, position))


def read(fetched: Fetched) -> list[int]:
    offsets: list[int] = []
    for piece in Decoder(make_plan()).decode(fetched.data, fetched.position, aborted=fetched.aborted):
        assert isinstance(piece, Records)
        offsets += piece.offset.tolist()
    return offsets


STEPS = st.lists(
    st.tuples(st.integers(1, 3), st.sampled_from(["records", "records", "commit", "abort"])), min_size=2, max_size=12
)


@given(STEPS, st.data())
def test_joined_fetches_read_as_one(steps: list[tuple[int, str]], data: st.DataObject) -> None:
    batches, aborted = write_log(steps)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(batches) - 1))))
    bounds = list(zip([0, *cuts], [*cuts, len(batches)], strict=True))
    whole = fetch(batches, 0, aborted)
    fronts = [batch[: data.draw(st.integers(0, len(batch) - 1))] for batch in (*batches, batches[0])]
    joined = join([fetch(batches[start:end], start, aborted, fronts[end]) for start, end in bounds])
    assert read(joined) == read(whole)
    assert (joined.position, joined.log_position, joined.records) == (whole.position, whole.log_position, whole.records)
    assert joined.data.tobytes() == whole.data.tobytes() and not joined.data.flags.writeable
    assert joined.batches.tolist() == whole.batches.tolist()
