"""num_pending in tokens against counting the log: exact or 0, and exact wherever headers or the end of the log can tell."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.config.consumer import PartitionBy
from overlay.config.stream import StreamConfig
from overlay.filter import compile_sql
from overlay.index.topic import Index
from overlay.kafka.fetched import Fetched, log_position_after
from overlay.output.assemble import make_envelope
from overlay.output.batch_builder import OutputTopic
from overlay.scan.codec import Codec
from overlay.scan.decode import NO_STOP
from overlay.scan.header import split
from overlay.state.shard_state import ConsumerId
from overlay.subject import Pattern
from overlay.worker.cursors.skip_route import plan_route
from overlay.worker.round.pending_estimate import PendingEstimate
from overlay.worker.round.pipeline import Pipeline
from overlay.worker.round.task import Reader, RoundResult, Task
from tests.index.partitions import Record, forget, say, seal, stream
from tests.oracle import batches as raw
from tests.oracle.push import TOKEN, parse_token
from tests.support.batches import build
from tests.support.kafka import NewTopicFixture
from tests.worker.kept.test_indexes import await_indexed
from tests.worker.scenes import Scene, await_caught_up, await_state, produce, read_committed, serve

NOW = 1_700_000_000_000
SOURCE, OTHER = ("t", 0), ("t", 1)
NUMBER = {"type": "long", "from": "{value:n}"}
CONFIG = stream(subject={"key": True}, properties={"n": NUMBER}, index={"zones": ["n"]})
SUBJECTS = ("a.x", "a.y", "b", None)
MARKER = "marker"


def make_reader(name: str, *patterns: str, sql: str = "", has_machine: bool = False) -> Reader:
    envelope = make_envelope("S", name, full=False, source_time=False)
    output_topic = OutputTopic("out", 1, PartitionBy.KEY, 1_048_588, Codec.NONE, True, envelope)
    accepts = compile_sql(sql, CONFIG.properties) if sql else None
    return Reader(
        ("S", name),
        tuple(map(Pattern.parse, patterns)),
        None if has_machine else output_topic,
        accepts,
        has_machine=has_machine,
    )


@dataclass
class Log:
    """A partition: batches of (subject, number), or MARKER for the end of a transaction."""

    batches: list[list[tuple[str | None, int]] | str] = field(default_factory=list)

    def size(self, count: int) -> int:
        """The offset behind the first batches."""
        return sum(1 if batch == MARKER else len(batch) for batch in self.batches[:count])

    def records(self, first: int = 0, after: int = NO_STOP) -> list[Record]:
        found, offset = [], 0
        for batch in self.batches:
            for each in batch if isinstance(batch, list) else [None]:
                if each is not None and first <= offset < after:
                    found.append(Record(offset, each[0], message=say(n=each[1])))
                offset += 1
        return found

    def list_matches(self, reader: Reader, first: int, after: int) -> list[int]:
        subjects = [(r.offset, r.subject) for r in self.records(first, after) if r.subject is not None]
        return [offset for offset, subject in subjects if any(p.matches(subject) for p in reader.subjects)]

    def fetch(self, first: int, count: int, stable: int, position: int | None = None) -> Fetched:
        """Batches first <= number < first + count, where the log ends behind batch `stable`."""
        data = b""
        for number in range(first, min(first + count, stable)):
            batch, at = self.batches[number], self.size(number)
            if isinstance(batch, str):
                marker = raw.Record(at, NOW, b"\0\0\0\1", b"\0\0\0\0\0\0")
                data += build([marker], base_offset=at, transactional=True, control=True, producer_id=1)
                continue
            records = [
                raw.Record(at + i, NOW, subject.encode() if subject else None, json.dumps({"n": number}).encode())
                for i, (subject, number) in enumerate(batch)
            ]
            data += build(records, base_offset=at, transactional=True, producer_id=1)
        buf = np.frombuffer(data, np.uint8)
        found, at = split(buf).batches, self.size(first) if position is None else position
        return Fetched(at, buf, found, np.empty((0, 2), np.int64), self.size(stable), 0, log_position_after(found, at))

    def make_index(self, config: StreamConfig, ends: Sequence[int], lost: frozenset[int] = frozenset()) -> Index:
        """Chunks that end behind these batches; those in `lost` do not count their subjects."""
        index = Index(config)
        for i, (low, high) in enumerate(zip([0, *ends], ends, strict=False)):
            first, after = self.size(low), self.size(high)
            header = seal(config, self.records(first, after), first, after)
            index.of(SOURCE).append(forget(header, "counts") if i in lost else header)
        return index


def read_pending(outcome: RoundResult, reader: Reader) -> dict[int, int]:
    """num_pending by source offset."""
    found = {}
    for consumer, outgoing in outcome.batches:
        if consumer == (reader.id,):
            (batch,) = raw.parse(outgoing.batch.build())
            for record in batch.records:
                token = parse_token(dict(record.headers)[TOKEN] or b"")
                found[token.sequence - 1] = token.pending
    return found


READERS = (
    make_reader("a", "a.*"),
    make_reader("all", ">"),
    make_reader("b", "b"),
    make_reader("sql", "a.x", "b", sql="n > 7"),
    make_reader("machine", "a.>", has_machine=True),
    make_reader("strict", ">", sql="n > 8", has_machine=True),
)
rows = st.lists(st.tuples(st.sampled_from(SUBJECTS), st.integers(0, 9)), min_size=1, max_size=5)
batches = st.one_of(rows, rows, st.just(MARKER))


@st.composite
def logs(draw: st.DrawFn) -> Log:
    return Log(draw(st.lists(batches, min_size=1, max_size=14)))


@settings(max_examples=250, deadline=None)
@given(logs(), st.data())
def test_tokens_say_what_lies_ahead_or_nothing(log: Log, data: st.DataObject) -> None:
    """Consumers catch up together by the index and go on at the tail while the log grows."""
    total = len(log.batches)
    stable = data.draw(st.integers(1, total))
    ends = sorted(data.draw(st.sets(st.integers(1, stable), max_size=5)))
    lost = data.draw(st.frozensets(st.integers(0, 5), max_size=1))
    index = log.make_index(CONFIG, ends, lost)
    readers = data.draw(st.lists(st.sampled_from(READERS), min_size=1, max_size=3, unique_by=id))
    begin = data.draw(st.integers(0, log.size(stable) - 1))
    pipeline = Pipeline({"S": CONFIG}, {}, pending_estimate=PendingEstimate({"S": CONFIG}, {"S": index}))
    position, told = begin, dict.fromkeys((reader.id for reader in readers), 0)
    counted: set[ConsumerId] | None = None
    while position < log.size(total):
        route = plan_route(readers, CONFIG, index.of(SOURCE), position, NOW)
        if route is not None:
            position = route.find_next(position, log.size(stable))
        first = next((i for i in range(stable) if log.size(i + 1) > position), None)
        if first is None:
            stable = data.draw(st.integers(min(stable + 1, total), total))
            if position >= log.size(total):
                break
            continue
        if counted is None:  # who wants nothing at first is counted for from the midst of a chunk on
            counted = {reader.id for reader in readers if log.list_matches(reader, position, log.size(first + 1))}
        fetched = log.fetch(first, data.draw(st.integers(1, 4)), stable, position)
        end, reached = log.size(stable), fetched.next_offset
        outcome = pipeline.run([Task("S", SOURCE, fetched, position, NO_STOP, tuple(readers))], NOW)
        for reader in readers:
            is_known = reader.id in counted and reader.filter is None and is_whole(log, ends, lost, begin, stable)
            if reader.has_machine:
                before = told[reader.id]
                offered = sum(offer.rows.size for _, offer in outcome.offers if offer.consumer == reader.id)
                told[reader.id] = outcome.beyond.get(reader.id, max(before - offered, 0))
                if reached == end:
                    assert told[reader.id] == 0
                elif is_known and offered:
                    assert told[reader.id] == len(log.list_matches(reader, reached, end))
                continue
            for offset, pending in read_pending(outcome, reader).items():
                truth = len(log.list_matches(reader, offset + 1, end))
                known = is_last_slice(log, offset, stable) and reached == end
                known |= is_known
                assert pending == truth if known else pending in (0, truth), (reader.id, offset)
        position = outcome.progress[0].log_position.position
        stable = data.draw(st.integers(stable, total))


def is_whole(log: Log, ends: Sequence[int], lost: frozenset[int], begin: int, stable: int) -> bool:
    """Whether headers tell of everything from where a consumer began, and it began where a chunk does."""
    starts = [0, *map(log.size, ends)]
    counted = not any(i < len(ends) for i in lost)
    return begin in starts[:-1] and counted and bool(ends) and starts[-1] == log.size(stable)


def is_last_slice(log: Log, offset: int, stable: int) -> bool:
    """Whether no end of a transaction stands between a record and the last record of the log."""
    numbers = [i for i in range(stable) if log.size(i + 1) > offset]
    kinds = [log.batches[i] == MARKER for i in numbers]
    return kinds == sorted(kinds)


TEN = Log([[("a.x", n), ("b", n)] for n in range(5)])


@pytest.mark.parametrize(
    ("ends", "stable", "compacted", "wanted"),
    [
        ([], 5, (), [0, 0, 0]),
        ([5], 5, (), [9, 4, 3]),
        ([2, 5], 5, (), [9, 4, 3]),
        ([2, 5], 5, ("t",), [0, 0, 0]),
        ([4], 5, (), [0, 0, 0]),
    ],
    ids=["no index", "one chunk", "chunks", "a compacted topic", "an index that ends too early"],
)
def test_behind_the_end(ends: list[int], stable: int, compacted: tuple[str, ...], wanted: list[int]) -> None:
    """The first three batches of five: tokens of the first record for everybody, and of the last two for the picky."""
    pending_estimate = PendingEstimate({"S": CONFIG}, {"S": TEN.make_index(CONFIG, ends)}, compacted)
    pipeline, readers = Pipeline({"S": CONFIG}, {}, pending_estimate=pending_estimate), (READERS[1], READERS[2])
    outcome = pipeline.run([Task("S", SOURCE, TEN.fetch(0, 3, stable), 0, NO_STOP, readers)], NOW)
    everybody, picky = (read_pending(outcome, reader) for reader in readers)
    assert [everybody[0], picky[1], picky[3]] == wanted
    assert pending_estimate.find(READERS[2].id, SOURCE) is None  # the round is not over yet
    pending_estimate.publish()
    sight = pending_estimate.find(READERS[2].id, SOURCE)
    if not ends:
        assert sight is None
    else:
        assert sight is not None and (sight.count, sight.is_exact) == ({4: 1}.get(ends[-1], 2), bool(wanted[0]))


def test_last_messages_count_what_is_left_of_them() -> None:
    only, reader = np.array([2, 5, 6]), READERS[1]
    for ends, stable, wanted in ([], 4, [2, 1, 0]), ([], 5, [0, 0, 0]), ([4, 5], 5, [4, 3, 2]):
        pending_estimate = PendingEstimate({"S": CONFIG}, {"S": TEN.make_index(CONFIG, ends)})
        task = Task("S", SOURCE, TEN.fetch(0, 4, stable), 0, 8, (reader,), only)
        outcome = Pipeline({"S": CONFIG}, {}, pending_estimate=pending_estimate).run([task], NOW)
        assert list(read_pending(outcome, reader).values()) == wanted


def test_other_partitions_count() -> None:
    """At the end of them there is nothing; headers tell of the rest, and where nothing does the sum is not known."""
    reader, fetched = READERS[2], TEN.fetch(2, 3, 5)
    task = Task("S", SOURCE, fetched, 4, NO_STOP, (reader,), cursor_group=1)
    index = TEN.make_index(CONFIG, [])
    index.chunks[OTHER] = TEN.make_index(CONFIG, [3, 5]).of(SOURCE)
    for other, position, end, wanted in (
        (("t", 2), 7, 7, [2, 1, 0]),
        (("t", 2), 6, 7, [0, 0, 0]),
        (("t", 2), 0, -1, [0, 0, 0]),
        (OTHER, 6, 10, [4, 3, 2]),
        (OTHER, 6, 12, [0, 0, 0]),
        (OTHER, 10, 10, [2, 1, 0]),
    ):
        pending_estimate = PendingEstimate({"S": CONFIG}, {"S": index})
        outcome = Pipeline({"S": CONFIG}, {}, pending_estimate=pending_estimate).run(
            [replace(task, others={other: (position, end)})], NOW
        )
        assert list(read_pending(outcome, reader).values()) == wanted, (other, position, end)


def test_partitions_of_a_round_see_how_far_the_others_came() -> None:
    """What another task of the round has read is not ahead any more."""
    reader, half = READERS[1], TEN.fetch(0, 5, 5)
    first = Task("S", OTHER, half, 0, NO_STOP, (reader,), cursor_group=3, others={SOURCE: (0, 10)})
    second = Task("S", SOURCE, half, 0, NO_STOP, (reader,), cursor_group=3, others={OTHER: (0, 10)})
    pipeline = Pipeline({"S": CONFIG}, {}, pending_estimate=PendingEstimate({"S": CONFIG}, {}))
    outcome = pipeline.run([first, second], NOW)
    tokens = [
        parse_token(dict(r.headers)[TOKEN] or b"")
        for _, o in outcome.batches
        for r in raw.parse(o.batch.build())[0].records
    ]
    assert [token.pending for token in tokens] == [0] * 10 + list(range(9, -1, -1))


@pytest.mark.parametrize("partitions", [1, 2])
def test_through_a_service(scene: Scene, new_topic: NewTopicFixture, partitions: int) -> None:
    """A consumer that comes later to a topic that is indexed."""
    topic = new_topic(partitions=partitions)
    for partition in range(partitions):
        produce(scene.bootstrap, topic, ["a", "b", "a", None] * 100, partition=partition)
    scene.add_stream("S", topic, index={"chunk_records": 64, "chunk_age": "200ms"})
    with serve(scene, wait=False):
        await_indexed(scene, topic, 400)
    output = scene.add_consumer("S", "plain", "t.a")
    letters = scene.add_consumer("S", "acked", "t.a", ack_policy="explicit", max_ack_pending=20)
    with serve(scene) as served:
        await_caught_up(served, "plain")
        found = await_state(served, "plain", lambda found: "num_pending" in found, "knows what lies ahead")
        assert (found["num_pending"], found["num_pending_is"]) == (0, "exact")
        total = 200 * partitions
        acked = await_state(
            served, "acked", lambda found: found["acks"]["num_pending"] == total - 20, "has the rest ahead of it"
        )
        assert acked["num_pending_is"] == "exact"
    pending = [record.token.pending for record in read_committed(scene.bootstrap, output)]
    truth = list(range(total - 1, -1, -1))
    assert all(said in (0, true) for said, true in zip(pending, truth, strict=True))
    assert pending[-1] == 0 and (pending == truth or (partitions > 1 and sum(map(bool, pending)) > total // 2))
    assert len(read_committed(scene.bootstrap, letters)) == 20


@pytest.mark.parametrize(
    ("position", "wanted"), [(6, [2, 1]), (4, [0, 0])], ids=["to the next chunk", "into the midst of one"]
)
def test_a_filter_that_leaves_out_chunks(position: int, wanted: list[int]) -> None:
    """What it has passed over is not ahead of it; of a part of a chunk it is not known how much that was."""
    log = Log([[("b", 9), ("b", 9)], [("b", 0)] * 4, [("b", 9), ("b", 9)], [("b", 9)]])
    reader = make_reader("sql", "b", sql="n > 8")
    index = log.make_index(CONFIG, [1, 2, 3, 4])
    pipeline = Pipeline({"S": CONFIG}, {}, pending_estimate=PendingEstimate({"S": CONFIG}, {"S": index}))
    for fetched, at, found in (
        (log.fetch(0, 1, 4), 0, [8, 7]),
        # another consumer's cursor was joined there
        (log.fetch(1, 2, 4, position) if position == 4 else log.fetch(2, 1, 4), position, wanted),
    ):
        outcome = pipeline.run([Task("S", SOURCE, fetched, at, NO_STOP, (reader,))], NOW)
        assert list(read_pending(outcome, reader).values()) == found


def test_what_another_partition_leaves_out_is_not_ahead() -> None:
    """A consumer with a filter leaps over a chunk of one partition; what it is given from another one tells of that."""
    reader = replace(READERS[1], filter=compile_sql("n >= 0", CONFIG.properties))
    index = TEN.make_index(CONFIG, [])
    index.chunks[OTHER] = TEN.make_index(CONFIG, [4, 5]).of(SOURCE)
    pending_estimate = PendingEstimate({"S": CONFIG}, {"S": index})
    pipeline = Pipeline({"S": CONFIG}, {}, pending_estimate=pending_estimate)
    task = Task("S", SOURCE, TEN.fetch(4, 5, 5), 8, NO_STOP, (reader,), cursor_group=1)
    for position, wanted in ((0, [11, 10]), (8, [3, 2])):
        outcome = pipeline.run([replace(task, others={OTHER: (position, 10)})], NOW)
        assert list(read_pending(outcome, reader).values()) == wanted
