"""The journal's transactions: topics that do not take their share, and a Kafka that falls silent in the middle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from overlay.control.journal import Journal
from overlay.errors import DeliveryFailed, SourceUnavailable
from overlay.output.entry import Entry
from overlay.output.record import Record
from tests.support.kafka import NewTopicFixture, make_topic
from tests.support.proxy import lead_through, run_proxy
from tests.worker.scenes import DEADLINE_S, read_committed

Open = Callable[[], Awaitable[Journal]]


@pytest.fixture
def prefix(bootstrap: str, new_topic: NewTopicFixture) -> str:
    """Of a control topic."""
    name = new_topic()
    make_topic(bootstrap, f"{name}.control")
    return name


@pytest.fixture
async def open_journal(bootstrap: str, prefix: str) -> AsyncIterator[Open]:
    opened: list[Journal] = []

    async def begin() -> Journal:
        journal = Journal({"bootstrap.servers": bootstrap}, prefix, 0)
        await journal.start()
        opened.append(journal)
        return journal

    yield begin
    for journal in opened:
        await journal.close()


async def test_an_answer_larger_than_its_topic_takes(
    open_journal: Open, bootstrap: str, prefix: str, new_topic: NewTopicFixture
) -> None:
    inbox, control = new_topic(max_message_bytes=1_000), f"{prefix}.control"
    settle, small = Entry(control, Record(b"request 1", None)), Entry(inbox, Record(b"1", b"answer"))
    journal = await open_journal()
    assert await journal.commit([settle, small]) == 0
    with pytest.raises(DeliveryFailed, match="MessageSizeTooLarge") as raised:
        await journal.commit([settle, Entry(inbox, Record(b"2", bytes(2_000)))])
    assert (raised.value.topic, raised.value.final) == (inbox, True)
    # behind the first: its record and marker, the record that was aborted and its marker
    assert await (await open_journal()).commit([settle, settle]) == 5
    assert [seen.value for seen in read_committed(bootstrap, inbox)] == [b"answer"]
    assert len(read_committed(bootstrap, control)) == 3


async def test_a_kafka_that_falls_silent(
    open_journal: Open, bootstrap: str, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither giving up the transaction nor closing waits for an answer that does not come."""
    settle = Entry(f"{prefix}.control", Record(b"request 1", None))
    async with run_proxy(bootstrap) as proxy:
        lead_through(proxy, monkeypatch, request_timeout_ms=int(10 * DEADLINE_S * 1000))
        journal = await open_journal()
        await journal.commit([settle])
        monkeypatch.setattr("overlay.output.transaction.DEADLINE_S", 0.5)
        proxy.down.allow(0)
        async with asyncio.timeout(DEADLINE_S):
            with pytest.raises((SourceUnavailable, DeliveryFailed)):
                await journal.commit([settle])
            await journal.close()
        proxy.open()
