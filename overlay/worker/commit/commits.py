"""The commit loop of a session: finished rounds become transactions.

A transaction ends when it is time: at once when there is nothing more to read, since somebody waits for the records; after
a quarter of a second when there is a backlog, since each commit has its price. After a commit at the tail the loop waits 5
ms: a transaction opened at once would run into the broker still ending the last one (design 11.8). A session with more
output partitions than one transaction bears commits each round in parts (transaction_parts.py).

Rounds that have nothing for a transaction but positions are written once a second: nobody was given anything in them, or only
at-least-once consumers, whose records are there as soon as they are sent. At the tail there are hundreds a second. Each is
counted when it comes and made one with those before it, or the second would end with tens of milliseconds of work at once.
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
from overlay.worker.round.pipeline import RoundResult

from .transaction_parts import PARTITIONS, split

log = get_logger(__name__)

BULK_S = 0.25
"""How long a transaction collects while there is a backlog."""
PAUSE_S = 0.005
"""Wait after a commit at the tail."""
LAZY_S = 1.0
"""How often progress without deliveries is written."""
PROOF_S = 5.0
"""How often an idle owner writes an empty record: only by writing does it notice that its shard was taken over."""
QUEUE_BYTES = 16 << 20
"""While so many bytes of finished batches wait to be sent, no further round is taken in."""
QUEUE_ROUNDS = 2
"""Nor while so many wait: what comes meanwhile makes one large batch instead of many small ones with a request each."""
CHECKPOINT_EVERY = 1_000
TELL_ALL_EVERY = 10_000
"""Records of the state after which machines that have nothing new to say have to say everything."""


@dataclass(slots=True)
class CommitUnit:
    """A round's outcome and what the state has to remember of it."""

    outcome: RoundResult
    delta: Delta
    machines: dict[ConsumerId, list[Record]] = field(default_factory=dict)
    """State records of consumers' machines."""
    is_checkpoint: bool = False
    """Whether `machines` holds all that there is to know of every machine."""
    size: int = field(init=False)
    """Bytes of its batches and answers, until the batches are with Kafka and the answers are handed on."""
    offsets: list[int] = field(default_factory=list)
    """Where `owned` went, once it is with Kafka."""
    answers: Sequence[Entry | OutputBatch] = ()
    """Sent by `on_commit`: clients wait for them."""
    on_commit: Callable[[CommitUnit], None] | None = None
    """Told of the commit."""
    plain: asyncio.Task[Any] | None = None
    """The sends of at-least-once consumers, which must be through before the positions are written."""
    sent: bool = False
    """Whether its transactional batches are in the open transaction."""

    def __post_init__(self) -> None:
        self.size = self.outcome.size + sum(answer.size for answer in self.answers)

    @property
    def owned(self) -> list[tuple[ConsumerId, OutputBatch]]:
        """Its transactional batches and whose they are."""
        return [(consumer, outgoing) for consumer, outgoing in self.outcome.batches if outgoing.batch.is_transactional]

    @property
    def transactional(self) -> list[OutputBatch]:
        """These batches and those of the ledgers and the chunk indexes."""
        return [*(outgoing for _, outgoing in self.owned), *self.outcome.ledger, *self.outcome.index]

    @property
    def is_light(self) -> bool:
        """Whether there is nothing for the transaction in it but positions."""
        return not (self.transactional or self.machines or self.is_checkpoint or self.on_commit)

    @property
    def is_waited_for(self) -> bool:
        """Whether somebody waits for what it brings; positions alone can wait."""
        return bool(self.owned or self.outcome.ledger or self.answers)


