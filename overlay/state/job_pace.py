"""How much a batch of a Spark job reads for a consumer with `rate_limit_bps` or `pause_until`.

A batch is the smallest thing that a job can hold back. So a limit decides how many offsets the next
batch reads for the consumer, when that batch is planned; a batch that is run again reads the same. The
consumer reads at offsets of its own, like one that catches up, and no other consumer waits for it.

How many bytes some offsets have for a consumer is not known before they are read. It is estimated
from the batches before, so that a batch has about BATCH_MS of the rate. What a batch really had then
delays the next one. So at most the rate is delivered in the long run, and at most one batch more in any
span of time.
"""

from __future__ import annotations

from dataclasses import dataclass

BATCH_MS = 5_000
"""How many ms of its rate a consumer is given by one batch."""
FIRST_DENSITY = 1024.0
"""Bytes for each offset of a consumer of whose records none has been seen."""
GROWTH = 2.0
"""The most by which a batch's number of offsets may grow from one to the next, by the estimate."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The limits in a consumer's file. `bits_per_second`: 0 for none. `paused_until`: ms since 1970, 0 for never."""

    bits_per_second: int = 0
    paused_until: int = 0


@dataclass(frozen=True, slots=True)
class PaceState:
    """What a batch's plan keeps of a consumer's limits, all 0 without limits.

    `paused_until`: ms since 1970, by the consumer's file. `spent_until`: ms since 1970; by then what was
    delivered is within the rate. `density`: bytes for each offset, by estimate; 0 if unknown.
    """

    paused_until: int = 0
    spent_until: int = 0
    density: float = 0.0

    @property
    def due(self) -> int:
        """The time from which on a batch may read for the consumer, ms since 1970."""
        return max(self.paused_until, self.spent_until)


def renew(pace: Pace, state: PaceState) -> PaceState:
    """Return what the next batch's plan keeps of a consumer's limits before the batch is read. `paused_until`
    is that of `pace`. The rest is as in `state`, which is from the last plan; if `pace` has no rate, it is 0."""
    if not pace.bits_per_second:
        return PaceState(pace.paused_until)
    return PaceState(pace.paused_until, state.spent_until, state.density)


def allow(pace: Pace, state: PaceState, now: int, most: int) -> int | None:
    """Return how many offsets a batch may read for a consumer: 0 if it is paused or has used up its
    rate, else at least 1; None if it has no rate and is not paused, so that nothing limits it.

    `state`: as `renew` returns it. `now`: ms since 1970. `most`: the most for a consumer with a
    rate.
    """
    if now < state.due:
        return 0
    if not pace.bits_per_second:
        return None
    size = pace.bits_per_second * BATCH_MS / 8_000
    return max(1, min(most, int(size / (state.density or FIRST_DENSITY))))


def charge(pace: Pace, state: PaceState, now: int, offsets: int, size: int) -> PaceState:
    """Return what a plan keeps of a consumer's limits when its batch was read: `state`, with `spent_until` and
    `density` brought up to date if there is a rate and any offset was read.

    `offsets`: how many were read for the consumer. `size`: bytes of its records in them, without dead
    letters. `now`: ms since 1970, the time of the batch.
    """
    if not pace.bits_per_second or not offsets:
        return state
    spent = max(now, state.spent_until) + size * 8_000 // pace.bits_per_second
    return PaceState(state.paused_until, spent, max(size / offsets, (state.density or FIRST_DENSITY) / GROWTH))
