"""Cursors against a twin that knows of every record who wants it: each is given once, in order, or deleted unread.

Fetches of any length arrive, rounds run, logs and the index grow, logs lose their beginnings, consumers leave their
cursors and come back, what cursors skip is planned anew, and sessions end and begin again from the state, with more
consumers, fewer consumers and more partitions. Records turn unreadable, which halts cursors, until they are readable again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from overlay.index.ledger.allocate import allocate
from overlay.index.ledger.ledger import Ledger, Refusal
from overlay.index.skip.plan import OPEN_END, Route, Saving
from overlay.kafka.log_position import LogPosition, TopicPartition
from overlay.state.shard_state import ConsumerId, ConsumerState, Delta, ShardState, StreamPartition
from overlay.worker.cursors.cursors import Cursors
from overlay.worker.cursors.skip_route import Routes, SkipRoute
from overlay.worker.round.task import Reader, Task
from tests.worker.cursors.play import Player

SOURCES: list[TopicPartition] = [("t", 0), ("t", 1), ("u", 0)]
NAMES = tuple("abcd")
NEW = st.dictionaries(st.sampled_from(NAMES), st.tuples(st.integers(0, 2), st.integers(0, 10)), max_size=2)
"""Consumers that are new: by name, the kind of records that each wants, and how far it begins behind the end."""
RUN = 5
"""Records of a kind in a row; there are three kinds."""


class PlannedRoutes(Routes):
    """Skips the runs of which no member wants anything, up to the offset where the index ends."""

    def __init__(self, kinds: dict[ConsumerId, int], index_end: dict[TopicPartition, int]) -> None:
        super().__init__()
        object.__setattr__(self, "_kinds", kinds)
        object.__setattr__(self, "_index_end", index_end)

    def plan(
        self, partition: StreamPartition, members: Collection[ConsumerId], position: int, now: int
    ) -> SkipRoute | None:
        kinds: dict[ConsumerId, int] = self._kinds  # type: ignore[attr-defined]
        end: int = self._index_end[partition[1]]  # type: ignore[attr-defined]
        wanted = {kinds[member] for member in members}
        starts = [at for at in range(0, end, RUN) if (at // RUN) % 3 in wanted] + [end]
        ends = [min(at + RUN, end) for at in starts[:-1]] + [OPEN_END]
        return SkipRoute(
            Route(np.array(starts), np.array(ends), np.zeros(len(starts), np.uint8), Saving(0, 0, 0, 0, 0), True)
        )


class CursorsMachine(RuleBasedStateMachine):
    """One stream. `numbered`: it has a ledger, which this session keeps."""

    @initialize(numbered=st.booleans(), sources=st.integers(1, 2), skips=st.booleans(), new=NEW)
    def start(self, numbered: bool, sources: int, skips: bool, new: dict[str, tuple[int, int]]) -> None:
        self.numbered, self.skips = numbered, skips
        self.sources = SOURCES[: sources if numbered else 1]
        self.ends = dict.fromkeys(SOURCES, 0)
        self.starts = dict.fromkeys(SOURCES, 0)
        self.unreadable: dict[TopicPartition, set[int]] = {source: set() for source in SOURCES}
        self.ledger = Ledger()
        self.state = ShardState()
        self.kinds: dict[ConsumerId, int] = {}
        self.begins: dict[ConsumerId, dict[TopicPartition, int]] = {}
        self.given: dict[ConsumerId, list[tuple[TopicPartition, int]]] = defaultdict(list)
        self.lost: dict[ConsumerId, set[tuple[TopicPartition, int]]] = defaultdict(set)
        self.restart(new, set(), sources, mended=False)

    # the session

    def begin_session(self) -> None:
        readers = {consumer: Reader(consumer, (), None) for consumer in self.kinds}
        self.index_end: dict[TopicPartition, int] = {}
        self.grow_index()
        routes = PlannedRoutes(self.kinds, self.index_end) if self.skips else None
        self.cursors = Cursors(readers, {"S": self.ledger} if self.numbered else {}, routes)
        if self.numbered:
            heads = {source: self.ledger.log_position_of(source) or LogPosition(0) for source in self.sources}
            self.cursors.enlist_ledger("S", heads)
        for consumer in self.kinds:
            log_positions = {
                source: self.state.log_position_of(consumer, source)
                or LogPosition(self.begins[consumer].get(source, 0))
                for source in self.sources
            }
            for source, at in log_positions.items():
                self.begins[consumer].setdefault(source, at.position)
            self.cursors.enlist(consumer, self.state.consumers[consumer], log_positions)
        self.player = Player(self.cursors, self.ends, self.read, self.unreadable)
        self.cursors.begin(0)
        self.cursors.note_committed({"S": self.ledger.next_sequence})
        self.state.apply(self.cursors.everything())

    def read(self, task: Task, offsets: range) -> None:
        for reader in task.readers:
            self.given[reader.id] += [
                (task.source, offset) for offset in offsets if (offset // RUN) % 3 == self.kinds[reader.id]
            ]

    def give_out(self, tasks: list[Task]) -> None:
        taken = {
            task.source: (task.position, LogPosition(min(task.stop, task.fetched.next_offset)))
            for task in tasks
            if task.sequenced
        }
        if (entry := allocate(self.ledger.standing, taken)) is not None:
            assert self.ledger.append(entry) is Refusal.NONE

    def run_round(self) -> bool:
        before = {consumer: len(given) for consumer, given in self.given.items()}
        is_busy, moved = self.player.run_round(self.give_out)
        fed = {consumer for consumer, given in self.given.items() if len(given) > before.get(consumer, 0)}
        served = {consumer for consumer in fed if consumer in self.kinds}
        self.state.apply(self.cursors.delta(moved.partitions, moved.consumers | served))
        self.cursors.note_committed({"S": self.ledger.next_sequence})
        return is_busy

    # what may happen

    @rule(which=st.integers(0, 9), length=st.integers(1, 12))
    def fetch(self, which: int, length: int) -> None:
        self.player.follow()
        fetches = list(self.player.fetches.values())
        # what lies below the start of the log cannot be fetched any more
        if fetches and (fetch := fetches[which % len(fetches)]).position >= self.starts[fetch.partition[1]]:
            self.player.fetch(which, length)

    @rule()
    def round(self) -> None:
        self.run_round()

    @rule(which=st.integers(0, 2), count=st.integers(1, 15))
    def grow(self, which: int, count: int) -> None:
        self.ends[self.sources[which % len(self.sources)]] += count

    @rule()
    def grow_index(self) -> None:
        """The index is made behind the head of the ledger, and gets to it."""
        self.index_end |= {s: self.ledger.end_of(s) for s in SOURCES} if self.numbered else self.ends

    @precondition(lambda self: self.kinds)
    @rule(which=st.integers(0, 3))
    def renew(self, which: int) -> None:
        """The config of a consumer changes, and what it wants does not."""
        consumer = sorted(self.kinds)[which % len(self.kinds)]
        moved = self.cursors.renew({consumer}, 0)
        self.state.apply(self.cursors.delta(moved.partitions, moved.consumers))

    @rule(which=st.integers(0, 2), count=st.integers(1, 20))
    def delete(self, which: int, count: int) -> None:
        """Retention that the cursors have not heard of."""
        source = self.sources[which % len(self.sources)]
        # a head that retention passes restarts its ledger, which needs a new session (kept/ledgers.py)
        most = self.ledger.end_of(source) if self.numbered else self.ends[source]
        self.starts[source] = max(self.starts[source], min(self.starts[source] + count, most))

    # what stops the head of a ledger ends the session (cursors.py, `advance`)
    @precondition(lambda self: not self.numbered)
    @rule(which=st.integers(0, 3), ahead=st.integers(0, 3), is_late=st.booleans())
    def halt(self, which: int, ahead: int, is_late: bool) -> None:
        """A cursor comes to a record that cannot be read, or soon will. `is_late`: retention deletes that record before
        the cursor's next fetch is answered."""
        if cursors := list(self.cursors.all()):
            (_, source), cursor = cursors[which % len(cursors)]
            self.unreadable[source].add(cursor.position + ahead)
            self.ends[source] = max(self.ends[source], cursor.position + ahead + 1)
            self.player.follow()
            for number in range(len(self.player.fetches)):
                self.fetch(number, 2)
            self.run_round()
            if is_late:
                self.ends[source] += 1
                self.starts[source] = self.ends[source]
                self.notice_loss()

    @rule()
    def notice_loss(self) -> None:
        """Fetches below the starts of the logs are answered by saying so, also those that were in flight when their
        cursors halted. A halted cursor stays at what it cannot read."""
        self.player.follow()
        first = {}
        halted = {cursor: cursor.log_position for _, cursor in self.cursors.all() if cursor.is_halted}
        for (_, source), cursor in self.cursors.all():
            fetch = (self.player.stopped if cursor in halted else self.player.fetches).get(cursor)
            if fetch is not None and fetch.ready is None and fetch.position < self.starts[source]:
                first[cursor] = max(cursor.position, self.starts[source])
                self.player.stopped.pop(cursor, None)
                for member in cursor.members if cursor not in halted else ():
                    self.lost[member] |= {(source, offset) for offset in range(cursor.position, first[cursor])}
        if first:
            moved = self.cursors.pass_retention(first, 0)
            self.state.apply(self.cursors.delta(moved.partitions, moved.consumers))
        left = {cursor for _, cursor in self.cursors.all()}  # a cursor that has come to a halted one may replace it
        assert all(cursor.is_halted and cursor.log_position == halted[cursor] for cursor in left & halted.keys())

    @precondition(lambda self: self.kinds)
    @rule(which=st.integers(0, 3))
    def park(self, which: int) -> None:
        consumer = sorted(self.kinds)[which % len(self.kinds)]
        if consumer not in self.cursors.parked:
            moved = self.cursors.park({consumer})
            self.state.apply(self.cursors.delta(moved.partitions, moved.consumers))

    @precondition(lambda self: self.cursors.parked)
    @rule(which=st.integers(0, 3))
    def resume(self, which: int) -> None:
        parked = sorted(self.cursors.parked)
        self.cursors.resume({parked[which % len(parked)]}, 0)

    @rule(
        new=NEW,
        gone=st.sets(st.sampled_from(NAMES), max_size=1),
        sources=st.integers(1, 3),
        mended=st.booleans(),
    )
    def restart(self, new: dict[str, tuple[int, int]], gone: set[str], sources: int, mended: bool) -> None:
        """A session ends and the next one begins from the state; nothing was under way. `mended`: what was unreadable
        is readable again."""
        if mended:
            self.mend()
        for name in gone:
            if ("S", name) in self.kinds:
                self.check("S", name)
                self.state.apply(Delta(forgotten=(("S", name),)))
                for known in (self.kinds, self.begins, self.given, self.lost):
                    known.pop(("S", name), None)
        if self.numbered:
            self.sources = SOURCES[: max(sources, len(self.sources))]
        for name, (kind, back) in new.items():
            if ("S", name) not in self.kinds:
                # none is ahead of the head of its ledger
                ends = {s: self.ledger.end_of(s) if self.numbered else self.ends[s] for s in self.sources}
                begins = {source: max(self.starts[source], ends[source] - back) for source in self.sources}
                own = {source: LogPosition(at) for source, at in begins.items()}
                self.kinds["S", name], self.begins["S", name] = kind, begins
                self.state.consumers["S", name] = ConsumerState(0, own)
        self.begin_session()

    def mend(self) -> None:
        for offsets in self.unreadable.values():
            offsets.clear()

    def check(self, *consumer: str) -> None:
        """What a consumer was given until now was wanted, and came once and in order."""
        name = consumer[0], consumer[1]
        for source in self.sources:
            offsets = [offset for at, offset in self.given[name] if at == source]
            assert offsets == sorted(set(offsets))
            assert all(offset >= self.begins[name].get(source, 0) for offset in offsets)
        if self.numbered:
            sequences = [
                sequence
                for source, offset in self.given[name]
                for sequence in self.ledger.sequence_of(source, np.array([offset])).tolist()
            ]
            assert sequences == sorted(sequences)

    def teardown(self) -> None:
        if not hasattr(self, "cursors"):
            return
        if self.cursors.parked:
            self.cursors.resume(set(self.cursors.parked), 0)
        if any(self.unreadable.values()):
            self.mend()
            self.begin_session()
        idle = 0
        while idle < 5:  # a cursor that was held by another one in a round has its turn in the next
            self.notice_loss()
            self.player.follow()
            for which in range(len(self.player.fetches)):
                self.fetch(which, 11)
            idle = 0 if self.run_round() else idle + 1
        for consumer, kind in self.kinds.items():
            self.check(*consumer)
            for source in self.sources:
                begin = self.begins[consumer].get(source, 0)
                wanted = {(source, at) for at in range(begin, self.ends[source]) if (at // RUN) % 3 == kind}
                given = {each for each in self.given[consumer] if each[0] == source}
                assert wanted - given <= self.lost[consumer], "a record was neither given nor deleted unread"
        if not self.numbered or len(self.cursors.of(("S", self.sources[0]))) == 1:
            assert all(len(self.cursors.of(("S", source))) <= 1 for source in self.sources)


TestCursorsMachine = CursorsMachine.TestCase
TestCursorsMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
