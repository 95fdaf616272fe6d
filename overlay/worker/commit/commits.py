"""The commit loop of a session: finished rounds become transactions.

When a transaction ends depends on what is left to read. If there is nothing more to read, it ends
at once, since readers wait for the records. If there is a backlog, it ends after a quarter of a
second, since each commit has a fixed cost; but at once if it also has records of consumers at the
tail. After a commit at the tail the loop waits 5 ms: a transaction begun at once would have to wait
for the broker, which is still completing the last one (docs/exactly-once.md#transactions). A
session with more output partitions than one transaction bears commits each round in parts
(transaction_parts.py).

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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from overlay.worker.round.task import Counts

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


@dataclass(frozen=True, slots=True)
class CommitUnit:
    """What is committed together: a round of the pipeline, or a step of the dispatcher."""

    delta: Delta
    batches: Sequence[tuple[tuple[ConsumerId, ...], OutputBatch]] = ()
    """Output batches, each with its consumers."""
    ledger: Sequence[OutputBatch] = ()
    """Ledger entries, as batches for the index topics."""
    index: Sequence[OutputBatch] = ()
    """Chunk headers, as batches for the index topics."""
    machines: Mapping[ConsumerId, Sequence[Record]] = field(default_factory=dict)
    """State records of the consumers' machines."""
    is_checkpoint: bool = False
    """Whether `machines` holds the whole state of every machine."""
    answers: Sequence[Entry | OutputBatch] = ()
    """Replies to clients that wait for them; `on_commit` sends them."""
    counts: Counts = field(default_factory=Counts)
    """What is counted after the commit."""
    backlog: bool = False
    """Whether much more is waiting to be read, and no consumer at the tail waits for this unit."""
    on_commit: Callable[[Sequence[int]], None] | None = None
    """Called after the commit, with the offsets of the batches in `owned`."""
    is_awaited: bool = False
    """Whether the one who has put the unit waits for its commit."""
    plain: asyncio.Task[Any] | None = None
    """The task that sends the batches of at-least-once consumers. It must end before the positions
    are written."""

    @property
    def owned(self) -> list[tuple[tuple[ConsumerId, ...], OutputBatch]]:
        """The unit's output batches that are written in a transaction, each with its consumers.
        Batches of at-least-once consumers are left out."""
        return [(consumers, outgoing) for consumers, outgoing in self.batches if outgoing.batch.is_transactional]

    @property
    def transactional(self) -> list[OutputBatch]:
        """All batches that are written in the transaction: those of `owned`, the ledger entries and
        the chunk headers, in this order."""
        return [*(outgoing for _, outgoing in self.owned), *self.ledger, *self.index]

    @property
    def is_light(self) -> bool:
        """Whether the unit has nothing for the transaction but positions, and nothing to call after
        it."""
        return not (self.transactional or self.machines or self.is_checkpoint or self.on_commit)

    @property
    def is_waited_for(self) -> bool:
        """Whether the unit has deliveries for the transaction, ledger entries or answers, so that readers or clients
        wait for its commit, or is awaited otherwise. Other units can wait for the next transaction.
        """
        return bool(self.is_awaited or self.owned or self.ledger or self.answers)

    @property
    def size(self) -> int:
        """Bytes of all its batches and answers."""
        outgoing = (*(each for _, each in self.batches), *self.ledger, *self.index)
        return sum(each.batch.size for each in outgoing) + sum(answer.size for answer in self.answers)


class _Queued:
    """A unit in the commit queue or in a transaction. Its batches are dropped from memory once
    Kafka has them."""

    def __init__(self, unit: CommitUnit) -> None:
        self.unit = unit
        self.size = unit.size
        """Bytes that are still held."""
        self.offsets: list[int] = []
        """The offsets of the batches in `owned`, once they are with Kafka."""
        self.is_sent = False
        """Whether its transactional batches are in the open transaction."""

    def let_go(self) -> int:
        """Drop the unit's batches from memory. Return how many bytes they and the answers had; 0 if
        they were dropped before."""
        if self.unit.batches or self.unit.ledger or self.unit.index:
            self.unit = replace(self.unit, batches=(), ledger=(), index=())
        held, self.size = self.size, 0
        return held


