"""What does not count any more of a job's state topic is deleted, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from overlay.config import load
from overlay.errors import CredentialsRefused, OverlayError, SourceUnavailable
from overlay.kafka.admin import Admin
from overlay.kafka.own_topics import job_topic, writer_id
from overlay.output.entry import Entry, press_entries
from overlay.output.record import Record
from overlay.output.transaction import Transactions
from overlay.state import job_log
from overlay.state.job_log import forget_old, read_last
from overlay.state.job_plan import WriterCommit
from overlay.state.job_plan_codec import encode_commit, encode_plan
from spark.job import journal as journals
from spark.job.journal import FORGET_EVERY, Journal
from spark.lease import run_apart
from tests.spark.deliveries import write_job_folder
from tests.spark.job.test_job import STREAM, produce, read, run
from tests.state.test_handover import Place, bare, make_plan
from tests.support.kafka import NewTopicFixture, await_markers

__all__ = ["bare"]

KEPT = 10


async def commit(place: Place, topic: str, number: int, *, is_aborted: bool = False) -> None:
    """Write a commit of batch `number` as a write task does, in partition 1 of the job's state topic."""
    transactions = Transactions(place.service.kafka, writer_id(place.prefix, "J", ("out", 0)), topic, 1)
    await transactions.start([topic])
    try:
        value = encode_commit(WriterCommit(number, "p", 5))
        entries = press_entries([Entry(topic, Record(None, value), 1)], number)
        await transactions.begin()
        if is_aborted:
            await transactions.send(entries)
            await transactions.abort()
        else:
            await transactions.commit(entries)
    finally:
        await transactions.close()


async def find_starts(admin: Admin, topic: str) -> tuple[int, int]:
    """The log starts of the driver's partition, and of the first writer's."""
    found = await admin.find_bounds([(topic, 0), (topic, 1)])
    return found[topic, 0][0], found[topic, 1][0]


async def test_the_last_plan_and_each_writer_s_last_commit_stay(bare: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """However old the commit is: here many transactions were aborted after it."""
    monkeypatch.setattr(job_log, "KEPT", KEPT)
    bootstrap = bare.service.kafka["bootstrap.servers"]
    with bare.journal("J") as journal:
        topic = journal.topic
        await commit(bare, topic, 0)
        for number in range(KEPT // 2):
            journal.write(make_plan(number, number=number))
        await_markers(bootstrap, topic)
        await forget_old(bare.client, bare.admin, topic)
        assert await find_starts(bare.admin, topic) == (0, 0)
        for number in range(KEPT // 2, 2 * KEPT):
            journal.write(make_plan(number, number=number))
        for number in range(1, KEPT + 2):
            await commit(bare, topic, number, is_aborted=True)
        await_markers(bootstrap, topic)
        await forget_old(bare.client, bare.admin, topic)
        # a plan takes two offsets
        assert await find_starts(bare.admin, topic) == (4 * KEPT - KEPT, 0)
        assert await read_last(bare.client, bare.admin, topic, 0) == encode_plan(
            make_plan(2 * KEPT - 1, number=2 * KEPT - 1)
        )
        assert await read_last(bare.client, bare.admin, topic, 1) == encode_commit(WriterCommit(0, "p", 5))
        await commit(bare, topic, 2 * KEPT)
        await_markers(bootstrap, topic)
        await forget_old(bare.client, bare.admin, topic)
        assert (await find_starts(bare.admin, topic))[1] > 0
        assert await read_last(bare.client, bare.admin, topic, 1) == encode_commit(WriterCommit(2 * KEPT, "p", 5))
    with bare.journal("J") as journal:
        assert journal.last == make_plan(2 * KEPT - 1, number=2 * KEPT - 1)


@pytest.mark.parametrize(
    ("error", "tried"),
    [
        (None, [1, FORGET_EVERY + 1, 2 * FORGET_EVERY + 1]),
        (SourceUnavailable("Kafka does not answer"), [1, FORGET_EVERY + 1, 2 * FORGET_EVERY + 1]),
        # without the right it is not tried for each batch
        (CredentialsRefused("Kafka does not allow Delete"), [1]),
    ],
)
def test_what_is_not_deleted_ends_no_batch(
    monkeypatch: pytest.MonkeyPatch, error: OverlayError | None, tried: list[int]
) -> None:
    journal, batch, found = Journal({}, "o", "J", 1), [0], list[int]()

    async def fail(client: object, admin: object, topic: str) -> None:
        assert topic == "o.spark.J"
        found.append(batch[0])
        if error is not None:
            raise error

    monkeypatch.setattr(journals, "forget_old", fail)
    monkeypatch.setattr(journal, "_client", cast("Any", None), raising=False)
    monkeypatch.setattr(journal, "_admin", cast("Any", None), raising=False)
    try:
        for batch[0] in range(1, 3 * FORGET_EVERY):
            journal.forget_old()
    finally:
        monkeypatch.undo()
        journal.close()
    assert found == tried


async def look(bootstrap: str, topic: str) -> tuple[int, int]:
    async with Admin({"bootstrap.servers": bootstrap}) as admin:
        return await find_starts(admin, topic)


def test_the_state_of_a_job_does_not_grow(
    spark: SparkSession, bootstrap: str, new_topic: NewTopicFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_log, "KEPT", 1)
    source = new_topic(retention_ms=-1)
    folder = write_job_folder(tmp_path / "config", bootstrap, f"{source}-out", source=source, stream=STREAM)
    topic = job_topic(load(folder).service.topics.prefix, "S")
    for end in (10, 20, 30):
        produce(bootstrap, source, range(end - 10, end))
        run(spark, folder, tmp_path / "checkpoint")
    # a broker may not know yet that the last transaction is committed; then the one before stays as well
    assert min(run_apart(look(bootstrap, topic))) > 0
    assert read(bootstrap, f"{source}-out") == [(n, n + 1) for n in range(30)]
