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
from dataclasses import dataclass, field

from aiokafka.client import AIOKafkaClient

from overlay.clock import monotonic, now_ms
from overlay.jobs import Jobs
from overlay.kafka.admin import Admin
from overlay.kafka.fetcher import Fetcher, Sharing
from overlay.kafka.passed_over import OnPassedOver, ignore
from overlay.logs import get_logger
from overlay.metrics import Metrics
from overlay.output.batch_builder import refuse_oversized
from overlay.output.transaction import PlainSender
from overlay.schemas.gate import SchemaGate, open_gates
from overlay.state.shard_state import StreamPartition
from overlay.waits import is_set_within, set_after

from .assignment import Assignment
from .backpressure import Backpressure
from .change_queue import ChangeQueue
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
    """One ownership of a shard: the reading loop and everything that belongs to it. Good for one run."""

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
    sharing: Sharing | None = None
    """The fetches that it shares with other sessions of the worker; None if it fetches for itself alone."""
    fetches: SourceFetches = field(init=False)
    gates: dict[str, SchemaGate] = field(init=False)
    """By stream whose schemas a registry has, what holds its records back."""
    following: Following = field(init=False)
    snapshots: Snapshots = field(init=False)
    pending_estimate: PendingEstimate = field(init=False)
    counting: Counting = field(init=False)
    changes: ChangeQueue = field(init=False)
    reaches: dict[StreamPartition, Reach] = field(init=False)
    """For each partition indexed here, how far its chunk index reaches, with chunks whose headers are not committed yet."""
    is_over: bool = False
    """Whether the session only waits for its tasks to end. Other parts of the service must not use it then."""
    _serving: asyncio.Task[None] | None = None
    _backpressure: Backpressure | None = None

    def __post_init__(self) -> None:
        self.following = Following(self.assignment)
        self.snapshots = Snapshots(self.client, self.metrics, self.assignment, self.cursors)
        compacted = [topic for topic in self.assignment.topics if self.assignment.is_compacted(topic)]
        self.pending_estimate = PendingEstimate(self.assignment.streams, self.assignment.indexes, compacted)
        self.gates = open_gates(self.assignment.streams, self.metrics.schemas_asked)
        self.reaches = find_reaches(self.assignment, self.cursors)
        self.counting = Counting(self.metrics, self.reaches, self.on_passed_over)
        self.changes = ChangeQueue(self.assignment, self.cursors, self.commits, self.pending_estimate, self.counting)

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop`, then commit the rounds under way. Raises the error that ends the session early."""
        self.cursors.begin(now_ms())
        await self.commits.open(self.cursors.everything(), self.assignment.opening)
        self.cursors.note_committed(
            {stream: self.assignment.ledgers[stream].next_sequence for stream in self.assignment.heads}
        )
        for topic in {topic for (_, (topic, _)), _ in self.cursors.all()}:
            await self.client.add_topic(topic)
        fetcher = Fetcher(self.client, sharing=self.sharing)
        self.changes.wake = fetcher.changed.set
        self.fetches = SourceFetches(self.cursors, fetcher, self.admin, self.metrics, self.gates)
        stopping = asyncio.create_task(set_after(stop, fetcher.changed), name="stopping")
        stopping.add_done_callback(lambda _: self.changes.close())
        try:
            await self.following.open(fetcher)
            self.fetches.follow()
            reading = asyncio.create_task(self._read(fetcher.changed, stop), name="reading")
            committing = asyncio.create_task(self.commits.run(), name="committing")
            if self.dispatch_loop is not None:
                self._backpressure = Backpressure(
                    self.cursors, self.dispatch_loop, self.pending_estimate, fetcher.changed.set
                )
                self.dispatch_loop.on_progress = self._backpressure.note_progress
                self._serving = asyncio.create_task(self.dispatch_loop.run(), name="dispatching")
            await self._run_all(reading, committing, *((self._serving,) if self._serving else ()))
        finally:
            stopping.cancel()
            await fetcher.close()

    def end(self) -> None:
        """Serve nothing more. Changes that wait to be taken up are refused."""
        self.is_over = True
        self.changes.give_up()

    async def _run_all(self, *tasks: asyncio.Task[None]) -> None:
        """Wait until all tasks have ended. The first error cancels the others, and is raised when these have ended; that
        may take as long as a job in a thread. Sets `is_over` when the first one fails or all are done."""
        try:
            await asyncio.gather(*tasks)
        finally:
            self.is_over = True
            self.changes.close()
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
                    await self.changes.take_up(pipeline)
                    made = await self._prepare(changed)
                    if not made.tasks:
                        if self._backpressure is not None:
                            self._backpressure.note_ends()
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
        left = Moved(set(), set()) if self._backpressure is None else self._backpressure.hand_over(result)
        consumers = moved.consumers | left.consumers | result.counts.list_consumers()
        delta = self.cursors.delta(moved.partitions | left.partitions, consumers)
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
