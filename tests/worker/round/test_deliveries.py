"""overlay/worker/round/deliveries.py: consumers that share batches, against each with batches of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.config.consumer import PartitionBy
from overlay.config.stream import StreamConfig
from overlay.errors import DeliveryFailed
from overlay.filter import compile_sql
from overlay.kafka.fetched import Fetched, log_position_after
from overlay.output.assemble import make_envelope
from overlay.output.batch_builder import OutputTopic, refuse_oversized
from overlay.scan.codec import Codec
from overlay.scan.decode import NO_STOP
from overlay.scan.header import split
from overlay.state.shard_state import ConsumerId
from overlay.subject import Pattern
from overlay.worker.round.deliveries import share_outputs
from overlay.worker.round.pending_estimate import PendingEstimate
from overlay.worker.round.pipeline import Pipeline
from overlay.worker.round.task import Reader, RoundResult, Task
from tests.oracle.batches import Record, parse
from tests.oracle.push import TOKEN, parse_token
from tests.support.batches import build

SOURCE, NOW = ("source", 0), 1_700_000_000_000
STREAM = StreamConfig.model_validate(
    {
        "name": "S",
        "topics": ("source",),
        "subject": {"template": "t.{header:s}"},
        "properties": {"n": {"type": "long", "from": "{value:n}"}},
    }
)
PATTERNS = ("t.a", "t.b", "t.c", "t.*", ">", "t.none")
FILTERS = ("", "n > 3", "n IS NULL", "n < 0")


def make_reader(
    name: str, pattern: str, sql: str = "", *, partitions: int = 1, first: int = 0, limit: int = 1_048_588,
    full: bool = False, source_time: bool = False,
) -> Reader:  # fmt: skip
    envelope = make_envelope("S", name, full=full, source_time=source_time)
    output_topic = OutputTopic("out", partitions, PartitionBy.KEY, limit, Codec.NONE, True, envelope)
    accepts = compile_sql(sql, STREAM.properties) if sql else None
    return Reader(("S", name), (Pattern.parse(pattern),), output_topic, accepts, first)


def make_fetched(records: Sequence[Record], base: int) -> Fetched:
    buf = np.frombuffer(build(records, base_offset=base, codec=0), np.uint8)
    batches, end = split(buf).batches, base + len(records)
    return Fetched(base, buf, batches, np.empty((0, 2), np.int64), end, 0, log_position_after(batches, base))


def make_fetches(logs: Iterable[Sequence[Record]]) -> list[Fetched]:
    """One fetch for each of these parts of a log, the first from offset 0."""
    fetches, base = [], 0
    for log in logs:
        fetches.append(make_fetched([replace(r, offset=base + i, timestamp=NOW - i) for i, r in enumerate(log)], base))
        base += len(log)
    return fetches


def run(
    readers: Iterable[Reader], fetches: Sequence[Fetched], floors: Mapping[ConsumerId, int] = MappingProxyType({})
) -> RoundResult:
    """One round whose tasks are these fetches; the consumers have been given 10 messages each."""
    readers = tuple(readers)
    pending = PendingEstimate({"S": STREAM}, {})
    pipeline = Pipeline({"S": STREAM}, {reader.id: 10 for reader in readers}, pending_estimate=pending)
    tasks = [Task("S", SOURCE, fetched, fetched.position, NO_STOP, readers, floors=floors) for fetched in fetches]
    return pipeline.run(tasks, NOW)


def read_deliveries(outcome: RoundResult) -> Mapping[tuple[ConsumerId, int], list[tuple[object, ...]]]:
    """What each consumer was given in each output partition, in order; its owners are checked."""
    found: dict[tuple[ConsumerId, int], list[tuple[object, ...]]] = {}
    for owners, outgoing in outcome.batches:
        (batch,) = parse(outgoing.batch.build())
        for record in batch.records:
            token = parse_token(dict(record.headers)[TOKEN] or b"")
            consumer = token.stream, token.consumer
            assert consumer in owners
            given = record.timestamp, record.key, record.value, tuple(record.headers)
            found.setdefault((consumer, outgoing.partition), []).append(given)
    return found


records = st.builds(
    lambda key, subject, value: Record(0, NOW, key, value, [(b"s", subject)]),
    st.sampled_from([None, b"", b"k", b"kk", b"another"]),
    st.sampled_from([b"a", b"b", b"c", b"d"]),
    st.one_of(st.integers(-9, 9).map(lambda n: b'{"n": %d}' % n), st.sampled_from([b"{}", b"x", b"y" * 300])),
)
readers = st.lists(
    st.tuples(st.sampled_from(PATTERNS), st.sampled_from(FILTERS), st.sampled_from([0, 3]), st.booleans()),
    min_size=1,
    max_size=6,
)


@given(
    readers,
    st.lists(st.lists(records, min_size=1, max_size=12), min_size=1, max_size=3),
    st.integers(1, 3),
    st.sampled_from([1_048_588, 4_000]),
    st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_sharing_changes_nothing_for_a_consumer(
    chosen: list[tuple[str, str, int, bool]], logs: list[list[Record]], partitions: int, limit: int, full: bool
) -> None:
    """Records, tokens, timestamps, and the order in each partition; counts, and the last sequences."""
    alone = {
        reader.id: reader
        for number, (pattern, sql, first, source_time) in enumerate(chosen)
        for reader in [
            make_reader(
                f"c{number}" * (number + 1), pattern, sql,
                partitions=partitions, first=first, limit=limit, full=full, source_time=source_time,
            )
        ]
    }  # fmt: skip
    shared, fetches = share_outputs(alone), make_fetches(logs)
    mine, ours = run(alone.values(), fetches), run(shared.values(), fetches)
    assert read_deliveries(ours) == read_deliveries(mine)
    assert ours.counts == mine.counts and ours.sequences == mine.sequences and ours.results == mine.results


@given(
    readers,
    st.lists(st.lists(records, min_size=1, max_size=12), min_size=1, max_size=3),
    st.integers(1, 3),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_a_crowd_is_given_what_each_of_its_readers_would_be_given_alone(
    chosen: list[tuple[str, str, int, bool]], logs: list[list[Record]], partitions: int, shares: bool, is_behind: bool
) -> None:
    """A floor, even one below the log, has the pipeline look at each reader by itself."""
    each = {
        reader.id: reader
        for number, (pattern, sql, first, source_time) in enumerate(chosen)
        for reader in [
            make_reader(f"c{number}", pattern, sql, partitions=partitions, first=first, source_time=source_time)
        ]
    }
    readers = list((share_outputs(each) if shares else each).values())
    # before the end of the log no num_pending is known, at its end it is
    fetches = [replace(each, stable_end=NO_STOP if is_behind else each.next_offset) for each in make_fetches(logs)]
    together, apart = run(readers, fetches), run(readers, fetches, {("S", "c0"): 0})
    assert read_deliveries(together) == read_deliveries(apart)
    assert together.counts == apart.counts and together.sequences == apart.sequences
    assert together.results == apart.results


def test_consumers_of_a_topic_have_their_deliveries_in_one_batch() -> None:
    alone = {reader.id: reader for reader in (make_reader(f"c{number}", "t.*") for number in range(50))}
    shared = share_outputs(alone)
    log = [Record(i, NOW, None, b"{}", [(b"s", b"a")]) for i in range(4)]
    outcome = run(shared.values(), [make_fetched(log, 0)])
    ((owners, outgoing),) = outcome.batches
    assert owners == tuple(alone) and outgoing.batch.count == 200


@pytest.mark.parametrize(
    "other",
    [
        make_reader("other", ">", full=True),
        make_reader("other", ">", source_time=True),
        make_reader("other", ">", partitions=2),
        replace(make_reader("other", ">"), has_machine=True),
        replace(make_reader("other", ">"), dead_letter_topic=make_reader("other", ">").output_topic),
        replace(make_reader("other", ">"), output_topic=None),
    ],
)  # fmt: skip
def test_only_consumers_that_are_alike_share(other: Reader) -> None:
    first, second = make_reader("first", ">"), make_reader("second", ">")
    shared = share_outputs({reader.id: reader for reader in (first, other, second)})
    assert shared[other.id] is other
    assert shared[first.id].output_topic is shared[second.id].output_topic is not first.output_topic
    assert (shared[first.id].recipient, shared[second.id].recipient) == (0, 1)
    assert share_outputs({first.id: first, other.id: other}) == {first.id: first, other.id: other}


def test_a_record_that_is_too_large_names_the_consumer_that_wants_it() -> None:
    noise = np.random.default_rng(1).bytes(4_000)
    alone = [make_reader("small", "t.a", limit=2_000), make_reader("large", "t.b", limit=2_000)]
    shared = share_outputs({reader.id: reader for reader in alone})
    log = [Record(0, NOW, None, b"{}", [(b"s", b"a")]), Record(1, NOW, None, noise, [(b"s", b"b")])]
    outcome = run(shared.values(), [make_fetched(log, 0)])
    with pytest.raises(DeliveryFailed, match="source offset 1 ") as caught:
        refuse_oversized(outcome.batches)
    assert caught.value.consumer == ("S", "large") and caught.value.final
