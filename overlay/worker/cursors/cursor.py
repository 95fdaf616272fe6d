"""Which consumers read a partition together.

A cursor is one reading position of a partition and the consumers that stand there. The foremost cursor is the tail: its
position is the stream's cursor. The others are catching up. A cursor reads up to where the next one stands and then joins
it, so that every batch is fetched and decoded once for all consumers at the same place.

A round handles what has been fetched for some cursors. When a cursor is going to reach the next one in this round, that one
sits the round out; otherwise it would always be a step ahead and the two would never meet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from overlay.kafka.log_position import LogPosition
from overlay.scan.decode import NO_STOP
from overlay.state.shard_state import ConsumerId


@dataclass(slots=True, eq=False)
class Cursor:
    """`log_position`: what its consumers have been given lies before it."""

    log_position: LogPosition
    members: set[ConsumerId] = field(default_factory=set)
    only: npt.NDArray[np.int64] | None = None
    """Offsets to deliver and no others, up to `snapshot_end`; such a cursor is by itself (last_per_subject)."""
    snapshot_end: int = NO_STOP
    undecided: bool = False
    """Which offsets `only` has is not known yet: the cursor stays where it is (worker/last_messages.py)."""
    indexed: bool = False
    """Whether the stream's chunk index is made of what this cursor reads, beside what its members want."""
    sequenced: bool = False
    """Whether what this cursor reads gets its sequences then; it is the foremost (worker/round/sequencing.py)."""
    cursor_group: int = 0
    """Cursors of several partitions with the same number go together (order.py); 0 for one that is by itself."""
    careful: bool = False
    """Whether its members may not be told of sequences that are not committed yet."""
    halted: bool = False
    """A corrupt batch is in the way; those who reach it stop as well."""
    waits: bool = False
    """Whether a corrupt batch in any partition of its cursor group stops it (order.py)."""

    @property
    def position(self) -> int:
        return self.log_position.position

    @property
    def is_alone(self) -> bool:
        return self.only is not None

    def finish_snapshot(self) -> None:
        """Once the last messages are delivered, go on like any other."""
        if self.is_alone and self.position >= self.snapshot_end:
            self.only, self.snapshot_end = None, NO_STOP


@dataclass(frozen=True, slots=True)
class Turn:
    """One cursor's part in a round: read to `stop`, exclusive."""

    cursor: Cursor
    stop: int


def find_tail(cursors: Sequence[Cursor]) -> Cursor | None:
    """The foremost cursor, whose position is the stream's cursor; one that is alone never is."""
    return max((cursor for cursor in cursors if not cursor.is_alone), key=lambda cursor: cursor.position, default=None)


def plan_round(cursors: Sequence[Cursor], fetched_to: Mapping[Cursor, int]) -> list[Turn]:
    """Turns for the cursors of one partition. `fetched_to`: where the data in hand ends, for cursors that have some."""
    turns: list[Turn] = []
    held: set[Cursor] = set()
    joinable = sorted((cursor for cursor in cursors if not cursor.is_alone), key=lambda cursor: cursor.position)
    for i, cursor in enumerate(joinable):
        if cursor in held or cursor not in fetched_to:
            continue
        ahead = joinable[i + 1] if i + 1 < len(joinable) else None
        stop = NO_STOP if ahead is None else ahead.position
        if ahead is not None and fetched_to[cursor] >= stop:
            held.add(ahead)
        turns.append(Turn(cursor, stop))
    turns += [Turn(cursor, cursor.snapshot_end) for cursor in cursors if cursor.is_alone and cursor in fetched_to]
    return turns


def join(cursors: list[Cursor]) -> list[Cursor]:
    """Merge cursors that have met, changing `cursors`; returns those that are no longer needed."""
    met: dict[tuple[int, int], Cursor] = {}
    spent: list[Cursor] = []
    for cursor in cursors:
        if cursor.is_alone:
            continue
        first = met.setdefault((cursor.position, cursor.cursor_group), cursor)
        if first is not cursor:
            first.members |= cursor.members
            first.halted |= cursor.halted
            first.indexed |= cursor.indexed
            first.sequenced |= cursor.sequenced
            spent.append(cursor)
    cursors[:] = [cursor for cursor in cursors if cursor not in spent]
    return spent
