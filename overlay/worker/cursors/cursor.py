"""Cursors: reading positions in a partition, each shared by the consumers at that position.

The foremost cursor of a partition is the tail; its position is the stream's position in the state.
The other cursors are catching up. A cursor reads up to the position of the next one and then joins
it. So every batch is fetched and decoded once for all consumers at the same position.

A round processes what has been fetched for some cursors. If a cursor is going to reach the next one
in this round, that one sits the round out. Otherwise the next one would always be a step ahead, and
the two would never meet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from overlay.arrays import Ints
from overlay.kafka.fetched import Fetched
from overlay.kafka.log_position import LogPosition
from overlay.scan.decode import NO_STOP
from overlay.state.shard_state import ConsumerId

from .skip_route import SkipRoute
from .table import State


@dataclass(slots=True, eq=False)
class Cursor:
    """One reading position in one partition, and the consumers that share it (`members`).
    Everything before `log_position` has been given to these consumers. Changed by `Cursors`
    alone."""

    log_position: LogPosition
    members: set[ConsumerId] = field(default_factory=set)
    state: State = State.READING
    only: Ints | None = None
    """Offsets to deliver and no others, ascending, below `snapshot_end`; empty while they are being
    searched; None to deliver all. A cursor with such offsets is never joined (last_per_subject)."""
    snapshot_end: int = NO_STOP
    """The offset from which on the cursor reads like any other."""
    indexed: bool = False
    """Whether the stream's chunk index is made from what this cursor reads, besides serving its
    members."""
    sequenced: bool = False
    """Whether records get their stream sequences when this cursor reads them. Such a cursor is the
    foremost of its partition (worker/round/sequencing.py)."""
    cursor_group: int = 0
    """Cursors of several partitions with the same number go together (order.py); 0 for one that is by itself."""
    careful: bool = False
    """Whether its members must not be told of sequences that are not committed yet."""
    waits: bool = False
    """Whether a corrupt batch in any partition of its cursor group stops it (order.py)."""
    route: SkipRoute | None = None
    """What it may skip; None to read everything."""
    fetched: Fetched | None = None
    """Data that was taken for it and of which a part is not processed yet."""
    stable_end: int = -1
    """The last stable offset of its partition, as the last response told; -1 before the first
    one."""
    read_ms: int | None = None
    """The timestamp of the last record that was read for it, ms since 1970; None before the first
    one."""
    is_urgent: bool = False
    """Whether others wait for what it has to fetch."""

    @property
    def position(self) -> int:
        """The next offset to read."""
        return self.log_position.position

    @property
    def is_alone(self) -> bool:
        """Whether the cursor delivers selected offsets only, and so may join no other."""
        return self.only is not None

    @property
    def is_searching(self) -> bool:
        return self.state is State.SEARCHING

    @property
    def is_halted(self) -> bool:
        return self.state is State.HALTED

    @property
    def need(self) -> LogPosition:
        """The log position to fetch from next: the end of the data taken for the cursor, or its own
        position if none of that is left."""
        if self.fetched is None or self.fetched.next_offset <= self.position:
            return self.log_position
        return self.fetched.log_position


@dataclass(frozen=True, slots=True)
class Turn:
    """One cursor's part in a round: it reads from its position to the offset `stop`, exclusive, as
    far as data is fetched."""

    cursor: Cursor
    stop: int


def find_tail(cursors: Sequence[Cursor]) -> Cursor | None:
    """Return the cursor with the highest position, which the state records as the stream's
    position. Cursors that deliver last messages only do not count; None if there is no other."""
    return max((cursor for cursor in cursors if not cursor.is_alone), key=lambda cursor: cursor.position, default=None)


def plan_round(cursors: Sequence[Cursor], fetched_to: Mapping[Cursor, int]) -> list[Turn]:
    """Return which cursors of one partition read in a round, and up to where: up to the position of
    the next cursor that they can join, NO_STOP if there is none. A cursor that another one is going
    to reach sits the round out. A cursor of last messages reads up to the end of its snapshot.

    `fetched_to`: the offset at which the fetched data ends (`Fetched.reach`), for the cursors that
    have some. Others have no turn.
    """
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
