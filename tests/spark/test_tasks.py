"""The tasks of `format("overlay")` in this process: which part of the log they read, in what order, and what is gone of it."""

from __future__ import annotations

import random
import uuid

import pytest

from spark.form import make_schema
from spark.options import Ask, read_definition, read_options
from spark.plan import DataLoss, Planner
from spark.scan import read
from tests.client.indexing import seal, write_index
from tests.index.test_start_positions import delete_below
from tests.support.kafka import NewTopicFixture, SureProducer

pytestmark = pytest.mark.timeout(300)


def test_what_retention_removed(bootstrap: str, new_topic: NewTopicFixture) -> None:
    topic = new_topic()
    producer = SureProducer(bootstrap)
    for number in range(50):
        producer.produce(topic, b"%d" % number)
    producer.flush(30)
    delete_below(bootstrap, topic, 20)
    options = {"bootstrap": bootstrap, "topic": topic, "columns": "value"}
    assert read_tasks(read_options(options))[0] == [*range(20, 50)]  # nothing was asked for that is gone
    early = options | {"startingSequence": "10"}
    with pytest.raises(DataLoss, match="offset 9 is gone: the log begins at 20"):
        Planner(read_options(early)).plan()
    assert read_tasks(read_options(early | {"failOnDataLoss": "false"}))[0] == [*range(20, 50)]


def read_tasks(ask: Ask) -> tuple[list[int], int, int]:
    """The values that a reading in this process finds, from how many offsets and in how many tasks."""
    parts = Planner(ask).plan()
    schema = make_schema(ask.request.stream, ask.columns)
    values = [int(value) for part in parts for batch in read(ask, schema, part) for value in batch["value"].to_pylist()]
    fetch_ranges = [leg for part in parts for offset_range in part.offset_ranges for leg in offset_range.fetch_ranges()]
    return values, sum(leg.stop - leg.start for leg in fetch_ranges), len(parts)


def test_the_index_says_what_is_read(
    bootstrap: str, new_topic: NewTopicFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs of records that are alike: the same rows from a tenth of the log, whatever the tasks are."""
    monkeypatch.setattr("overlay.index.skip.plan.BRIDGE", 0)
    monkeypatch.setattr("overlay.index.skip.plan.FETCH_S", 0.0)
    topic, prefix = new_topic(partitions=2), f"o-{uuid.uuid4().hex[:8]}"
    producer = SureProducer(bootstrap)
    for number in range(2000):
        headers: list[tuple[str, str | bytes | None]] = [("run", str(number // 100))]
        producer.produce(topic, b"%d" % number, partition=number // 1000, headers=headers)
        if number % 50 == 49:
            producer.flush(30)
    definition = (
        f"{{name: S, topics: [{topic}], subject: {{template: 'r.{{header:run}}'}}, properties: {{run: long}},"
        " index: {chunk_records: 50, terms: [run]}}"
    )
    stream = read_definition(definition)
    headers_of = seal({"bootstrap.servers": bootstrap}, stream, [(topic, 0), (topic, 1)])
    write_index(bootstrap, prefix, "S", headers_of)
    options = {"bootstrap": bootstrap, "definition": definition, "prefix": prefix, "columns": "value"}
    for question in ({"sql": "run = 5 OR run = 13"}, {"subjects": "r.5, r.13"}):
        for size in ("300", "1000000"):
            asked = options | question | {"partitionBytes": size}
            found, read_offsets, tasks = read_tasks(read_options(asked))
            assert (found, read_offsets) == ([*range(500, 600), *range(1300, 1400)], 200)
            assert (tasks > 10) is (size == "300")
        assert read_tasks(read_options(options | question | {"index": "false"}))[:2] == (found, 2000)


def test_a_task_gives_its_rows_in_the_same_order_each_time(bootstrap: str, new_topic: NewTopicFixture) -> None:
    """Partitions of many fetches each: a pipeline numbers rows by their order, and may have to read a batch again."""
    topic, rng = new_topic(partitions=3), random.Random(5)
    producer = SureProducer(bootstrap, {"linger.ms": 0, "batch.num.messages": 10})
    for number in range(180):
        producer.produce(topic, rng.randbytes(100_000), partition=number % 3)
        producer.poll(0)
    producer.flush(30)
    options = {"bootstrap": bootstrap, "topic": topic, "columns": "partition,offset", "minPartitions": "1"}
    ask = read_options(options | {"partitionBytes": str(1 << 30)})
    (part,) = Planner(ask).plan()
    schema = make_schema(ask.request.stream, ask.columns)
    batches = [batch.to_pydict() for batch in read(ask, schema, part)]
    assert len(batches) > 6
    rows = [row for batch in batches for row in zip(batch["partition"], batch["offset"], strict=True)]
    assert rows == [(partition, offset) for partition in range(3) for offset in range(60)]


def test_records_that_vanish_under_a_task(bootstrap: str, new_topic: NewTopicFixture) -> None:
    """Between planning and reading retention may pass: that ends the task unless it is allowed."""
    topic = new_topic()
    producer = SureProducer(bootstrap)
    for number in range(50):
        producer.produce(topic, b"%d" % number)
    producer.flush(30)
    options = {"bootstrap": bootstrap, "topic": topic, "columns": "offset"}
    ask = read_options(options)
    (part,) = Planner(ask).plan()
    delete_below(bootstrap, topic, 20)
    schema = make_schema(ask.request.stream, ask.columns)
    with pytest.raises(DataLoss, match="removed 20 offsets"):
        list(read(ask, schema, part))
    lax = read_options(options | {"failOnDataLoss": "false"})
    assert sum(batch.num_rows for batch in read(lax, schema, part)) == 30
