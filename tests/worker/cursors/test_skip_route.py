"""What consumers that catch up leave out: by the chunks of a partition, and through a running service."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from overlay.index.topic import Index
from overlay.kafka.admin import Admin
from overlay.kafka.fetched import Fetched
from overlay.kafka.fetcher import Fetcher
from overlay.kafka.log_position import LogPosition
from overlay.kafka.partition_fetch import PartitionFetch
from overlay.metrics import Metrics
from overlay.scan.commit import NO_ABORTS
from overlay.scan.decode import NO_STOP
from overlay.scan.header import split
from overlay.state.shard_state import ConsumerState
from overlay.subject import Pattern
from overlay.worker.cursors.cursors import Cursors
from overlay.worker.cursors.intake import Look
from overlay.worker.cursors.skip_route import NEAR, Routes, plan_visits
from overlay.worker.round.task import Reader
from overlay.worker.source_fetches import SourceFetches
from tests.index.partitions import Record, load, seal, stream
from tests.support.kafka import NewTopicFixture, SureProducer
from tests.worker.cursors.play import make_fetched
from tests.worker.kept.test_indexes import await_indexed
from tests.worker.scenes import Scene, await_caught_up, await_state, check_output, expect, read_committed, serve

PLACES = tuple(f"{letter}.x" for letter in "abcdefghij")
RUN = 4_000
"""Records of one place in a row: with their padding a few megabytes, so that leaving them out is worth a fetch."""


def read_sample(registry: CollectorRegistry, name: str, **labels: str) -> float:
    return registry.get_sample_value(name, labels) or 0.0


def write_runs(scene: Scene, topic: str, places: list[str]) -> int:
    """Runs of records that do not compress."""
    rng = random.Random(7)
    producer = SureProducer(scene.bootstrap, {"linger.ms": 20})
    for place in places:
        for _ in range(RUN):
            producer.produce(topic, rng.randbytes(300), headers=[("to", place)], partition=0)
        assert producer.flush(30) == 0
    return len(places) * RUN


@pytest.mark.parametrize(
    "more",
    [{}, {"filter": {"sql": "place = 'wanted.x'"}}, {"deliver_policy": "last_per_subject"}],
    ids=["subjects", "SQL", "last messages"],
)
def test_a_consumer_that_comes_later_reads_what_it_wants(
    scene: Scene, new_topic: NewTopicFixture, more: dict[str, object]
) -> None:
    """Two of ten runs hold what it wants; it reads these and what it cannot know, and delivers the same."""
    topic = new_topic()
    places = [*PLACES[:4], "wanted.x", *PLACES[4:7], "wanted.x", *PLACES[7:]]
    end = write_runs(scene, topic, places)
    scene.add_stream(
        "S",
        topic,
        subject={"header": "to"},
        index={"chunk_records": 500, "chunk_age": "200ms", "terms": ["place"]},
        properties={"place": {"type": "string", "from": "{header:to}"}},
    )
    with serve(scene, wait=False):
        await_indexed(scene, topic, end)
    filters = {} if "filter" in more else {"filters": "wanted.*"}
    output = scene.add_consumer("S", "c", *filters.values(), **more)
    with serve(scene) as served:
        await_caught_up(served, "c")
        registry = served.service.metrics.registry
        fetched = read_sample(registry, "overlay_bytes_fetched_total")
    seen = read_committed(scene.bootstrap, topic)
    wanted = expect(seen, ["wanted.*"], prefix="")
    wanted = wanted[-1:] if "deliver_policy" in more else wanted
    check_output(read_committed(scene.bootstrap, output), wanted, prefix="")
    whole = sum(len(record.value or b"") for record in seen)
    assert fetched < whole / 2
    if "deliver_policy" not in more:  # the way to the last messages is not planned by chunks
        assert read_sample(registry, "overlay_chunks_total", stream="S", answer="no") > 15


def test_a_consumer_that_wants_nothing_of_the_log_is_at_its_end_at_once(
    scene: Scene, new_topic: NewTopicFixture
) -> None:
    """It leaves out every chunk, meets the one who keeps the index, and no record comes after that to tell of it."""
    topic = new_topic()
    end = write_runs(scene, topic, ["a.x"])
    scene.add_stream("S", topic, subject={"header": "to"}, index={"chunk_records": 500, "chunk_age": "200ms"})
    with serve(scene, wait=False):
        await_indexed(scene, topic, end)
    output = scene.add_consumer("S", "c", "wanted.*")
    with serve(scene) as served:
        await_state(served, "c", lambda found: found["state"] == "running", "to be at the end of the log")
    assert not read_committed(scene.bootstrap, output)


def test_what_was_left_out_does_not_lie_ahead(scene: Scene, new_topic: NewTopicFixture) -> None:
    """A filter takes the first run and leaves out the others, whose subjects the consumer wants: it leaps to the end."""
    topic = new_topic()
    end = write_runs(scene, topic, ["wanted.x", *PLACES[:3]])
    scene.add_stream(
        "S",
        topic,
        subject={"header": "to"},
        index={"chunk_records": 500, "chunk_age": "200ms", "terms": ["place"]},
        properties={"place": {"type": "string", "from": "{header:to}"}},
    )
    with serve(scene, wait=False):
        await_indexed(scene, topic, end)
    more = {"ack_policy": "explicit", "max_ack_pending": 10_000, "filter": {"sql": "place = 'wanted.x'"}}
    scene.add_consumer("S", "c", "*.x", **more)
    with serve(scene) as served:
        found = await_state(
            served,
            "c",
            lambda found: (acks := found.get("acks", {})).get("num_ack_pending") == RUN and not acks["num_pending"],
            "has nothing ahead of it",
        )
        assert (found["num_pending"], found["num_pending_is"]) == (0, "exact")


def make_fetch(position: int, size: int | None = None) -> PartitionFetch:
    return PartitionFetch(cast(Fetcher, SimpleNamespace(wake=lambda: None)), "t", 0, position, NO_STOP, size)


def test_a_partition_fetch_goes_on_where_its_cursor_does() -> None:
    """A cursor leaps to where the index is made, and its partition fetch to the end of the log; now both are one, and
    leave out nothing."""
    cursors = Cursors()
    fetches = SourceFetches(cursors, cast(Fetcher, None), cast(Admin, None), Metrics())
    cursors.enlist(("S", "c"), ConsumerState(), {("t", 0): LogPosition(15_799)})
    ((_, cursor),) = cursors.all()
    fetch = fetches._fetches[cursor] = make_fetch(16_000, 5)
    fetches.follow()
    assert (fetch.position, fetch.size) == (15_799, None)
    data = np.empty(0, np.uint8)
    ready = Fetched(15_799, data, split(data).batches, NO_ABORTS, 16_000, 0, LogPosition(16_000))
    for position, kept in ((15_799, True), (15_900, True), (16_000, False)):
        fetch.ready, fetch.position = ready, 16_000
        cursors.pass_retention({cursor: position}, 0)
        fetches.follow()
        assert (fetch.ready is ready, fetch.position) == (kept, 16_000)


def test_a_partition_fetch_knows_the_batch_before_the_place_that_it_is_led_to() -> None:
    """What a chunk header says of it, so that a header of another log is noticed."""
    chunks = load(stream(), [seal(stream(), [Record(10 * n, "ab"[n % 2])], 10 * n, 10 * n + 10) for n in range(4)])
    chunks.epoch[:] = 3, 4, 5, 6
    reader = Reader(("S", "c"), (Pattern.parse("b"),), None)
    readers = {reader.id: reader}
    index = cast(Index, SimpleNamespace(of=lambda _: chunks))
    cursors = Cursors(readers, routes=Routes({"S": stream()}, {"S": index}, readers))
    cursors.enlist(reader.id, ConsumerState(), {("t", 0): LogPosition(0)})
    cursors.begin(0)
    ((_, cursor, wish),) = cursors.take_wishes()
    assert wish is not None and cursor.log_position == wish.log_position == chunks.log_position(0)
    # what lies behind the fetch that is being processed is skipped as well
    cursors.take_round({cursor: Look(make_fetched(10, 20, 40), 40)}, 0.0)
    ((_, _, wish),) = cursors.take_wishes()
    assert wish is not None and (wish.log_position.position, wish.log_position.epoch) == (30, 5)


def test_a_partition_fetch_is_led_no_farther_than_its_cursor() -> None:
    """Where a cursor stands it needs what comes: only what lies behind that may be left out."""
    reader = Reader(("S", "c"), (), None)
    cursors = Cursors({reader.id: reader})
    cursors.enlist(("S", "c"), ConsumerState(snapshot={("t", 0): 50_000}), {("t", 0): LogPosition(0)})
    cursors.find(("S", "c"), {("t", 0): np.array([0, 20_000])}, 0)
    ((_, cursor),) = cursors.all()
    cursor.log_position = LogPosition(500)  # cursors that were ahead have moved on since the leap ended here
    ((_, _, wish),) = cursors.take_wishes()
    assert wish is not None and wish.log_position.position == 500
    cursors.take_round({cursor: Look(make_fetched(500, 600, 50_000), 50_000)}, 0.0)
    ((_, _, wish),) = cursors.take_wishes()
    assert wish is not None and wish.log_position.position == 20_000


@given(st.lists(st.integers(0, 50_000), max_size=20, unique=True), st.integers(1, 60_000))
def test_visits_come_to_every_offset_and_to_the_end(offsets: list[int], end: int) -> None:
    wanted = sorted(offsets)
    route = plan_visits(np.array(wanted, np.int64), end)
    read: list[int] = []
    position = route.find_next(0, NO_STOP)
    while position < end:
        read.append(position)
        position = route.find_next(position + 1, NO_STOP)
    assert position == end
    assert {offset for offset in wanted if offset < end} <= set(read)
    assert all(any(at - offset >= 0 or offset - at <= NEAR for offset in wanted) for at in read)
    assert route.find_next(end + 5, NO_STOP) == end + 5