@dataclass(slots=True)
class Commits:
    """Takes rounds in and commits them in order. Good for one session: after an error nothing here is of use."""

    transactions: Transactions
    state: ShardState
    place: tuple[str, int]
    """Topic and partition of the state."""
    admin: Admin
    metrics: Metrics
    on_outcome: Callable[[RoundResult], None]
    """Told of what a round has brought once it is there for readers."""
    on_commit: Callable[[], None]
    """Told of each transaction with rounds that has ended well."""
    partitions: int = 0
    """How many output partitions the session writes to."""
    has_machines: bool = False
    """Whether consumers have machines, of which only a round that says so tells everything."""
    _queue: asyncio.Queue[CommitUnit | None] = field(default_factory=asyncio.Queue)
    _queued: int = 0
    _drained: asyncio.Event = field(default_factory=asyncio.Event)
    _ended: bool = False
    _written: int = 0
    since_all: int = 0
    """Records of the state since the last one below which all was let go of."""

    @property
    def wants_all(self) -> bool:
        """Whether it is time for a round that tells everything of all machines: without it the state's log only grows."""
        return self.has_machines and self.since_all >= TELL_ALL_EVERY

    async def open(self, everything: Delta, opening: Sequence[OutputBatch] = ()) -> None:
        """Write where everyone stands, and what ledgers begin with, before anything is delivered."""
        await self.transactions.begin()
        await self._record(everything, opening)

    async def put(self, done: CommitUnit) -> None:
        """Take a round in, and wait while too much is waiting to be sent."""
        if done.is_checkpoint:
            self.since_all = 0
        self._queued += done.size
        self._queue.put_nowait(done)
        if done.plain is not None and not done.transactional:
            done.plain.add_done_callback(lambda _: self._release(done))
            return  # it is on its way: a transaction that is just ending need not hold up the next one
        while self._queued > QUEUE_BYTES or self._queue.qsize() > QUEUE_ROUNDS:
            self._drained.clear()
            await self._drained.wait()

    def end(self) -> None:
        """There are no more rounds; `run` returns when those it has are committed."""
        self._queue.put_nowait(None)

    async def run(self) -> None:
        """Commit what `put` brings, until `end`."""
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
        """Add rounds to those that are to be committed; of light ones only the positions are still to be."""
        for done in fresh:
            if done.is_light:
                await self._settle_plain(done)
                self._finish(done)
                done.outcome = RoundResult(backlog=done.outcome.backlog)
                if pending and pending[-1].is_light:
                    done.delta = pending.pop().delta.merge(done.delta)
            pending.append(done)

    async def _take_rounds(self) -> list[CommitUnit]:
        """Every round that is ready, or the next one; none when none comes for a while."""
        first = await self._next(LAZY_S)
        rounds = [first] if first else []
        while not self._queue.empty() and not self._ended:
            more = self._queue.get_nowait()
            self._drained.set()
            self._ended = more is None
            rounds += [more] if more else []
        return rounds

    async def _next(self, patience: float) -> CommitUnit | None:
        """The next round; None when none comes in time or there will be no more."""
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
        """One transaction with these rounds, and with those that come while there is a backlog; whether there still is."""
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
        """Round by round, each in as many transactions as its partitions need; whether there is a backlog."""
        for done in rounds:
            await self._settle_plain(done)
            parts = list(split(done.owned, done.delta, self.state.cursors, PARTITIONS))
            # nobody may be told of a sequence before its round is committed
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
        await self._settle_plain(done)
        done.offsets = await self.transactions.send(done.transactional)
        done.sent = True
        self._release(done)

    def _finish(self, done: CommitUnit) -> None:
        """What it brings is there for readers: tell those who count on it."""
        if done.on_commit is not None:
            done.on_commit(done)
        self._release(done)
        self.on_outcome(done.outcome)

    def _release(self, done: CommitUnit) -> None:
        """Its batches are with Kafka: let go of their memory."""
        done.outcome.batches.clear()
        done.outcome.ledger.clear()
        done.outcome.index.clear()
        self._queued -= done.size
        done.size = 0
        self._drained.set()

    async def _settle_plain(self, done: CommitUnit) -> None:
        if done.plain is not None:
            await done.plain

    async def _record(
        self,
        delta: Delta,
        batches: Sequence[OutputBatch] = (),
        machines: Sequence[Record] = (),
        is_checkpoint: bool = False,
    ) -> list[int]:
        """Write a delta and commit; now and then a checkpoint instead. Returns where the batches went.

        What lies below a checkpoint is let go of, where it says all of the machines as well or none runs. Those of consumers
        that are not served now are said again then: their messages without an ack wait for them.
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
        """Delete the state records that a checkpoint makes superfluous; where that cannot be done the log only grows."""
        topic, shard = self.place
        try:
            await self.admin.delete_records(topic, shard, offset)
        except OverlayError as error:
            log.warning("old state records are kept", reason=str(error))


def _join_machines(rounds: Sequence[CommitUnit]) -> tuple[list[Record], bool]:
    """The machines' records of some rounds that are committed together, and whether they tell everything of all."""
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
