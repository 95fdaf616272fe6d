"""A broker that is restarted under many transactions. It has no leader for its partitions while it stops, and its coordinator
ends some transactions without their markers (overlay/output/lost_markers.py). How many, and whether any, is up to the moment.

What must hold for each writer: its heir can read on, what was committed is there once and in order, and state and output tell
the same. One exception is Kafka's (docs/exactly-once.md#where-it-ends): a transaction without its marker is aborted together
with the next one of the same producer. So only the last committed transaction may be missing, and only if another one was under
way; in state and output alike, if both lost their markers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from overlay.clock import now_ms
from overlay.errors import DeliveryFailed, Fenced, SourceUnavailable
from overlay.local import Broker, start
from overlay.local.ports import is_answering
from overlay.output.entry import Entry, press_entries
from overlay.output.record import Record
from overlay.output.transaction import Transactions
from tests.support.kafka import PATIENT, await_markers, make_topic
from tests.support.waiting import wait_until
from tests.worker.scenes import read_committed

pytestmark = pytest.mark.kafka

WRITERS = 24
EACH = 10
"""Transactions of each writer before the restart."""
STATE, OUT = "state", "out"


@pytest.fixture
def broker() -> Iterator[Broker]:
    with start(ephemeral=True, properties=PATIENT) as running:
        for topic in (STATE, OUT):
            make_topic(running.bootstrap, topic, WRITERS)
        yield running


class Writer:
    """Writes its numbers from 1 on, each to a partition of the output and of the state in one transaction."""

    def __init__(self, kafka: dict[str, str], number: int) -> None:
        self._kafka, self._number = kafka, number
        self.told = 0
        """The last number of which Kafka has said that it is committed."""
        self.begun = 0
        """The last number whose transaction was begun."""

    def _open(self) -> Transactions:
        return Transactions(self._kafka, f"writer-{self._number}", STATE, self._number)

    async def run(self) -> None:
        """Write until Kafka refuses, or until this is cancelled."""
        transactions = self._open()
        try:
            await transactions.start([STATE, OUT])
            while True:
                value = str(self.told + 1).encode()
                await transactions.begin()
                self.begun += 1
                await transactions.finish(
                    value, press_entries([Entry(OUT, Record(None, value), self._number)], now_ms())
                )
                self.told += 1
        except (DeliveryFailed, SourceUnavailable, Fenced):
            pass  # the heir goes on
        finally:
            await transactions.close()

    async def take_over(self) -> None:
        transactions = self._open()
        try:
            await transactions.start([STATE, OUT])
            await transactions.end_lost([(STATE, self._number), (OUT, self._number)])
        finally:
            await transactions.close()


async def test_transactions_under_a_broker_that_is_restarted_are_taken_over(broker: Broker) -> None:
    writers = [Writer({"bootstrap.servers": broker.bootstrap}, number) for number in range(WRITERS)]
    running = [asyncio.create_task(writer.run()) for writer in writers]
    await asyncio.to_thread(wait_until, lambda: min(each.told for each in writers) >= EACH, 60, "all of them write")
    host, _, port = broker.bootstrap.rpartition(":")
    restarting = asyncio.create_task(asyncio.to_thread(broker.restart))
    await asyncio.to_thread(wait_until, lambda: not is_answering(host, int(port)), 60, "the broker has stopped")
    for task in running:
        task.cancel()  # before they write on, which would end what has no marker
    await asyncio.gather(*running, return_exceptions=True)
    await restarting
    await asyncio.gather(*(writer.take_over() for writer in writers))
    for topic in (STATE, OUT):
        await asyncio.to_thread(await_markers, broker.bootstrap, topic)
    found = {topic: _group(broker.bootstrap, topic) for topic in (STATE, OUT)}
    for number, writer in enumerate(writers):
        state, out = (found[topic][number] for topic in (STATE, OUT))
        story = f"writer {number}: began {writer.begun}, told {writer.told}, state {state[-3:]}, output {out[-3:]}"
        # of the transaction that was under way when Kafka went, the outcome is not known
        least = writer.told - (writer.begun > writer.told)
        wanted = [[*range(1, last + 1)] for last in range(least, writer.told + 2)]
        assert state in wanted and out in wanted, story
        # with a marker lost in one of the two, the last committed one may be there in the other
        assert state == out or (len(state) <= writer.told and len(out) <= writer.told), story


def _group(bootstrap: str, topic: str) -> dict[int, list[int]]:
    """Return the committed values of each partition, in the order of offsets."""
    found: dict[int, list[int]] = {number: [] for number in range(WRITERS)}
    for record in read_committed(bootstrap, topic):
        found[record.partition].append(int(record.value or b"0"))
    return found
