"""Ledgers behind open transactions, by what Kafka says of their topics, which is made up here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import pytest
from aiokafka.client import AIOKafkaClient

from overlay.config import StreamConfig
from overlay.errors import OverlayError, SourceUnavailable
from overlay.index.topic import Index
from overlay.kafka.admin import Admin
from overlay.state.partitions import Sources
from overlay.state.shard_state import ConsumerState, Delta, ShardState
from overlay.worker.assignment import Assignment
from overlay.worker.kept.blocked import Blocked, find_ended
from overlay.worker.kept.indexes import _open_ledger
from overlay.worker.kept.ledgers import Opening


class Bounds:
    """An Admin that knows the last stable offset and the high watermark of topics, or fails."""

    def __init__(self, known: dict[str, tuple[int, int]], error: OverlayError | None = None) -> None:
        self._known, self._error = known, error

    async def find_bounds(self, places: Iterable[tuple[str, int]], *, committed: bool = True) -> dict[Any, Any]:
        if self._error is not None:
            raise self._error
        return {place: (0, self._known[place[0]][0 if committed else 1]) for place in places}


def make_admin(known: dict[str, tuple[int, int]], error: OverlayError | None = None) -> Admin:
    return cast(Admin, Bounds(known, error))


@pytest.mark.parametrize(
    ("stable", "high", "is_ended"),
    [(5, 9, False), (7, 9, False), (9, 9, True), (9, 12, True), (6, 6, True)],
    ids=["open", "another is open", "ended", "a later one is open", "cut"],
)
async def test_a_blocked_ledger_goes_on_when_all_that_was_there_can_be_read(
    stable: int, high: int, is_ended: bool
) -> None:
    """Also if the log has lost its end."""
    topics = [Blocked("t", 5, 9), Blocked("u", 1, 2)]
    assert (await find_ended(make_admin({"t": (stable, high), "u": (1, 2)}), topics) != "") == is_ended


async def test_a_ledger_stays_blocked_while_kafka_does_not_tell() -> None:
    assert await find_ended(make_admin({}, SourceUnavailable("away")), [Blocked("t", 5, 9)]) == ""


@pytest.mark.parametrize(("stable", "words"), [(3, "waits for the end of a transaction"), (8, "holds no round")])
async def test_a_ledger_of_another_shard_is_not_lost_while_its_rounds_may_be_behind_a_transaction(
    stable: int, words: str
) -> None:
    """Retention has taken the rounds that this shard has seen, and the next ones cannot be read."""
    stream = StreamConfig.model_validate({"name": "S", "topics": ("source",)})
    assignment = Assignment(streams={"S": stream}, sources={"S": Sources((("source", 0), ("source", 1)), {})})
    state = ShardState()
    state.apply(Delta(topics={("S", "t"): "id"}, consumers={("S", "c"): ConsumerState(3)}))
    opening = Opening("S", "t", "id", Index(stream), is_kept=False)
    admin, client = make_admin({"t": (stable, 8)}), cast(AIOKafkaClient, None)
    assert not await _open_ledger(client, admin, opening, assignment, state, Delta())
    assert words in assignment.stopped["S"]
    assert assignment.blocked.keys() == ({"S"} if stable < 8 else set())
