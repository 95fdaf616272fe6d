"""Deleted consumers whose state could not be dropped.

Such a deletion is not finished: the consumer stays marked in the control topic, and the client that asked gets no answer yet.
It must hold up neither other deletions nor requests. An attempt may stop its shard for a moment, so the pauses
between attempts grow. A person learns of it from the log, once for each reason.
"""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Iterable
from dataclasses import dataclass, field

from overlay.clock import monotonic
from overlay.errors import StateKept
from overlay.logs import get_logger
from overlay.waits import Backoff

from .records import ConsumerId

log = get_logger(__name__)

PAUSE_S = (1.0, 120.0)
"""Shortest and longest pause in seconds between two attempts; it doubles with each failure."""


@dataclass(frozen=True, slots=True)
class _Failure:
    """The last attempt at one state. `count`: how many have failed so far. `due`: when the next one is, monotonic
    seconds."""

    reason: str
    count: int
    due: float


@dataclass(slots=True)
class Undropped:
    """The states that could not be dropped, and when each is tried again."""

    _failures: dict[ConsumerId, _Failure] = field(default_factory=dict)

    def choose(self, ids: Iterable[ConsumerId]) -> list[ConsumerId]:
        """Return the consumers among `ids` whose state is to be dropped now, in their order. A consumer whose last attempt
        has failed is left out until its pause is over."""
        now = monotonic()
        return [id for id in ids if id not in self._failures or self._failures[id].due <= now]

    async def drop(self, ids: Collection[ConsumerId], attempt: Awaitable[None]) -> set[ConsumerId]:
        """Await an attempt to drop the states of these consumers. Return those that were dropped. Take note of the others,
        which StateKept names; raises any other error."""
        reasons: dict[ConsumerId, str] = {}
        try:
            await attempt
        except StateKept as error:
            reasons = error.reasons
        for id, reason in reasons.items():
            self._note(id, reason)
        dropped = {id for id in ids if id not in reasons}
        for id in dropped:
            self._failures.pop(id, None)
        return dropped

    def keep(self, ids: Collection[ConsumerId]) -> None:
        """Forget the consumers that are not among these."""
        self._failures = {id: failure for id, failure in self._failures.items() if id in ids}

    def _note(self, id: ConsumerId, reason: str) -> None:
        before = self._failures.get(id)
        backoff = Backoff(*PAUSE_S, failures=0 if before is None else before.count)
        self._failures[id] = _Failure(reason, backoff.failures + 1, monotonic() + backoff.pause_s)
        if before is None or before.reason != reason:
            log.error(
                "the state of a deleted consumer is kept: it is tried again",
                stream=id[0],
                consumer=id[1],
                reason=reason,
            )
