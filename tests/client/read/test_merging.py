"""Partitions merged by the ledger against one sort of everything, however they are read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.client.read.merging import Merge
from overlay.client.read.offset_ranges import OffsetRange
from overlay.client.read.range_reading import RangeReading
from overlay.client.read.row_filter import FilteredRows
from overlay.client.read.sequences import LAST, LedgerOrder, find_places
from overlay.config.stream import StreamConfig
from overlay.index.ledger.allocate import allocate
from overlay.index.topic import Index
from overlay.kafka.log_position import LogPosition, TopicPartition

SOURCES: list[TopicPartition] = [("t", 0), ("t", 1), ("u", 0)]
SCHEMA = pa.schema([("place", pa.int64())])


def make_order(rounds: list[dict[TopicPartition, int]]) -> LedgerOrder:
    index = Index(StreamConfig.model_validate({"name": "S", "topics": ("t", "u")}))
    ends = dict.fromkeys(SOURCES, 0)
    for more in rounds:
        for source, count in more.items():
            ends[source] += count
        made = allocate(index.ledger.standing, {source: (0, LogPosition(end)) for source, end in ends.items()})
        if made is not None:
            index.ledger.append(made)
    return LedgerOrder("i", index)


def make_part(order: LedgerOrder, source: TopicPartition, offsets: list[int], position: int) -> FilteredRows:
    part = FilteredRows(position)
    if offsets:
        _, places = find_places(order.ledger, source, np.array(offsets))
        part.places.append(places)
        part.batches.append(pa.RecordBatch.from_arrays([pa.array(places)], schema=SCHEMA))
    return part


def make_range_reading(offset_range: OffsetRange) -> RangeReading:
    return cast(
        RangeReading,
        SimpleNamespace(offset_range=offset_range, partition_fetch=SimpleNamespace(urgent=False, ready=None)),
    )


@given(
    rounds=st.lists(st.dictionaries(st.sampled_from(SOURCES), st.integers(1, 6), max_size=3), max_size=8),
    beyond=st.fixed_dictionaries({source: st.integers(0, 3) for source in SOURCES}),
    data=st.data(),
)
@settings(max_examples=200, deadline=None)
def test_one_order(
    rounds: list[dict[TopicPartition, int]], beyond: dict[TopicPartition, int], data: st.DataObject
) -> None:
    """`beyond`: offsets that have no sequence. Rows are left out at will, and read in parts of any size."""
    order = make_order(rounds)
    ends = {source: order.ledger.end_of(source) + beyond[source] for source in SOURCES}
    passing = {s: [o for o in range(end) if data.draw(st.booleans())] for s, end in ends.items()}
    at = {source: 0 for source in SOURCES if ends[source]}
    range_readings = {source: make_range_reading(OffsetRange(source, 0, ends[source])) for source in at}
    merge = Merge(order, SCHEMA, [range_reading.offset_range for range_reading in range_readings.values()])
    found: list[int] = []
    while range_readings:
        merge.keep(range_readings.values())
        for range_reading in merge.choose(list(range_readings.values())):
            source = range_reading.offset_range.source
            stop = data.draw(st.integers(at[source] + 1, ends[source]))
            rows = [offset for offset in passing[source] if at[source] <= offset < stop]
            merge.add(source, make_part(order, source, rows, stop))
            at[source] = stop
            found += [place for batch in merge.take() for place in batch["place"].to_pylist()]
            if stop == ends[source]:
                del range_readings[source]
    found += [place for batch in merge.finish() for place in batch["place"].to_pylist()]
    wanted = [find_places(order.ledger, s, np.array(rows))[1].tolist() for s, rows in passing.items() if rows]
    assert found == sorted(place for places in wanted for place in places)


def test_places_of_what_has_no_sequence() -> None:
    """Records whose round is lost stand with those before them, records to come behind all."""
    order = make_order([{SOURCES[0]: 2}])
    made = allocate(order.ledger.standing, {SOURCES[0]: (4, LogPosition(6))})
    assert made is not None and not order.ledger.append(made)
    sequences, places = find_places(order.ledger, SOURCES[0], np.arange(8))
    assert sequences.tolist() == [1, 2, 0, 0, 3, 4, 0, 0]
    assert places.tolist() == [1, 2, 2, 2, 3, 4, LAST, LAST]