@dataclass(slots=True)
class Commits:
    """Commits units in the order in which they were put, several in one transaction where that is
    cheaper. Good for one session; unusable after an error."""

    transactions: Transactions
    state: ShardState
    place: tuple[str, int]
    """Topic and partition of the shard's state."""
    admin: Admin
    metrics: Metrics
    on_counts: Callable[[Counts], None]
    """Called with what a unit counts once readers can see it."""
    on_commit: Callable[[], None]
    """Called after each successful transaction that contained rounds."""
    partitions: int = 0
    """How many output partitions the session writes to."""
    has_machines: bool = False
    """Whether consumers have machines. Then the shard's state is complete only in a unit with
    `is_checkpoint`."""
    _queue: asyncio.Queue[_Queued | None] = field(default_factory=asyncio.Queue)
    _queued: int = 0
    """Bytes that wait to be sent."""
    _drained: asyncio.Event = field(default_factory=asyncio.Event)
    _ended: bool = False
    _written: int = 0
    """State records that this session has written."""
    since_all: int = 0
    """State records that were written since a unit with `is_checkpoint` was last put; at first, the
    number of records in the log."""

    @property
    def wants_all(self) -> bool:
        """Whether the next unit should contain the whole state of all machines (the consumers with
        acks). Only then can older state records be deleted."""
        return self.has_machines and self.since_all >= TELL_ALL_EVERY

    async def open(self, everything: Delta, opening: Sequence[OutputBatch] = ()) -> None:
        """Commit the first transaction of the session. Call once, before `run`. `everything`:
        the positions of all cursors and consumers. `opening`: batches for index topics, such as the
        first entries of ledgers."""
        await self.transactions.begin()
        await self._record(everything, opening)

    async def put(self, unit: CommitUnit) -> None:
        """Queue a unit. Wait while more than QUEUE_BYTES or QUEUE_ROUNDS are queued, but not for
        its commit. A unit whose batches are all sent outside of transactions is queued without
        waiting. If `run` has failed, this may wait for ever: the caller has to be cancelled
        then."""
        if unit.is_checkpoint:
            self.since_all = 0
        queued = _Queued(unit)
        self._queued += queued.size
        self._queue.put_nowait(queued)
        if unit.plain is not None and not unit.transactional:
            unit.plain.add_done_callback(lambda _: self._release(queued))
            # its records are being sent already, so the reading loop need not wait for a
            # transaction to end
            return
        while self._queued > QUEUE_BYTES or self._queue.qsize() > QUEUE_ROUNDS:
            self._drained.clear()
            await self._drained.wait()

    def end(self) -> None:
        """Have `run` return once all queued units are committed; does not wait for it. No unit may
        be put afterwards."""
        self._queue.put_nowait(None)

    async def run(self) -> None:
        """Commit the units that are put, until `end` was called and all are committed. Write an
        empty record every PROOF_S if there is nothing to commit. Raises the error of the first
        transaction, or plain send, that fails."""
        pending: list[_Queued] = []
        written = monotonic()
        while not self._ended or pending:
            fresh = await self._take_queued()
            await self._gather(pending, fresh)
            waited_for = any(each.unit.is_waited_for for each in fresh)
            if pending and (waited_for or self._ended or monotonic() - written >= LAZY_S):
                backlog = await self._commit(pending)
                pending, written = [], monotonic()
                if not backlog:
                    await asyncio.sleep(PAUSE_S)
            elif not self._ended and monotonic() - written >= PROOF_S:
                await self.transactions.begin()
                await self._record(Delta())
                written = monotonic()

    async def _gather(self, pending: list[_Queued], fresh: Iterable[_Queued]) -> None:
        """Add the units `fresh` to `pending`, which is to be committed.

        A light unit (positions only) is finished here: its plain sends are awaited, and it is
        counted. Only its positions remain to be written, and are merged with those of the unit
        before it if that is light as well.
        """
        for each in fresh:
            if each.unit.is_light:
                await self._settle_plain(each.unit)
                self._finish(each)
                delta = each.unit.delta
                if pending and pending[-1].unit.is_light:
                    delta = pending.pop().unit.delta.merge(delta)
                each = _Queued(CommitUnit(delta, backlog=each.unit.backlog))
            pending.append(each)

    async def _take_queued(self) -> list[_Queued]:
        """Wait up to LAZY_S for a unit. Return it and all others that are queued then; empty if
        none has arrived."""
        first = await self._next(LAZY_S)
        taken = [first] if first else []
        while not self._queue.empty() and not self._ended:
            more = self._queue.get_nowait()
            self._drained.set()
            self._ended = more is None
            taken += [more] if more else []
        return taken

    async def _next(self, patience: float) -> _Queued | None:
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

    async def _commit(self, queued: list[_Queued]) -> bool:
        """Commit these units, in one transaction unless the session writes to more than PARTITIONS output partitions
        (`_commit_in_parts`). Return whether the last one tells of a backlog (much more is waiting to be read).

        While it does, that one transaction stays open for up to BULK_S, and units that arrive are added to `queued`
        and committed with it.
        """
        if self.partitions > PARTITIONS:
            return await self._commit_in_parts(queued)
        began = monotonic()
        await self.transactions.begin()
        last = queued[-1]
        for each in queued[:-1]:
            await self._send(each)
        while last.unit.backlog and (left := began + BULK_S - monotonic()) > 0:
            await self._send(last)
            more = await self._next(left)
            if more is None:
                break
            queued.append(more)
            last = more
        await self._settle_plain(last.unit)
        units = [each.unit for each in queued]
        delta = functools.reduce(Delta.merge, (unit.delta for unit in units))
        offsets = await self._record(delta, () if last.is_sent else last.unit.transactional, *_join_machines(units))
        last.offsets = last.offsets or offsets
        self.metrics.commit_seconds.observe(monotonic() - began)
        for each in queued:
            self._finish(each)
        self.on_commit()
        return last.unit.backlog

    async def _commit_in_parts(self, queued: Sequence[_Queued]) -> bool:
        """Commit units one after the other, each in transactions of at most PARTITIONS output
        partitions, as `split` divides them. Return whether the last unit tells of a backlog (much
        more is waiting to be read)."""
        for each in queued:
            unit = each.unit
            await self._settle_plain(unit)
            parts = list(split(unit.owned, unit.delta, self.state.cursors, PARTITIONS))
            # no consumer may be told of a sequence before its ledger entry is committed
            parts[0][0].extend(unit.ledger)
            # the index goes with the cursors, since it has no position of its own
            parts[-1][0].extend(unit.index)
            left = dict(unit.machines)
            for batches, delta in parts:
                is_last = delta is parts[-1][1]
                mine = [consumer for consumer in left if is_last or consumer in delta.consumers]
                records = [record for consumer in mine for record in left.pop(consumer)]
                began = monotonic()
                await self.transactions.begin()
                each.offsets += await self._record(delta, batches, records, unit.is_checkpoint and len(parts) == 1)
                self.metrics.commit_seconds.observe(monotonic() - began)
                await asyncio.sleep(PAUSE_S)
            self._finish(each)
            self.on_commit()
        return queued[-1].unit.backlog

    async def _send(self, queued: _Queued) -> None:
        """Send a unit's transactional batches in the open transaction, wait until Kafka has them,
        and drop them from memory. Waits for the unit's plain sends first."""
        await self._settle_plain(queued.unit)
        queued.offsets = await self.transactions.send(queued.unit.transactional)
        queued.is_sent = True
        self._release(queued)

    def _finish(self, queued: _Queued) -> None:
        """Finish a unit: call its `on_commit`, drop its batches, and pass its counts to `on_counts`. Call it
        after the unit's commit; for a light unit, once its plain sends are done."""
        if queued.unit.on_commit is not None:
            queued.unit.on_commit(queued.offsets)
        self._release(queued)
        self.on_counts(queued.unit.counts)

    def _release(self, queued: _Queued) -> None:
        """Drop a unit's batches from memory once Kafka has them, and wake a waiting `put`."""
        self._queued -= queued.let_go()
        self._drained.set()

    async def _settle_plain(self, unit: CommitUnit) -> None:
        """Wait until a unit's batches that are sent outside of transactions have been sent; return
        at once if it has none. Raises the error of sending them."""
        if unit.plain is not None:
            await unit.plain

    async def _record(
        self,
        delta: Delta,
        batches: Sequence[OutputBatch] = (),
        machines: Sequence[Record] = (),
        is_checkpoint: bool = False,
    ) -> list[int]:
        """Apply a delta to the state and commit the open transaction with it, `batches` and the
        machine records. Return the offsets of `batches`.

        The whole state, and what the delta forgets, is written instead of the delta with `is_checkpoint`, in the session's
        first transaction, and in every CHECKPOINT_EVERY-th after that. Records below such a checkpoint are deleted if the
        same transaction holds the state of all machines, or if none runs. The records of machines that are not served now
        are then written again, since they contain unacked messages.
        """
        self.state.apply(delta)
        checkpoint = is_checkpoint or self._written % CHECKPOINT_EVERY == 0
        # the records of machines may stay in force, but not those of consumers that the delta forgets
        written = replace(self.state.checkpoint(), forgotten=delta.forgotten) if checkpoint else delta
        tells_all = is_checkpoint or (checkpoint and not self.has_machines)
        if tells_all:
            machines = [*machines, *self.state.list_machines()]
        value = encode(written, checkpoint=checkpoint, after=self.state.end, is_whole=tells_all)
        offset, offsets = await self.transactions.finish(value, batches, machines, after=self.state.end)
        self.state.end = offset + 1 + len(machines)
        self._written += 1
        self.since_all += 1
        if tells_all:
            await self._forget_below(offset)
        return offsets

    async def _forget_below(self, offset: int) -> None:
        """Delete the state records below `offset`, that of a checkpoint which replaces them. If Kafka
        refuses, log that: the log only grows."""
        topic, shard = self.place
        try:
            await self.admin.delete_records(topic, shard, offset)
        except OverlayError as error:
            log.warning("old state records are kept", reason=str(error))


def _join_machines(units: Sequence[CommitUnit]) -> tuple[list[Record], bool]:
    """Return the machine records to write for units that are committed together, and whether they
    hold the state of all machines. Records that a later unit makes obsolete are left out."""
    machines: dict[ConsumerId, list[Record]] = {}
    is_checkpoint = False
    for unit in units:
        if unit.is_checkpoint:
            machines.clear()
            is_checkpoint = True
        for consumer in unit.delta.forgotten:
            machines.pop(consumer, None)
        for consumer, records in unit.machines.items():
            machines.setdefault(consumer, []).extend(records)
    return [record for records in machines.values() for record in records], is_checkpoint
