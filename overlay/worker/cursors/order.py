"""In which order the partitions of a stream with a ledger are read: consumers are given its records by their sequences. No IO.

In a stream of one partition a consumer's place is an offset, and a cursor is all there is. Where there are several, a
consumer's place is a sequence: below it it has been given everything, in all partitions, and nothing from there on.
So its cursors go together, one in each partition, as a cursor group. A round takes a cursor group from run to run of
the ledger, through one partition after the other, as far as records are at hand and the ledger reaches. What is at
hand beyond that is kept for the next round.

Cursor groups meet as cursors do: one that is going to reach the next one in this round has that one sit it out, and
then they are one. The foremost, where the ledger is kept, is the head: what it reads is what gets sequences next, so
it is in no need of an order. Cursor groups of consumers that must not be told of a sequence before it is committed never
join it, and stop where the committed part of the ledger ends.

A cursor that only the chunk index is made from has no order to keep. It reads its partition up to the head, and joins it.

A partition that a corrupt batch stops is left out, and the others go on. Not so for consumers with machines: a
machine takes records by rising sequences, so it would refuse what lies behind the batch once the others had gone on.
In a cursor group of their own (`waits`) they wait at the batch, until the next session finds it gone.

Records whose sequence is lost (index/ledger/ledger.py) are
read with those that come after them in their partition; those that nothing comes after yet, once all others are read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from overlay.index.ledger.ledger import Ledger
from overlay.kafka.log_position import LogPosition, TopicPartition

from .cursor import Cursor

STEPS = 64
"""Most steps of one cursor group in a round. Each step has a fixed cost, and the head waits
meanwhile."""


@dataclass(frozen=True, slots=True)
class Step:
    """One cursor's reading of the offsets from `start` to `stop`, exclusive, in a round. A cursor
    may have several steps in one round."""

    source: TopicPartition
    cursor: Cursor
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What a round works on.

    `steps`: in the order in which they run. `wanted`: cursors whose missing data blocks their
    group, even if its other cursors have data; they are to be fetched first.
    """

    steps: Sequence[Step]
    wanted: frozenset[Cursor] = frozenset()


def plan_steps(
    cursors: Mapping[TopicPartition, Sequence[Cursor]], fetched_to: Mapping[Cursor, int], ledger: Ledger, committed: int
) -> Plan:
    """Return which offsets a round reads in a stream with a ledger, so that consumers are given
    records by rising sequence.

    `cursors`: by partition; `fetched_to`: the offset at which the fetched data ends
    (`Fetched.reach`), for the cursors that have some; `committed`: the first sequence that is not
    committed yet.
    """
    head = {source: cursor for source, some in cursors.items() for cursor in some if cursor.sequenced}
    steps, held, sitting, wanted = list[Step](), set[TopicPartition](), set[int](), set[Cursor]()
    for source, some in cursors.items():
        # cursors that serve only the index run up to the head
        if source in head:
            steps += _follow(source, some, head[source], fetched_to, held)
    cursor_groups = sorted(_find_cursor_groups(cursors), key=lambda cursor_group: cursor_group.find_place(ledger))
    for i, cursor_group in enumerate(cursor_groups):
        if cursor_group.number in sitting or cursor_group.is_searching:
            continue
        # a group reads up to the next group that it may join, else as far as sequences are given
        # out
        goal, ahead = committed if cursor_group.careful else ledger.next_sequence, None
        for other in cursor_groups[i + 1 :]:
            if cursor_group.may_join(other) and (place := other.find_place(ledger)) < goal:
                goal, ahead = place, other
                break
        own, missing = cursor_group.advance(fetched_to, ledger, goal)
        steps += own
        wanted |= missing
        if own and cursor_group.reaches(own, goal, ledger):
            if ahead is not None:
                sitting.add(ahead.number)
            elif not cursor_group.careful:
                held |= head.keys()
    steps += [
        Step(source, cursor, cursor.position, fetched_to[cursor])
        for source, cursor in sorted(head.items())
        if source not in held and cursor in fetched_to and fetched_to[cursor] > cursor.position
    ]
    return Plan(steps, frozenset(wanted))


