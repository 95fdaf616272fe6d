"""A job's consumers each read every offset once, in order, whenever they come, leave or come back."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from overlay.kafka.log_position import TopicPartition
from overlay.state.job_plan import BatchPlan, ConsumerPlan, Ends, decode_plan, encode_plan

SOURCES = (("t", 0), ("t", 1), ("u", 0))
NAMES = ("a", "b", "c")

BATCHES = st.lists(
    st.tuples(
        st.lists(st.integers(0, 9), min_size=len(SOURCES), max_size=len(SOURCES)),
        st.sets(st.sampled_from(NAMES)),
        st.integers(1, 12),
        st.booleans(),
    ),
    min_size=1,
    max_size=25,
)
"""For each batch: how far each partition has grown, which consumers the files have, how much a consumer that is behind may
read, and whether the batch is begun twice."""


@given(BATCHES, st.dictionaries(st.sampled_from(NAMES), st.integers(0, 60)))
def test_each_offset_is_read_once_and_in_order(
    batches: list[tuple[list[int], set[str], int, bool]], floors: dict[str, int]
) -> None:
    last: BatchPlan | None = None
    at = dict.fromkeys(SOURCES, 0)
    offsets: dict[str, dict[TopicPartition, int]] = {}
    sequences: dict[str, int] = {}
    for number, (grown, names, limit, is_repeated) in enumerate(batches):
        ends = {source: (at[source], at[source] + more) for source, more in zip(SOURCES, grown, strict=True)}
        at = {source: stop for source, (_, stop) in ends.items()}
        begins = {name: find_begin(name, last, floors) for name in sorted(names)}
        drafts = draft(last, number, ends, begins, limit)
        if is_repeated:
            begun = make_plan(last, number, ends, drafts)
            again = draft(begun, number, ends, begins, limit + 5)
            assert {name: (each.before, each.reads) for name, each in again.items()} == {
                name: (each.before, each.reads) for name, each in drafts.items()
            }
        for name, each in drafts.items():
            offset = offsets.setdefault(name, dict.fromkeys(SOURCES, floors.get(name, 0)))
            for source, (start, stop) in (each.reads or ends).items():
                begin = max(start, each.floors.get(source, 0))
                if begin < stop:
                    assert begin == offset[source], (number, name, source)
                    offset[source] = stop
            assert each.before == sequences.get(name, 0)
            sequences[name] = each.before + 3
        complete = make_plan(last, number, ends, drafts).complete()
        last = decode_plan(encode_plan(complete))
        assert last == complete
        for name, offset in offsets.items():
            position = last.find_position(name)
            assert position is not None
            assert {source: position.offsets[source] for source in SOURCES} == offset
            assert position.sequence == sequences[name]
        left = {name: sum(max(0, at[source] - offsets[name][source]) for source in SOURCES) for name in names}
        assert last.count_behind() == {name: count for name, count in left.items() if count}


def find_begin(name: str, last: BatchPlan | None, floors: Mapping[str, int]) -> ConsumerPlan:
    """Where a consumer begins, as the folder of a job finds it."""
    if last is not None and (known := last.consumers.get(name)) is not None:
        return known
    if last is not None and (left := last.left.get(name)) is not None:
        return ConsumerPlan("", left.sequence, left.sequence, 0, left.offsets, left.claim)
    return ConsumerPlan("", 0, 0, 0, dict.fromkeys(SOURCES, floors.get(name, 0)))


def draft(
    last: BatchPlan | None, number: int, ends: Ends, begins: Mapping[str, ConsumerPlan], limit: int
) -> dict[str, ConsumerPlan]:
    return dict(begins) if last is None else last.draft(number, ends, begins, limit)


def make_plan(last: BatchPlan | None, number: int, ends: Ends, drafts: Mapping[str, ConsumerPlan]) -> BatchPlan:
    """A batch that has three records for each consumer."""
    consumers = {
        name: ConsumerPlan("", each.before, each.before + 3, each.since, each.floors, each.claim, each.reads)
        for name, each in drafts.items()
    }
    left = {} if last is None else last.leave(consumers)
    return BatchPlan(number, 0, "S", "", ends, consumers, {}, left=left)
