"""overlay/worker/round/pipeline.py: whole fetch buffers with transactions, markers, gaps and damage, against the oracle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.config.consumer import PartitionBy
from overlay.config.stream import OnCorrupt, StreamConfig
from overlay.filter import compile_sql
from overlay.index.ledger.ledger import Ledger
from overlay.kafka.fetched import Fetched, log_position_after
from overlay.kafka.log_position import LogPosition
from overlay.match import Audience
from overlay.output.assemble import make_envelope
from overlay.output.batch_builder import OutputTopic
from overlay.scan.codec import Codec
from overlay.scan.decode import NO_STOP
from overlay.scan.header import split
from overlay.subject import Pattern
from overlay.worker.round import pipeline as pipeline_module
from overlay.worker.round.pipeline import Pipeline
from overlay.worker.round.task import Reader, RoundResult, Task
from tests.oracle.batches import Record, parse
from tests.oracle.push import TOKEN, parse_token
from tests.support.batches import build
from tests.support.strategies import FetchBuffer, fetch_buffers

SOURCE = ("source", 0)
NOW = 1_700_000_000_000


def make_stream(on_corrupt: OnCorrupt = OnCorrupt.STOP) -> StreamConfig:
    """A stream whose every record has a subject: the topic's name."""
    number = {"type": "long", "from": "{value:n}"}
    return StreamConfig.model_validate(
        {"name": "S", "topics": ("source",), "on_corrupt": on_corrupt, "properties": {"n": number}}
    )


def make_reader(name: str = "c", pattern: str = ">", sql: str = "") -> Reader:
    envelope = make_envelope("S", name, full=False, source_time=False)
    output_topic = OutputTopic("out", 1, PartitionBy.KEY, 1_048_588, Codec.NONE, True, envelope)
    accepts = compile_sql(sql, make_stream().properties) if sql else None
    return Reader(("S", name), (Pattern.parse(pattern),), output_topic, accepts)


def make_fetched(data: bytes, position: int, aborted: Sequence[tuple[int, int]] = ()) -> Fetched:
    buf = np.frombuffer(data, np.uint8)
    pairs = np.array(aborted, np.int64).reshape(-1, 2)
    batches = split(buf).batches
    return Fetched(position, buf, batches, pairs, NO_STOP, 0, log_position_after(batches, position))


def make_task(fetched: Fetched, *readers: Reader, stop: int = NO_STOP) -> Task:
    return Task("S", SOURCE, fetched, fetched.position, stop, readers or (make_reader(),))


def read_offsets(outcome: RoundResult, consumer: str = "c") -> list[int]:
    """Source offsets that a consumer was given, in order, the consumer sequences checked."""
    records: list[Record] = []
    for owners, outgoing in outcome.batches:
        if owners == (("S", consumer),):
            (batch,) = parse(outgoing.batch.build())
            records += batch.records
    tokens = [parse_token(dict(record.headers)[TOKEN] or b"") for record in records]
    last = outcome.sequences.get(("S", consumer), 0)
    assert [token.consumer_sequence for token in tokens] == list(range(last - len(tokens) + 1, last + 1))
    return [token.sequence - 1 for token in tokens]


@given(buffer=fetch_buffers(), data=st.data())
@settings(max_examples=120, deadline=None)
def test_committed_records_once_whatever_the_log_holds(buffer: FetchBuffer, data: st.DataObject) -> None:
    """Also when the reading is cut anywhere and goes on from the log position."""
    # the response of a read-committed fetch ends at the last stable offset
    batches = [b for b in parse(buffer.data) if b.last_offset < buffer.last_stable_offset]
    size = sum(b.batch_length + 12 for b in batches)
    cut = data.draw(st.integers(buffer.first_offset, max(buffer.first_offset, buffer.next_offset)))
    pipeline = Pipeline({"S": make_stream()}, {})
    found, position = [], buffer.first_offset
    for stop in (cut, NO_STOP):
        outcome = pipeline.run([make_task(make_fetched(buffer.data[:size], position, buffer.aborted), stop=stop)], NOW)
        found += read_offsets(outcome)
        assert outcome.corruptions == []
        position = max(position, outcome.progress[0].log_position.position)
    assert found == [record.offset for record in buffer.committed]
    assert position == max([buffer.first_offset, *(b.last_offset + 1 for b in batches)])