@dataclass(frozen=True, slots=True)
class _CursorGroup:
    """Cursors of one stream, one in each partition, that advance together by sequence."""

    number: int
    cursors: dict[TopicPartition, Cursor]

    @property
    def waits(self) -> bool:
        return any(cursor.waits for cursor in self.cursors.values())

    @property
    def places(self) -> dict[TopicPartition, int]:
        """The offset of the group's cursor in each partition. Partitions that a corrupt batch has
        stopped are left out, unless the group waits for them."""
        return {
            source: cursor.position for source, cursor in self.cursors.items() if self.waits or not cursor.is_halted
        }

    @property
    def careful(self) -> bool:
        """Whether its consumers must not be told of sequences that are not committed yet."""
        return any(cursor.careful for cursor in self.cursors.values())

    @property
    def is_alone(self) -> bool:
        """Whether any of its cursors delivers only the last messages of subjects. Then the group
        joins no other."""
        return any(cursor.is_alone for cursor in self.cursors.values())

    @property
    def is_searching(self) -> bool:
        """Whether the last messages of its consumer are still being searched."""
        return any(cursor.is_searching for cursor in self.cursors.values())

    def may_join(self, other: _CursorGroup) -> bool:
        is_alike = (self.careful, self.waits) == (other.careful, other.waits)
        return is_alike and not self.is_alone and not other.is_alone

    def find_place(self, ledger: Ledger) -> int:
        """Return the sequence of the first record that the group has not read in the partitions of `places`; the
        ledger's next sequence if it has read all that have one.
        """
        return min((ledger.sequence_from(*place) for place in self.places.items()), default=ledger.next_sequence)

    def advance(self, fetched_to: Mapping[Cursor, int], ledger: Ledger, goal: int) -> tuple[list[Step], set[Cursor]]:
        """Return the steps towards the sequence `goal` that the fetched data allows, at most STEPS.

        Return with them, as a set of at most one, the cursor at which they end before the goal: its data ends there,
        or its snapshot. The set is empty if that cursor is halted, since no data can come for it, and after STEPS
        steps.
        """
        steps = list[Step]()
        at = self.places
        for source, stop in self._list_stops(at, ledger, goal):
            if source not in at or at[source] >= stop:
                continue
            if len(steps) == STEPS:
                break
            cursor, start = self.cursors[source], at[source]
            reach = min(stop, fetched_to.get(cursor, start), max(start, cursor.snapshot_end))
            if reach > start:
                steps.append(Step(source, cursor, start, reach))
                at[source] = reach
            if reach < stop:
                return steps, set() if cursor.is_halted else {cursor}
        return steps, set()

    def _list_stops(
        self, at: Mapping[TopicPartition, int], ledger: Ledger, goal: int
    ) -> Iterator[tuple[TopicPartition, int]]:
        """Yield, run by run in the order of sequences and up to the sequence `goal`, a partition and the offset
        (exclusive) up to which it is to be read next. After the runs come the partitions and offsets of `_find_ends`,
        so that offsets without a sequence are read as well.
        """
        sequence = self.find_place(ledger)
        while sequence < goal and (run := ledger.locate(sequence)) is not None and run.first_sequence < goal:
            sequence = run.next_sequence
            yield run.source, run.first_offset + min(run.count, goal - run.first_sequence)
        yield from _find_ends(at, ledger, goal).items()

    def reaches(self, steps: Sequence[Step], goal: int, ledger: Ledger) -> bool:
        """Return whether the group has read everything below the sequence `goal` in the partitions of `places` after
        these steps.
        """
        at = self.places | {step.source: step.stop for step in steps}
        ends = _find_ends(at, ledger, goal)
        return all(position >= ends.get(source, 0) for source, position in at.items())


def _find_ends(at: Mapping[TopicPartition, int], ledger: Ledger, goal: int) -> dict[TopicPartition, int]:
    """Return, for each partition of the ledger, the first offset whose sequence is at least `goal`, or where the
    partition ends in the ledger if there is none.

    Empty if each position in `at` is at or beyond the end of its partition in the ledger. Below the offset that is
    returned there may be offsets whose runs the ledger has lost.
    """
    if all(position >= ledger.end_of(source) for source, position in at.items()):
        return {}
    return ledger.positions_at(goal)


def _find_cursor_groups(cursors: Mapping[TopicPartition, Sequence[Cursor]]) -> list[_CursorGroup]:
    """Return all cursor groups, without the cursors whose records get sequences next (the head)."""
    found: dict[int, dict[TopicPartition, Cursor]] = defaultdict(dict)
    for source, some in cursors.items():
        for cursor in some:
            if cursor.cursor_group and not cursor.sequenced:
                found[cursor.cursor_group][source] = cursor
    return [_CursorGroup(number, cursor_group) for number, cursor_group in found.items()]


def _follow(
    source: TopicPartition,
    cursors: Sequence[Cursor],
    head: Cursor,
    fetched_to: Mapping[Cursor, int],
    held: set[TopicPartition],
) -> Iterator[Step]:
    """Yield the steps of the cursors that serve only the index, up to the head at most.

    A cursor that reaches the head adds its partition to `held`: the head sits the round out there.
    """
    for cursor in cursors:
        if not cursor.cursor_group and cursor in fetched_to:
            stop = min(fetched_to[cursor], head.position)
            if stop > cursor.position:
                if stop == head.position:
                    held.add(source)
                yield Step(source, cursor, cursor.position, stop)


def step_back(
    log_positions: Mapping[TopicPartition, LogPosition], own: Mapping[TopicPartition, LogPosition], ledger: Ledger
) -> dict[TopicPartition, LogPosition]:
    """Return the positions of a consumer with a machine, moved back to one sequence in all partitions;
    `log_positions` as they are if `own` is empty. A position that is below that sequence already stays.

    `own`: the consumer's positions of its own. In a partition with offered and undelivered messages, this is the
    offset of the first of them.

    The sequence is the lowest that any record from these offsets on has. In the other partitions the consumer is at
    the stream's position. It may have come there with an earlier filter, so they are read again from that sequence
    on. The machine ignores messages that it has handled already.
    """
    if not own:
        return dict(log_positions)
    places = ledger.positions_at(
        min(ledger.sequence_from(source, log_position.position) for source, log_position in own.items())
    )
    return {
        s: LogPosition(at) if (at := places.get(s, log_position.position)) < log_position.position else log_position
        for s, log_position in log_positions.items()
    }
