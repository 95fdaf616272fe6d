"""A session: one ownership of a shard, from its takeover to its first error or its end.

Three activities run side by side. The fetcher fetches ahead. The reading loop takes fetched data
one round at a time, has the pipeline turn it into finished batches in a thread, and has the cursors
moved (worker/cursors/cursors.py). The commit loop (worker/commit/commits.py) sends the batches of
one round while the pipeline works on the next. If consumers have machines, a dispatch loop
(worker/dispatch_loop.py) runs as well.

Nothing here survives an error. Positions in memory run ahead of what is committed, so after a
failure the whole session is thrown away and the next one begins from the state partition.
"""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from aiokafka.client import AIOKafkaClient

from overlay.clock import monotonic, now_ms
from overlay.jobs import Jobs
from overlay.kafka.admin import Admin
from overlay.kafka.fetcher import Fetcher
from overlay.kafka.passed_over import OnPassedOver, ignore
from overlay.logs import get_logger
from overlay.metrics import Metrics
from overlay.output.batch_builder import refuse_oversized
from overlay.output.transaction import PlainSender
from overlay.schemas.gate import SchemaGate, Wait, open_gate
from overlay.state.shard_state import Delta, StreamPartition
from overlay.waits import is_set_within, set_after

from .assignment import Assignment
from .backpressure import Backpressure
from .changes import Change, can_take_up
from .commit.commits import Commits, CommitUnit
from .commit.counting import Counting
from .cursors.cursors import Cursors, Moved
from .cursors.intake import Round
from .dispatch_loop import DispatchLoop
from .kept.following import Following, follow_given_out
from .kept.indexes import find_reaches
from .last_messages import Snapshots
from .round.indexing import Reach
from .round.pending_estimate import PendingEstimate
from .round.pipeline import Pipeline
from .round.task import RoundResult
from .source_fetches import SourceFetches

log = get_logger(__name__)

SEAL_S = 1.0
"""Seconds between two checks for chunks that are old enough to be sealed, while no records come."""
IDLE_S = 60.0
"""The same if no chunk has records to be sealed. Ledgers of idle partitions are looked at then."""


