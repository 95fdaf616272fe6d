"""Ledgers follow retention while a session runs."""

from __future__ import annotations

import asyncio
import contextlib

import numpy as np
import pytest

from overlay.config import StreamConfig
from overlay.index.ledger.allocate import allocate
from overlay.index.ledger.entries import MOST_SEQUENCE, LedgerEntry, LedgerRun
from overlay.index.ledger.ledger import Ledger, Refusal
from overlay.index.topic import Index
from overlay.kafka.admin import Admin
from overlay.kafka.log_position import LogPosition, TopicPartition
from overlay.state.partitions import Sources
from overlay.state.shard_state import ConsumerState, ShardState
from overlay.worker.assignment import Assignment
from overlay.worker.cursors.cursors import Cursors
from overlay.worker.kept.ledgers import Opening, find_trouble, follow_starts
from tests.index.test_start_positions import delete_below
from tests.support.kafka import DEADLINE_S, NewTopicFixture
from tests.support.waiting import wait_until
from tests.worker.scenes import produce


async def test_what_retention_takes_is_forgotten_but_not_what_is_in_hand(
    bootstrap: str, new_topic: NewTopicFixture, admin: Admin
) -> None:
    """One partition is read to its end, in the other a consumer has reached 12."""
    sources: list[TopicPartition] = [(topic, 0) for topic in sorted((new_topic(), new_topic()))]
    ledger = Ledger()
    for topic, _ in sources:
        produce(bootstrap, topic, ["a"] * 30)
    for end in (10, 20, 30):
        made = allocate(ledger.standing, {source: (0, LogPosition(end)) for source in sources})
        assert made is not None and not ledger.append(made)
    for topic, _ in sources:
        await asyncio.to_thread(delete_below, bootstrap, topic, 25)
    assignment = Assignment(sources={"S": Sources(tuple(sources), {})}, ledgers={"S": ledger})
    cursors = Cursors(ledgers={"S": ledger})
    for name, position in (("ahead", 30), ("behind", 12)):
        positions = {sources[0]: LogPosition(30), sources[1]: LogPosition(position)}
        cursors.enlist(("S", name), ConsumerState(), positions)
    following = asyncio.create_task(follow_starts(admin, assignment, cursors, lambda lows: None, 0.05))
    await asyncio.to_thread(wait_until, lambda: ledger.first_sequence > 1, DEADLINE_S, "some are forgotten")
    following.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await following
    offsets = np.arange(30)
    first, second = (ledger.sequence_of(source, offsets).tolist() for source in sources)
    assert first == [0] * 25 + list(range(46, 51))
    assert second == [0] * 12 + list(range(33, 41)) + list(range(51, 61))


@pytest.mark.parametrize(
    ("last", "words"), [(MOST_SEQUENCE - 1, ""), (MOST_SEQUENCE, "the overlay has not written it")]
)
def test_a_ledger_that_a_stranger_has_filled_stops_its_stream(last: int, words: str) -> None:
    """The next entries would be refused, by an error that ends the session of all streams of the shard."""
    index = Index(StreamConfig.model_validate({"name": "S", "topics": ("t",)}))
    assert index.ledger.append(LedgerEntry((LedgerRun("t", 0, 0, 1, last),))) is Refusal.NONE
    opening = Opening("S", "i", "id", index, is_kept=True)
    assert words in (trouble := find_trouble(opening, ShardState(), Assignment())) and bool(trouble) == bool(words)
