"""The commit loop of a session: finished rounds become transactions.

When a transaction ends depends on what is left to read. If there is nothing more to read, it ends
at once, since readers wait for the records. If there is a backlog, it ends after a quarter of a
second, since each commit has a fixed cost. After a commit at the tail the loop waits 5 ms: a
transaction begun at once would have to wait for the broker, which is still completing the last one
(docs/exactly-once.md#transactions). A session with more output partitions than one transaction
bears commits each round in parts (transaction_parts.py).

Rounds that bring nothing but positions for a transaction are written once a second. In these rounds
no consumer was given anything, or only at-least-once consumers, whose records are readable as soon
as they are sent. At the tail there are hundreds of such rounds a second. Each is counted when it
arrives and merged with those before it. Otherwise the second would end with tens of milliseconds of
work at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from overlay.clock import monotonic
from overlay.errors import OverlayError
from overlay.kafka.admin import Admin
from overlay.logs import get_logger
from overlay.metrics import Metrics
from overlay.output.batch_builder import OutputBatch
from overlay.output.entry import Entry
from overlay.output.record import Record
from overlay.output.transaction import Transactions
from overlay.state.shard_state import ConsumerId, Delta, ShardState, encode
from overlay.worker.round.task import RoundResult

from .transaction_parts import PARTITIONS, split

log = get_logger(__name__)

BULK_S = 0.25
"""Seconds for which a transaction collects rounds while there is a backlog."""
PAUSE_S = 0.005
"""Seconds to wait after a commit at the tail."""
LAZY_S = 1.0
"""Seconds between two writes of progress without deliveries."""
PROOF_S = 5.0
"""Seconds between two empty records of an idle owner. Only by writing does it notice that its shard
was taken over."""
QUEUE_BYTES = 16 << 20
"""`put` waits while more bytes than this wait to be sent."""
QUEUE_ROUNDS = 2
"""`put` waits while more rounds than this wait. What is fetched meanwhile makes one large batch,
instead of many small ones with a request each."""
CHECKPOINT_EVERY = 1_000
"""State records between two checkpoints."""
TELL_ALL_EVERY = 10_000
"""State records after which every machine has to write its whole state, even one without changes,
so that older records can be deleted."""


@dataclass(slots=True)
class CommitUnit:
    """Output batches, state delta and callbacks that are committed together: a round of the
    pipeline or a step of the dispatcher."""

    outcome: RoundResult
    delta: Delta
    machines: dict[ConsumerId, list[Record]] = field(default_factory=dict)
    """State records of the consumers' machines."""
    is_checkpoint: bool = False
    """Whether `machines` holds the whole state of every machine."""
    size: int = field(init=False)
    """Bytes of its batches and answers; 0 once the batches are with Kafka and the answers are
    passed on."""
    offsets: list[int] = field(default_factory=list)
    """The offsets of the batches in `owned`, once they are with Kafka."""
    answers: Sequence[Entry | OutputBatch] = ()
    """Replies to clients that wait for them; `on_commit` sends them."""
    on_commit: Callable[[CommitUnit], None] | None = None
    """Called with this unit after its commit."""
    plain: asyncio.Task[Any] | None = None
    """The task that sends the batches of at-least-once consumers. It must end before the positions
    are written."""
    sent: bool = False
    """Whether its transactional batches are in the open transaction."""

    def __post_init__(self) -> None:
        self.size = self.outcome.size + sum(answer.size for answer in self.answers)

    @property
    def owned(self) -> list[tuple[ConsumerId, OutputBatch]]:
        """Its transactional output batches, each with its consumer."""
        return [(consumer, outgoing) for consumer, outgoing in self.outcome.batches if outgoing.batch.is_transactional]

    @property
    def transactional(self) -> list[OutputBatch]:
        """These batches, and those of the ledgers and the chunk indexes."""
        return [*(outgoing for _, outgoing in self.owned), *self.outcome.ledger, *self.outcome.index]

    @property
    def is_light(self) -> bool:
        """Whether it has nothing for the transaction but positions."""
        return not (self.transactional or self.machines or self.is_checkpoint or self.on_commit)

    @property
    def is_waited_for(self) -> bool:
        """Whether readers or clients wait for its commit; positions alone can wait."""
        return bool(self.owned or self.outcome.ledger or self.answers)