@dataclass(slots=True)
class Session:
    """One ownership of a shard, from its takeover to its end: the reading loop and everything that
    belongs to it. Good for one run."""

    client: AIOKafkaClient
    admin: Admin
    metrics: Metrics
    assignment: Assignment
    cursors: Cursors
    commits: Commits
    plain: PlainSender | None
    on_passed_over: OnPassedOver = ignore
    """Called for each batch of a source that could not be read."""
    dispatch_loop: DispatchLoop | None = None
    """The loop that serves the consumers with machines; None if the session has none."""
    fetches: SourceFetches = field(init=False)
    gates: dict[str, SchemaGate] = field(init=False)
    """By stream whose schemas a registry has, what holds its records back."""
    following: Following = field(init=False)
    snapshots: Snapshots = field(init=False)
    pending_estimate: PendingEstimate = field(init=False)
    counting: Counting = field(init=False)
    reaches: dict[StreamPartition, Reach] = field(init=False)
    """For each partition indexed here, how far its chunk index reaches, with chunks whose headers are not committed yet."""
    is_over: bool = False
    """Whether the session only waits for its tasks to end. Other parts of the service must not use it then."""
    _changes: deque[tuple[Change, asyncio.Future[bool]]] = field(default_factory=deque)
    """Changes that the reading loop has still to take up."""
    _open: set[asyncio.Future[bool]] = field(default_factory=set)
    """What waits for changes to be taken up and committed."""
    _is_ending: bool = False
    """Whether no more changes are taken up: what is under way may take seconds to be committed."""
    _changed: asyncio.Event | None = None
    """Has the reading loop look again; None while it does not run."""
    _serving: asyncio.Task[None] | None = None
    _backpressure: Backpressure | None = None

    def __post_init__(self) -> None:
        self.following = Following(self.assignment)
        self.snapshots = Snapshots(self.client, self.metrics, self.assignment, self.cursors)
        compacted = [topic for topic in self.assignment.topics if self.assignment.is_compacted(topic)]
        self.pending_estimate = PendingEstimate(self.assignment.streams, self.assignment.indexes, compacted)
        self.gates = self._open_gates()
        self.reaches = find_reaches(self.assignment, self.cursors)
        self.counting = Counting(self.metrics, self.reaches, self.on_passed_over)

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop`, then commit the rounds under way. Raises the error that ends the session early."""
        self.cursors.begin(now_ms())
        await self.commits.open(self.cursors.everything(), self.assignment.opening)
        self.cursors.note_committed(
            {stream: self.assignment.ledgers[stream].next_sequence for stream in self.assignment.heads}
        )
        for topic in {topic for (_, (topic, _)), _ in self.cursors.all()}:
            await self.client.add_topic(topic)
        fetcher = Fetcher(self.client)
        self._changed = fetcher.changed
        self.fetches = SourceFetches(self.cursors, fetcher, self.admin, self.metrics, self.gates)
        stopping = asyncio.create_task(set_after(stop, fetcher.changed), name="stopping")
        stopping.add_done_callback(lambda _: self._refuse_changes())
        try:
            await self.following.open(fetcher)
            self.fetches.follow()
            reading = asyncio.create_task(self._read(fetcher.changed, stop), name="reading")
            committing = asyncio.create_task(self.commits.run(), name="committing")
            if self.dispatch_loop is not None:
                self._backpressure = Backpressure(self.cursors, self.dispatch_loop, fetcher.changed.set)
                self.dispatch_loop.on_progress = self._backpressure.note_progress
                self._serving = asyncio.create_task(self.dispatch_loop.run(), name="dispatching")
            await self._run_all(reading, committing, *((self._serving,) if self._serving else ()))
        finally:
            stopping.cancel()
            await fetcher.close()

    async def take_up(self, change: Change) -> bool:
        """Have the reading loop take up a change between two rounds, and wait until what it must record is committed. Return
        whether that was done: False if the session ends before, or has become such that a new one has to take it up. It may
        be done later if the caller does not wait any more."""
        if self.is_over or self._is_ending:
            return False
        taken = asyncio.get_running_loop().create_future()
        self._changes.append((change, taken))
        self._open.add(taken)
        if self._changed is not None:
            self._changed.set()
        try:
            return bool(await taken)
        finally:
            self._open.discard(taken)

    def _refuse_changes(self) -> None:
        """Take no more changes up, since the session is to end. Those that the reading loop has not taken up are refused."""
        self._is_ending = True
        waiting = [taken for _, taken in self._changes if not taken.done()]
        self._changes.clear()
        for taken in waiting:
            taken.set_result(False)

    def give_up(self) -> None:
        """Have no change taken up any more. Those that wait for one are told that it is not."""
        self.is_over = True
        for taken in self._open:
            if not taken.done():
                taken.set_result(False)

    def _open_gates(self) -> dict[str, SchemaGate]:
        asked = self.metrics.schemas_asked
        gates = {
            name: open_gate(stream, lambda outcome, name=name: asked.labels(name, outcome).inc())  # type: ignore[misc]
            for name, stream in self.assignment.streams.items()
        }
        return {name: gate for name, gate in gates.items() if gate is not None}

    def list_waits(self) -> Iterator[tuple[StreamPartition, Wait]]:
        """Yield each partition whose records wait for the schema registry."""
        for stream, gate in self.gates.items():
            for source, wait in gate.waits.items():
                yield (stream, source), wait

    async def _run_all(self, *tasks: asyncio.Task[None]) -> None:
        """Wait until all tasks have ended. The first error cancels the others, and is raised when
        these have ended; that may take as long as a job in a thread. Sets `is_over` when the first
        one fails or all are done."""
        try:
            await asyncio.gather(*tasks)
        finally:
            self.is_over = True
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, changed: asyncio.Event, stop: asyncio.Event) -> None:
        """Read, process and queue rounds until `stop`, then hand the rest to the commit loop.

        `changed` is set when there may be something to do, and by `stop`. While the pipeline works on a round, plain
        sends (those outside of transactions) of at most one earlier round are under way. What is fetched meanwhile makes
        the next round larger, and so cheaper per record.
        """
        sending: asyncio.Task[None] | None = None
        try:
            async with Jobs("pipeline") as jobs:
                pipeline = Pipeline(
                    self.assignment.streams,
                    self.cursors.sequences,
                    self.assignment.index_topics,
                    self.assignment.ledgers,
                    self.pending_estimate,
                )
                while not stop.is_set():
                    changed.clear()
                    await self._take_up_changes(pipeline)
                    made = await self._prepare(changed)
                    if not made.tasks:
                        self._note_ends()
                        patience = SEAL_S if pipeline.has_growing_chunks else IDLE_S
                        if await is_set_within(changed, patience if self.assignment.index_topics else None):
                            continue
                    result = await jobs.run(pipeline.run, made.tasks, now_ms())
                    if not made.tasks and not result.index and not result.ledger:
                        continue
                    previous = sending
                    unit = self._absorb(result, made, changed)
                    sending = unit.plain or sending
                    await self.commits.put(unit)
                    if previous is not None:
                        # sends pile up no further: data fetched meanwhile makes a larger round
                        await previous
                rest = await jobs.run(pipeline.close, now_ms())
                if rest.index:
                    self.counting.take(rest)
                    await self.commits.put(CommitUnit(self.cursors.delta((), ()), index=rest.index, counts=rest.counts))
                if self.dispatch_loop is not None and self._serving is not None:
                    self.dispatch_loop.end()
                    await self._serving
                self.commits.end()
        finally:
            await self.snapshots.close()

    async def _take_up_changes(self, pipeline: Pipeline) -> None:
        """Take up the changes that wait for it, and queue the units of those that have something to record."""
        while self._changes:
            change, taken = self._changes.popleft()
            if taken.done():
                continue
            if not can_take_up(self.assignment, self.cursors, self.commits.state, change.step):
                taken.set_result(False)
                continue
            delta = self._change(change, pipeline)
            log.info("consumers change while the session runs", **change.step.describe())
            if not delta and not change.unused:
                taken.set_result(True)
                continue
            unit = CommitUnit(delta, on_commit=functools.partial(self._finish_change, change, taken), is_awaited=True)
            await self.commits.put(unit)

    def _change(self, change: Change, pipeline: Pipeline) -> Delta:
        """Change what the session serves. Return what the state must record: the states of new consumers, and the positions
        of others that have changed thereby; those that are deleted are forgotten."""
        step, gone = change.step, change.step.removed.keys()
        forgotten = Delta(forgotten=tuple(sorted(step.forget)))
        if not step.touches_readers:
            return forgotten
        left = self.cursors.dismiss(gone)
        self.assignment.take_up(change.readers, gone)
        self.assignment.outputs.update(change.outputs)
        for topic in change.unused:
            self.assignment.outputs.pop(topic, None)
        self.commits.partitions = self.assignment.output_partitions
        for consumer, state in change.begun.items():
            self.cursors.admit(consumer, state)
        came = self.cursors.renew(change.readers.keys(), now_ms())
        self.pending_estimate.forget({*change.readers, *gone})
        self.counting.forget({*change.readers, *gone})
        pipeline.renew(self.cursors.sequences)
        delta = self.cursors.delta(left.partitions | came.partitions, left.consumers | came.consumers)
        return forgotten.merge(delta)

    def _finish_change(self, change: Change, taken: asyncio.Future[bool], _: Sequence[int]) -> None:
        """Tell the one who waits for a change that it is committed. What was written to its unused topics is as well."""
        self.commits.transactions.drop_topics(change.unused)
        if not taken.done():
            taken.set_result(True)

    async def _prepare(self, changed: asyncio.Event) -> Round:
        """Return the next round, which may be empty. Before, handle failed fetches, followed ledgers, searches for
        last messages, parked consumers and cursor groups that a corrupt batch has stopped, and have the fetcher go
        on.

        Queues a commit unit, and waits for room in the queue, if a position has moved to its log's start.
        """
        moved = await self.fetches.recover()
        if moved.partitions:
            # the moved positions are stored even if no record ever follows them
            await self.commits.put(CommitUnit(self.cursors.delta(moved.partitions, moved.consumers)))
        self.following.read()
        now = now_ms()
        self.snapshots.decide(changed.set, now)
        if self._backpressure is not None:
            self._backpressure.resume(now)
        self.cursors.part(self.assignment.machines, now)
        self.fetches.follow()
        made = self.cursors.take_round(self.fetches.look(), monotonic())
        self.fetches.take(made)
        self.fetches.follow()
        return made

    def _absorb(self, result: RoundResult, made: Round, changed: asyncio.Event) -> CommitUnit:
        """Move the cursors to where the round has brought them, and return what is to be committed.

        Also hands offers to the dispatch loop, parks consumers that are full, and begins the plain sends. `changed`:
        set later when the reading loop has to look again. Raises DeliveryFailed if a batch is larger than its topic
        takes, SourceUnavailable if a corrupt batch stops the head of a ledger.
        """
        refuse_oversized(result.batches)
        self.cursors.note_ends(self.fetches.look())
        moved = self.cursors.advance(made.owners, result, now_ms())
        for partition in moved.halted:
            log.error("partition stopped", stream=partition[0], reason=str(self.cursors.halts[partition]))
        self.pending_estimate.publish()
        # the order matters: cursors join first, then consumers are offered records, then full ones leave
        delta = self._hand_over(result, moved)
        delta.sequences.update(result.given_out)
        self.fetches.follow()
        self.counting.take(result)
        self.counting.tell_progress(self.cursors, monotonic())
        plain = [outgoing for _, outgoing in result.batches if not outgoing.batch.is_transactional]
        return CommitUnit(
            delta,
            result.batches,
            result.ledger,
            result.index,
            counts=result.counts,
            backlog=self.fetches.has_backlog(made),
            on_commit=follow_given_out(self.cursors, result.given_out, changed),
            plain=asyncio.create_task(self.plain.send(plain)) if plain and self.plain is not None else None,
        )

    def _hand_over(self, result: RoundResult, moved: Moved) -> Delta:
        """If there is a dispatch loop, pass the round's offers to it, and park the consumers that have too many
        undelivered messages. Return the delta of the state for the round. `moved`: what the round itself has moved.
        """
        consumers = moved.consumers | result.counts.list_consumers()
        if self.dispatch_loop is None or self._backpressure is None:
            return self.cursors.delta(moved.partitions, consumers)
        ended = self.pending_estimate.settle(self.cursors.is_at_end)
        consumers |= self.dispatch_loop.offer(result.offers, {**result.beyond, **ended})
        left = self._backpressure.park()
        return self.cursors.delta(moved.partitions | left.partitions, consumers | left.consumers)

    def _note_ends(self) -> None:
        """Tell the machines that were told of records ahead, and whose consumers have reached the last stable
        offsets, that there are none any more. A partition fetch may learn of the log's end only after the last record
        was processed.
        """
        if self.dispatch_loop is not None and (ended := self.pending_estimate.settle(self.cursors.is_at_end)):
            self.dispatch_loop.offer((), ended)