def make_batches(damaged: int) -> list[bytes]:
    """Four batches of five records, one of them with a wrong byte."""
    batches = [
        build([Record(at + i, NOW, b"k", b"v" * 50) for i in range(5)], base_offset=at, codec=2)
        for at in range(0, 20, 5)
    ]
    bad = bytearray(batches[damaged])
    bad[-3] ^= 0xFF
    batches[damaged] = bytes(bad)
    return batches


@pytest.mark.parametrize("damaged", range(4))
def test_a_corrupt_batch_stops(damaged: int) -> None:
    pipeline = Pipeline({"S": make_stream()}, {("S", "c"): 7})
    outcome = pipeline.run([make_task(make_fetched(b"".join(make_batches(damaged)), 0))], NOW)
    assert read_offsets(outcome) == list(range(5 * damaged))
    (progress,) = outcome.progress
    assert progress.stopped and progress.log_position == LogPosition(5 * damaged)
    (corruption,) = outcome.corruptions
    assert (corruption.source, corruption.malformed.base_offset, corruption.skipped) == (SOURCE, 5 * damaged, False)


@pytest.mark.parametrize("damaged", range(4))
def test_a_corrupt_batch_is_skipped(damaged: int) -> None:
    pipeline = Pipeline({"S": make_stream(OnCorrupt.SKIP)}, {})
    outcome = pipeline.run([make_task(make_fetched(b"".join(make_batches(damaged)), 0))], NOW)
    assert read_offsets(outcome) == [i for i in range(20) if i // 5 != damaged]
    (progress,) = outcome.progress
    assert not progress.stopped and progress.log_position.position == 20
    assert [corruption.skipped for corruption in outcome.corruptions] == [True]


@pytest.mark.parametrize("cursor_group", [1, 2])
def test_what_comes_behind_a_corrupt_batch_in_sequence_is_put_off_for_machines(cursor_group: int) -> None:
    """In the same cursor group alone, and all parts of a fetch: the first says where its cursor stays."""
    pipeline = Pipeline({"S": make_stream()}, {})
    reader = replace(make_reader(), has_machine=True)
    stopped = replace(make_task(make_fetched(make_batches(0)[0], 0), reader), cursor_group=1)
    other = make_fetched(b"".join(make_batches(3)[:2]), 0)
    parts = [
        replace(make_task(other, reader), source=("source", 1), cursor_group=cursor_group, position=at, stop=at + 5)
        for at in (0, 5)
    ]
    outcome = pipeline.run([stopped, *parts], NOW)
    is_same = cursor_group == 1
    assert [progress.is_put_off for progress in outcome.progress] == [False, is_same, is_same]
    assert [progress.log_position.position for progress in outcome.progress] == ([0, 0, 0] if is_same else [0, 5, 10])
    assert len(outcome.offers) == (0 if is_same else 2)


def test_damage_beyond_the_stop_is_not_met() -> None:
    pipeline = Pipeline({"S": make_stream()}, {})
    outcome = pipeline.run([make_task(make_fetched(b"".join(make_batches(2)), 0), stop=10)], NOW)
    assert outcome.corruptions == [] and outcome.progress[0].log_position.position == 10


def test_the_log_position_is_the_batch_s_when_all_of_it_was_read() -> None:
    data = make_batches(0)[1]
    pipeline = Pipeline({"S": make_stream()}, {})
    whole = pipeline.run([make_task(make_fetched(data, 5))], NOW).progress[0].log_position
    assert whole == LogPosition(10, 0, int.from_bytes(data[17:21], "big"))
    assert pipeline.run([make_task(make_fetched(data, 5), stop=8)], NOW).progress[0].log_position == LogPosition(8)


def test_two_tasks_of_one_consumer_number_on() -> None:
    """Two partitions in a round, then another round: one run of consumer sequences."""
    pipeline, reader, batches = Pipeline({"S": make_stream()}, {}), make_reader(), make_batches(3)
    other = Task("S", ("source", 1), make_fetched(batches[1], 5), 5, NO_STOP, (reader,))
    outcome = pipeline.run([make_task(make_fetched(batches[0], 0), reader), other], NOW)
    assert read_offsets(outcome) == list(range(10)) and outcome.sequences == {("S", "c"): 10}
    assert pipeline.run([make_task(make_fetched(batches[2], 10), reader)], NOW).sequences == {("S", "c"): 15}


def make_numbers(count: int, codec: int = 3) -> Fetched:
    """Values with a running number in a field; every fifth has a text there instead."""
    values = [b'{"n": "x"}' if i % 5 == 4 else b'{"n": %d}' % i for i in range(count)]
    records = [Record(i, NOW - i, None, value) for i, value in enumerate(values)]
    return make_fetched(build(records, codec=codec), 0)


def test_filters_take_their_consumers_records_out() -> None:
    readers = [make_reader("a", sql="n >= 7"), make_reader("b"), make_reader("c", sql="n < 3"), make_reader("d", "x")]
    outcome = Pipeline({"S": make_stream()}, {}).run([make_task(make_numbers(20), *readers)], NOW)
    assert read_offsets(outcome, "a") == [i for i in range(7, 20) if i % 5 != 4]
    assert read_offsets(outcome, "b") == list(range(20))
    assert read_offsets(outcome, "c") == [0, 1, 2]
    assert outcome.counts.delivered == {("S", "a"): 10, ("S", "b"): 20, ("S", "c"): 3}
    assert outcome.results == {
        (("S", "a"), "true"): 10, (("S", "a"), "false"): 6, (("S", "a"), "unknown"): 4,
        (("S", "c"), "true"): 3, (("S", "c"), "false"): 13, (("S", "c"), "unknown"): 4,
    }  # fmt: skip
    assert outcome.nulls == {(("S", "a"), "unparsable"): 4, (("S", "c"), "unparsable"): 4}


def test_a_filter_that_takes_nothing_moves_the_position_all_the_same() -> None:
    pipeline = Pipeline({"S": make_stream()}, {("S", "c"): 7})
    outcome = pipeline.run([make_task(make_numbers(20), make_reader(sql="n > 100"))], NOW)
    assert outcome.batches == [] and outcome.sequences == {}
    assert outcome.progress[0].log_position.position == 20
    assert (
        pipeline.run([make_task(make_numbers(20), make_reader(sql="n > 100 OR p.to = 'x'"))], NOW).counts.delivered
        == {}
    )


def test_only_what_a_consumer_may_be_given_is_evaluated() -> None:
    """A snapshot's last messages, and what lies above a consumer's floor."""
    last = make_reader(sql="n >= 3")
    task = Task("S", SOURCE, make_numbers(20), 0, NO_STOP, (last,), np.array([1, 3, 6]))
    outcome = Pipeline({"S": make_stream()}, {}).run([task], NOW)
    assert read_offsets(outcome) == [3, 6]
    assert outcome.results == {(last.id, "true"): 2, (last.id, "false"): 1}
    task = Task("S", SOURCE, make_numbers(20), 0, NO_STOP, (last, make_reader("b")), floors={last.id: 18})
    outcome = Pipeline({"S": make_stream()}, {}).run([task], NOW)
    assert read_offsets(outcome) == [18]
    assert read_offsets(outcome, "b") == list(range(20))
    assert outcome.results == {(last.id, "true"): 1, (last.id, "unknown"): 1}


def test_a_filter_sees_the_time_of_the_round() -> None:
    """Records grow older from one to the next by a millisecond."""
    reader = make_reader(sql="UTC() - p.creation_time < 5")
    pipeline = Pipeline({"S": make_stream()}, {})
    assert read_offsets(pipeline.run([make_task(make_numbers(20), reader)], NOW)) == [0, 1, 2, 3, 4]
    assert pipeline.run([make_task(make_numbers(20), reader)], NOW + 3).counts.delivered == {reader.id: 2}


@pytest.mark.parametrize("letters_limit", [1_048_588, 3_000])
def test_what_the_output_can_never_take_lies_in_the_letters(letters_limit: int) -> None:
    """It takes no consumer sequence; a neighbour is given it all the same."""
    noise = np.random.default_rng(1).bytes(4_000)
    records = [Record(i, NOW - i, None, noise if i in (0, 4, 9) else b"x") for i in range(10)]
    plain = make_reader("c")
    assert plain.output_topic is not None
    small = replace(plain.output_topic, max_message_bytes=3_000)
    letters = replace(plain.output_topic, topic="graves", max_message_bytes=letters_limit)
    readers = [replace(plain, output_topic=small, dead_letter_topic=letters), make_reader("d")]
    pipeline = Pipeline({"S": make_stream()}, {})
    outcome = pipeline.run([make_task(make_fetched(build(records, codec=0), 0), *readers)], NOW)
    assert outcome.counts.dead_letters == {(plain.id, "undeliverable"): 3}
    assert outcome.counts.delivered == {plain.id: 7, ("S", "d"): 10}
    dead_letters = [out for consumer, out in outcome.batches if out.topic == "graves" and consumer == (plain.id,)]
    outcome = replace(outcome, batches=[each for each in outcome.batches if each[1].topic != "graves"])
    assert read_offsets(outcome, "c") == [1, 2, 3, 5, 6, 7, 8]
    assert read_offsets(outcome, "d") == list(range(10))
    found = [record for out in dead_letters for batch in parse(out.batch.build()) for record in batch.records]
    headers = [dict(record.headers) for record in found]
    assert [h[b"Overlay-Source-Offset"] for h in headers] == [b"0", b"4", b"9"]
    assert {h[b"Overlay-Dead-Reason"] for h in headers} == {b"undeliverable"}
    keeps_value = letters_limit > 4_000
    assert [record.value for record in found] == [noise if keeps_value else None] * 3
    assert {h.get(b"Nats-Msg-Size") for h in headers} == {None if keeps_value else b"4000"}
    # the next round goes on counting where this one ended
    more = make_fetched(build([Record(10, NOW, None, b"x")], codec=0, base_offset=10), 10)
    assert pipeline.run([make_task(more, readers[0])], NOW).sequences == {plain.id: 8}


def test_index_topics_that_took_a_ledger_entry_or_chunk_header_are_counted() -> None:
    config = make_stream()
    stream = config.model_copy(update={"index": config.index.model_copy(update={"chunk_records": 1_000})})
    task = replace(make_task(make_numbers(20)), indexed=True)
    unnumbered = Pipeline({"S": stream}, {}, {"S": "index"})
    assert not unnumbered.run([task], NOW).counts.index_topics
    assert unnumbered.close(NOW).counts.index_topics == {"index"}
    numbered = Pipeline({"S": stream}, {}, {"S": "index"}, {"S": Ledger()})
    assert numbered.run([replace(task, sequenced=True)], NOW).counts.index_topics == {"index"}


def test_the_screen_of_readers_that_come_again_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets of readers that are met once, such as those of consumers that catch up, push out no screen that is in use."""
    monkeypatch.setattr(pipeline_module, "MOST_SCREENS", 3)
    made: list[int] = []

    def make_audience(*parts: Any) -> Audience:
        made.append(len(made))
        return Audience(*parts)

    monkeypatch.setattr(pipeline_module, "Audience", make_audience)
    pipeline, fetched, steady = Pipeline({"S": make_stream()}, {}), make_numbers(2), (make_reader("steady"),)
    for number in range(9):
        once = make_reader(f"once-{number}")
        pipeline.run([make_task(fetched, *steady), make_task(fetched, once)], NOW)
    assert len(made) == 10