@dataclass(slots=True)
class Commits:
    """Commits units in the order in which they were put. Good for one session; unusable after an
    error."""

    transactions: Transactions
    state: ShardState
    place: tuple[str, int]
    """Topic and partition of the shard's state."""
    admin: Admin
    metrics: Metrics
    on_outcome: Callable[[RoundResult], None]
    """Called with the result of a round once readers can see it."""
    on_commit: Callable[[], None]
    """Called after each successful transaction that contained rounds."""
    partitions: int = 0
    """How many output partitions the session writes to."""
    has_machines: bool = False
    """Whether consumers have machines. Then the shard's state is complete only in a unit with
    `is_checkpoint`."""
    _queue: asyncio.Queue[CommitUnit | None] = field(default_factory=asyncio.Queue)
    _queued: int = 0
    """Bytes that wait to be sent."""
    _drained: asyncio.Event = field(default_factory=asyncio.Event)
    _ended: bool = False
    _written: int = 0
    """State records that this session has written."""
    since_all: int = 0
    """State records since older ones were last deleted."""

    @property
    def wants_all(self) -> bool:
        """Whether the next unit should contain the whole state of all machines. Without it the
        state's log only grows."""
        return self.has_machines and self.since_all >= TELL_ALL_EVERY

    async def open(self, everything: Delta, opening: Sequence[OutputBatch] = ()) -> None:
        """Write the initial positions, and the first entries of ledgers, before anything is
        delivered."""
        await self.transactions.begin()
        await self._record(everything, opening)

    async def put(self, done: CommitUnit) -> None:
        """Queue a unit, and wait while too much is waiting to be sent."""
        if done.is_checkpoint:
            self.since_all = 0
        self._queued += done.size
        self._queue.put_nowait(done)
        if done.plain is not None and not done.transactional:
            done.plain.add_done_callback(lambda _: self._release(done))
            # its records are being sent already, so the reading loop need not wait for a
            # transaction to end
            return
        while self._queued > QUEUE_BYTES or self._queue.qsize() > QUEUE_ROUNDS:
            self._drained.clear()
            await self._drained.wait()

    def end(self) -> None:
        """Have `run` return once all queued units are committed."""
        self._queue.put_nowait(None)

    async def run(self) -> None:
        """Commit what is put, until `end`. Write an empty record every PROOF_S if there is nothing
        to commit."""
        pending: list[CommitUnit] = []
        written = monotonic()
        while not self._ended or pending:
            fresh = await self._take_rounds()
            await self._gather(pending, fresh)
            waited_for = any(done.is_waited_for for done in fresh)
            if pending and (waited_for or self._ended or monotonic() - written >= LAZY_S):
                backlog = await self._commit(pending)
                pending, written = [], monotonic()
                if not backlog:
                    await asyncio.sleep(PAUSE_S)
            elif not self._ended and monotonic() - written >= PROOF_S:
                await self.transactions.begin()
                await self._record(Delta())
                written = monotonic()

    async def _gather(self, pending: list[CommitUnit], fresh: Iterable[CommitUnit]) -> None:
        """Add fresh units to those that are to be committed.

        A light unit is finished here; only its positions remain to be written, and are merged with
        those of the unit before it if that is light as well.
        """
        for done in fresh:
            if done.is_light:
                await self._settle_plain(done)
                self._finish(done)
                done.outcome = RoundResult(backlog=done.outcome.backlog)
                if pending and pending[-1].is_light:
                    done.delta = pending.pop().delta.merge(done.delta)
            pending.append(done)

    async def _take_rounds(self) -> list[CommitUnit]:
        """Return all queued units, or wait for one. Return nothing if none arrives within
        LAZY_S."""
        first = await self._next(LAZY_S)
        rounds = [first] if first else []
        while not self._queue.empty() and not self._ended:
            more = self._queue.get_nowait()
            self._drained.set()
            self._ended = more is None
            rounds += [more] if more else []
        return rounds

    async def _next(self, patience: float) -> CommitUnit | None:
        """Return the next unit, None if none arrives within `patience` seconds or none will arrive
        any more."""
        if self._ended:
            return None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                fresh = await self._queue.get()
                self._drained.set()
                self._ended = fresh is None
                return fresh
        return None

    async def _commit(self, rounds: list[CommitUnit]) -> bool:
        """Commit these units in one transaction, with those that arrive during a backlog. Return
        whether there still is a backlog."""
        if self.partitions > PARTITIONS:
            return await self._commit_in_parts(rounds)
        began = monotonic()
        await self.transactions.begin()
        last = rounds[-1]
        for done in rounds[:-1]:
            await self._send(done)
        while last.outcome.backlog and (left := began + BULK_S - monotonic()) > 0:
            await self._send(last)
            more = await self._next(left)
            if more is None:
                break
            rounds.append(more)
            last = more
        await self._settle_plain(last)
        delta = functools.reduce(Delta.merge, (done.delta for done in rounds))
        offsets = await self._record(delta, () if last.sent else last.transactional, *_join_machines(rounds))
        last.offsets = last.offsets or offsets
        self.metrics.commit_seconds.observe(monotonic() - began)
        for done in rounds:
            self._finish(done)
        self.on_commit()
        return last.outcome.backlog

    async def _commit_in_parts(self, rounds: Sequence[CommitUnit]) -> bool:
        """Commit units one after the other, each in as many transactions as its partitions need.
        Return whether there is a backlog."""
        for done in rounds:
            await self._settle_plain(done)
            parts = list(split(done.owned, done.delta, self.state.cursors, PARTITIONS))
            # no consumer may be told of a sequence before its ledger entry is committed
            parts[0][0].extend(done.outcome.ledger)
            # the index goes with the cursors, since it has no position of its own
            parts[-1][0].extend(done.outcome.index)
            for batches, delta in parts:
                is_last = delta is parts[-1][1]
                machines = {c: r for c, r in done.machines.items() if is_last or c in delta.consumers}
                done.machines = {c: r for c, r in done.machines.items() if c not in machines}
                began = monotonic()
                await self.transactions.begin()
                records = [record for each in machines.values() for record in each]
                done.offsets += await self._record(delta, batches, records, done.is_checkpoint and len(parts) == 1)
                self.metrics.commit_seconds.observe(monotonic() - began)
                await asyncio.sleep(PAUSE_S)
            self._finish(done)
            self.on_commit()
        return rounds[-1].outcome.backlog

    async def _send(self, done: CommitUnit) -> None:
        """Send a unit's batches in the open transaction."""
        await self._settle_plain(done)
        done.offsets = await self.transactions.send(done.transactional)
        done.sent = True
        self._release(done)

    def _finish(self, done: CommitUnit) -> None:
        """Announce that a unit's records are readable: run its callback and count its round."""
        if done.on_commit is not None:
            done.on_commit(done)
        self._release(done)
        self.on_outcome(done.outcome)

    def _release(self, done: CommitUnit) -> None:
        """Free the batches of a unit, which Kafka has now."""
        done.outcome.batches.clear()
        done.outcome.ledger.clear()
        done.outcome.index.clear()
        self._queued -= done.size
        done.size = 0
        self._drained.set()

    async def _settle_plain(self, done: CommitUnit) -> None:
        """Wait until a unit's plain sends have ended. Raises their error."""
        if done.plain is not None:
            await done.plain

    async def _record(
        self,
        delta: Delta,
        batches: Sequence[OutputBatch] = (),
        machines: Sequence[Record] = (),
        is_checkpoint: bool = False,
    ) -> list[int]:
        """Write a delta or, every CHECKPOINT_EVERY records, a checkpoint, and commit. Return the
        offsets of `batches`.

        Records below a checkpoint are deleted if the same transaction holds the state of all
        machines, or if none runs. The records of machines that are not served now are then written
        again, since they contain unacked messages.
        """
        self.state.apply(delta)
        checkpoint = is_checkpoint or self._written % CHECKPOINT_EVERY == 0
        written = self.state.checkpoint() if checkpoint else delta
        tells_all = is_checkpoint or (checkpoint and not self.has_machines)
        if tells_all:
            machines = [*machines, *self.state.list_machines()]
        offset, offsets = await self.transactions.finish(encode(written, checkpoint=checkpoint), batches, machines)
        self._written += 1
        self.since_all += 1
        if tells_all:
            await self._forget_below(offset)
        return offsets

    async def _forget_below(self, offset: int) -> None:
        """Delete the state records that a checkpoint replaces. If Kafka refuses, the log only
        grows."""
        topic, shard = self.place
        try:
            await self.admin.delete_records(topic, shard, offset)
        except OverlayError as error:
            log.warning("old state records are kept", reason=str(error))


def _join_machines(rounds: Sequence[CommitUnit]) -> tuple[list[Record], bool]:
    """Return the machine records of units that are committed together, and whether they hold the
    state of all machines."""
    machines: dict[ConsumerId, list[Record]] = {}
    is_checkpoint = False
    for done in rounds:
        if done.is_checkpoint:
            machines.clear()
            is_checkpoint = True
        for consumer in done.delta.forgotten:
            machines.pop(consumer, None)
        for consumer, records in done.machines.items():
            machines.setdefault(consumer, []).extend(records)
    return [record for records in machines.values() for record in records], is_checkpoint
