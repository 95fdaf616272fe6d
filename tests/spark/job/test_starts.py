"""Where new consumers of a job begin in a stream of several partitions: where the service begins them, by its ledger."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from overlay.config.consumer import ConsumerConfig, DeliverPolicy
from overlay.index.ledger.allocate import allocate
from overlay.index.ledger.ledger import Ledger
from overlay.kafka.log_position import LogPosition
from spark.job.folder import NotForSpark, check_snapshot, check_start, cut_snapshot
from spark.pipeline import start_pipeline
from tests.spark.deliveries import write_job_folder
from tests.spark.job.test_job import STREAM, read, run
from tests.spark.job.test_job import produce as produce_numbers
from tests.support.kafka import NewTopicFixture
from tests.worker.kept.test_indexes import await_indexed
from tests.worker.scenes import Scene, Seen, await_caught_up, produce, read_committed, serve
from tests.worker.scenes import scene as scene

DEADLINE_S = 150


def make_config(**more: Any) -> ConsumerConfig:
    return ConsumerConfig.model_validate({"stream": "S", "durable_name": "c", "deliver_subject": "out", **more})


def make_ledger(records: int) -> Ledger:
    """A ledger that has given sequences to some records of one partition."""
    ledger = Ledger()
    made = allocate(ledger.standing, {("t", 0): (0, LogPosition(records))})
    assert made is not None and not ledger.append(made)
    return ledger


def test_a_sequence_whose_place_is_not_known_is_refused() -> None:
    by_sequence = make_config(deliver_policy="by_start_sequence", opt_start_seq=12)
    with pytest.raises(NotForSpark, match=r"stream 'S' has 2 partitions and no ledger .* run it over the stream first"):
        check_start(by_sequence, 2, None)
    with pytest.raises(NotForSpark, match=r"begins at sequence 12, and the ledger of stream 'S' has come to 10"):
        check_start(by_sequence, 2, make_ledger(10))
    # the next one is that of the first record which the ledger does not have
    check_start(by_sequence, 2, make_ledger(11))
    check_start(by_sequence, 1, None)
    check_start(make_config(), 2, None)
    lasts = make_config(deliver_policy="last_per_subject", filter_subject=">")
    with pytest.raises(
        NotForSpark, match=r"last message of each subject, and stream 'S' has 2 partitions and no ledger"
    ):
        check_start(lasts, 2, None)
    check_start(lasts, 1, None)
    check_start(lasts, 2, make_ledger(10))


def test_last_messages_end_with_the_ledger() -> None:
    """Nothing says which of two later records in different partitions is the last one."""
    config, ends = make_config(deliver_policy="last_per_subject", filter_subject=">"), {("t", 0): 14, ("t", 1): 3}
    ledger = make_ledger(10)
    assert cut_snapshot(ends, None) == ends
    assert cut_snapshot(ends, ledger) == {("t", 0): 10, ("t", 1): 0}
    check_snapshot(config, cut_snapshot(ends, ledger), ledger)
    check_snapshot(config, {("t", 0): 14}, None)
    # a consumer that the service has begun keeps its snapshot, of which it may have been given a part
    for known in (None, ledger):
        with pytest.raises(
            NotForSpark, match=r"consumer 'c' .* the stream's ledger does not reach to the end of these"
        ):
            check_snapshot(config, ends, known)


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "policy", [DeliverPolicy.BY_START_SEQUENCE, DeliverPolicy.LAST, DeliverPolicy.LAST_PER_SUBJECT]
)
def test_a_job_begins_where_the_service_does(
    spark: SparkSession, scene: Scene, new_topic: NewTopicFixture, tmp_path: Path, policy: DeliverPolicy
) -> None:
    """What has come since the ledger was written is delivered as well."""
    topic = new_topic(partitions=3)
    scene.add_stream("S", topic)
    start: dict[str, Any] = {"deliver_policy": str(policy), "ack_policy": "none"}
    if policy is DeliverPolicy.BY_START_SEQUENCE:
        start["opt_start_seq"] = 101
    scene.add_consumer("S", "first")
    with serve(scene) as served:
        for partition in (2, 0, 1):
            produce(scene.bootstrap, topic, ["a", "b"] * 30, partition=partition)
            await_caught_up(served, "first")
    theirs = scene.add_consumer("S", "theirs", "t.*", **start)
    ours = scene.add_consumer("S", "ours", "t.*", engine="spark", **start)
    with start_pipeline(spark, scene.folder, ("ours",), str(tmp_path / "checkpoint")) as query:
        assert query.awaitTermination(DEADLINE_S)
    with serve(scene) as served:
        await_caught_up(served, "theirs")
    wanted = {seen.token.sequence for seen in read_committed(scene.bootstrap, theirs)}
    assert len(wanted) == {DeliverPolicy.BY_START_SEQUENCE: 80, DeliverPolicy.LAST_PER_SUBJECT: 2}.get(policy, 1)
    assert sorted(list_sequences(scene, ours)) == sorted(wanted)
    # no service runs: the job gives out the sequences of what comes now
    produce(scene.bootstrap, topic, ["c"] * 5, partition=2)
    with start_pipeline(spark, scene.folder, ("ours",), str(tmp_path / "checkpoint")) as query:
        assert query.awaitTermination(DEADLINE_S)
    with serve(scene) as served:
        await_caught_up(served, "theirs")
    found = sorted(list_sequences(scene, ours))
    assert found[:-5] == sorted(wanted) and found[-5] > 180
    # the service finds them in the ledger
    assert sorted(list_sequences(scene, theirs)) == found


def test_a_sequence_that_is_not_there_yet_is_waited_for(
    spark: SparkSession, bootstrap: str, new_topic: NewTopicFixture, tmp_path: Path
) -> None:
    source, output = new_topic(retention_ms=-1), new_topic()
    more = "deliver_policy: by_start_sequence\nopt_start_seq: 21\n"
    folder = write_job_folder(tmp_path / "config", bootstrap, output, source=source, stream=STREAM, more=more)
    for end in (10, 20, 30):
        produce_numbers(bootstrap, source, range(end - 10, end))
        run(spark, folder, tmp_path / "checkpoint")
    assert read(bootstrap, output) == [(n, n - 19) for n in range(20, 30)]


def list_sequences(scene: Scene, output: str) -> list[int]:
    found: list[Seen] = read_committed(scene.bootstrap, output)
    return [seen.token.sequence for seen in found]


@pytest.mark.timeout(400)
def test_num_pending_is_that_of_the_service(
    spark: SparkSession, scene: Scene, new_topic: NewTopicFixture, tmp_path: Path
) -> None:
    """Both know it by the chunk index, the job also of what its batches leave for later ones: in front of chunks that a filter
    leaves out and that count until they are passed, and after a consumer's last messages."""
    topic = new_topic()
    for places in (["a", "b", "a", None], ["c"], ["a", "c", "b", "b"], ["c"], ["b", "a"]):
        for _ in range(3):
            produce(scene.bootstrap, topic, places * (40 // len(places)))
    scene.add_stream(
        "S",
        topic,
        index={"chunk_records": 40, "chunk_age": "200ms", "terms": ["place"]},
        properties={"place": {"type": "string", "from": "{header:to}"}},
    )
    with serve(scene, wait=False):
        await_indexed(scene, topic, 600)
    consumers: dict[str, dict[str, Any]] = {
        "subject": {"filter_subjects": ["t.a"]},
        "filter": {"filter_subjects": ["t.*"], "filter": {"sql": "place = 'a'"}},
        "last": {"filter_subjects": ["t.*"], "deliver_policy": "last_per_subject"},
    }
    theirs = {name: scene.add_consumer("S", name, **more) for name, more in consumers.items()}
    ours = {name: scene.add_consumer("S", f"ours-{name}", engine="spark", **more) for name, more in consumers.items()}
    options = {"maxRecordsPerTrigger": "250", "minPartitions": "3", "partitionBytes": "4000"}
    with start_pipeline(spark, scene.folder, (), str(tmp_path / "checkpoint"), options=options) as query:
        assert query.awaitTermination(DEADLINE_S)
    with serve(scene) as served:
        for name in consumers:
            await_caught_up(served, name)
    for name in consumers:
        wanted, found = (
            [
                (seen.token.sequence, seen.token.consumer_sequence, seen.token.pending)
                for seen in read_committed(scene.bootstrap, outputs[name])
            ]
            for outputs in (theirs, ours)
        )
        assert found == wanted, name
        assert len({pending for *_, pending in found}) == len(found) == {"subject": 150, "filter": 150, "last": 3}[name]


def test_before_the_ledger_has_come_to_its_start_the_job_says_what_to_do(
    spark: SparkSession, bootstrap: str, new_topic: NewTopicFixture, tmp_path: Path
) -> None:
    source = new_topic(2, retention_ms=-1)
    more = "deliver_policy: by_start_sequence\nopt_start_seq: 5\n"
    folder = write_job_folder(tmp_path / "config", bootstrap, new_topic(), source=source, more=more)
    with (
        pytest.raises(NotForSpark, match=r"begins at sequence 5, and the ledger .* has come to 0\. Let the service"),
        start_pipeline(spark, folder, "c", str(tmp_path / "checkpoint")),
    ):
        pass
