"""A session: one ownership of a shard, from its takeover to its first error or its end.

Three activities run side by side. The fetcher fetches ahead. The reading loop takes fetched data
one round at a time, has the pipeline turn it into finished batches in a thread, and moves the
cursors. The commit loop (worker/commit/commits.py) sends the batches of one round while the
pipeline works on the next. If consumers have machines, a dispatch loop
(worker/acks/dispatch_loop.py) runs as well.

Nothing here survives an error. Positions in memory run ahead of what is committed, so after a
failure the whole session is thrown away and the next one begins from the state partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from aiokafka.client import AIOKafkaClient

from overlay.clock import monotonic, now_ms
from overlay.errors import CorruptBatch, SourceChanged, SourceUnavailable
from overlay.jobs import Jobs
from overlay.kafka.admin import Admin
from overlay.kafka.fetcher import Changed, Denied, Fetcher, Lost, PartitionFetch
from overlay.kafka.log_position import LogPosition
from overlay.logs import get_logger
from overlay.metrics import Metrics
from overlay.output.batch_builder import OutputBatch, refuse_oversized
from overlay.output.transaction import PlainSender
from overlay.state.shard_state import ConsumerId, StreamPartition

from .acks.backpressure import Backpressure
from .acks.dispatch_loop import DispatchLoop
from .assignment import Assignment
from .commit.commits import Commits, CommitUnit
from .commit.counting import Counting
from .cursors.cursor import Cursor
from .cursors.positions import Positions
from .intake import Intake
from .kept.following import Following
from .last_messages import Snapshots
from .round.indexing import Reach
from .round.pending_estimate import PendingEstimate
from .round.pipeline import Pipeline
from .round.task import RoundResult
from .skip_routes import Detours

log = get_logger(__name__)

BACKLOG_BYTES = 1 << 19
"""Bytes of one fetch from which on a partition that has more to read counts as a backlog."""
PROGRESS_S = 5.0
"""Seconds between two log lines about cursors that are catching up."""
SEAL_S = 1.0
"""Seconds between two checks for chunks that are old enough to be sealed, while no records come."""


@dataclass(slots=True)
class Session:
    """The reading loop and everything that belongs to one ownership of a shard. Good for one
    run."""

    client: AIOKafkaClient
    admin: Admin
    metrics: Metrics
    assignment: Assignment
    positions: Positions
    commits: Commits
    plain: PlainSender | None
    dispatch_loop: DispatchLoop | None = None
    """The loop that serves the consumers with machines; None if the session has none."""
    halted: dict[StreamPartition, str] = field(default_factory=dict)
    """Partitions that cannot be read further because of a corrupt batch, with the reason."""
    fetcher: Fetcher = field(init=False)
    partition_fetches: dict[Cursor, PartitionFetch] = field(default_factory=dict)
    detours: Detours = field(init=False)
    intake: Intake = field(init=False)
    following: Following = field(init=False)
    snapshots: Snapshots = field(init=False)
    pending_estimate: PendingEstimate = field(init=False)
    committed: dict[str, int] = field(default_factory=dict)
    """For each ledger that this shard keeps, the first sequence that is not committed yet."""
    counting: Counting = field(init=False)
    reaches: dict[StreamPartition, Reach] = field(init=False)
    """For each partition indexed here, how far its chunk index reaches. Counts chunks that were
    sealed, whether or not their headers are committed yet."""
    is_over: bool = False
    """Whether the session only waits for its tasks to end. Other parts of the service must not use
    it then."""
    _serving: asyncio.Task[None] | None = None
    _backpressure: Backpressure | None = None
    _plain_order: asyncio.Lock = field(default_factory=asyncio.Lock)
    _told: float = field(default_factory=monotonic)

    def __post_init__(self) -> None:
        self.detours = Detours(self.assignment, self.positions, self.metrics)
        self.intake = Intake(
            self.assignment, self.positions, self.partition_fetches, self.detours, self.metrics, self.committed
        )
        self.following = Following(self.assignment)
        self.snapshots = Snapshots(self.client, self.metrics, self.assignment, self.positions)
        compacted = [topic for topic in self.assignment.topics if self.assignment.is_compacted(topic)]
        self.pending_estimate = PendingEstimate(self.assignment.streams, self.assignment.indexes, compacted)
        self.reaches = {
            place: Reach(self.assignment.indexes[place[0]].count_made(place[1], cursor.position), cursor.position)
            for place, cursor in self.positions.all()
            if cursor.indexed
        }
        self.counting = Counting(self.metrics, self.reaches)

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop`, then commit the rounds under way. Raises the error that ends the
        session early."""
        for place, cursor in self.positions.all():
            self.detours.plan(place, cursor)
        self._settle(set(self.positions.cursors))
        await self.commits.open(self.positions.everything(), self.assignment.opening)
        self.committed.update(
            (stream, self.assignment.ledgers[stream].next_sequence) for stream in self.assignment.heads
        )
        self.fetcher = Fetcher(self.client)
        try:
            await self.following.open(self.fetcher)
            for place, cursor in self.positions.all():
                await self._open(place, cursor)
            reading = asyncio.create_task(self._read(stop), name="reading")
            committing = asyncio.create_task(self.commits.run(), name="committing")
            if self.dispatch_loop is not None:
                self._backpressure = Backpressure(self.positions, self.dispatch_loop, self.assignment.readers)
                self.dispatch_loop.on_progress = self._note_progress
                self._serving = asyncio.create_task(self.dispatch_loop.run(self._send_plain), name="dispatching")
            await self._run_all(reading, committing, *((self._serving,) if self._serving else ()))
        finally:
            await self.fetcher.close()

    async def _run_all(self, *tasks: asyncio.Task[None]) -> None:
        """Wait for all tasks. The first error cancels the others; that may take as long as a job in
        one of their threads."""
        try:
            await asyncio.gather(*tasks)
        finally:
            self.is_over = True
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, stop: asyncio.Event) -> None:
        """Read, process and queue rounds until `stop`, then hand the rest to the commit loop.

        While the pipeline works on a round, plain sends (those outside of transactions) of at most
        one earlier round are under way. What is fetched meanwhile makes the next round larger, and
        so cheaper per record.
        """
        fetcher = self.fetcher
        patience = SEAL_S if self.assignment.index_topics else None
        stopping = asyncio.create_task(stop.wait())
        fetched_bytes = 0
        sending: asyncio.Task[None] | None = None
        try:
            async with Jobs("pipeline") as jobs:
                pipeline = Pipeline(
                    self.assignment.streams,
                    self.positions.sequences,
                    self.assignment.index_topics,
                    self.assignment.ledgers,
                    self.pending_estimate,
                )
                while not stop.is_set():
                    fetcher.changed.clear()
                    if moved := await self._recover():
                        await self.commits.put(self._note_moved(moved))
                    self.following.read()
                    await self._go_on(self.snapshots.decide(self.partition_fetches, fetcher.changed.set))
                    await self._come_back()
                    await self._part()
                    tasks, cursors = self.intake.take_round()
                    self.metrics.bytes_fetched.inc(fetcher.bytes_fetched - fetched_bytes)
                    fetched_bytes = fetcher.bytes_fetched
                    if not tasks:
                        self._note_ends()
                        if not await _is_quiet(fetcher.changed, stopping, patience):
                            continue
                    outcome = await jobs.run(pipeline.run, tasks, now_ms())
                    if not tasks and not outcome.index and not outcome.ledger:
                        continue
                    previous = sending
                    done = self._absorb(outcome, cursors)
                    sending = done.plain or sending
                    await self.commits.put(done)
                    if previous is not None:
                        # sends pile up no further: data fetched meanwhile makes a larger round
                        await previous
                rest = await jobs.run(pipeline.close, now_ms())
                if rest.index:
                    self.counting.take(rest)
                    await self.commits.put(CommitUnit(rest, self.positions.delta((), ())))
                if self.dispatch_loop is not None and self._serving is not None:
                    self.dispatch_loop.end()
                    await self._serving
                self.commits.end()
        finally:
            stopping.cancel()
            await self.snapshots.close()

    def _note_progress(self) -> None:
        """Wake the reading loop after a delivery: a parked consumer may have room again."""
        if self.positions.parked:
            self.fetcher.changed.set()

    def _leave(self) -> tuple[set[ConsumerId], set[StreamPartition]]:
        """Park the consumers that cannot keep up with their cursors.

        Return the consumers whose positions the state must record differently from now on, parked
        and returned ones, and the partitions that lost a cursor: another cursor may be the tail
        there.
        """
        assert self._backpressure is not None
        left, empty = self._backpressure.leave()
        for _, cursor in empty:
            self._shut(cursor)
        changed, self._backpressure.returned = left | self._backpressure.returned, set()
        return changed, {place for place, _ in empty}

    async def _come_back(self) -> None:
        """Put parked consumers that have room again back on cursors, and fetch for these."""
        await self._go_on(self._backpressure.come_back() if self._backpressure is not None else ())

    async def _part(self) -> None:
        """Have consumers with machines wait where a corrupt batch stops their cursor group. The others in it go on."""
        stopped = {
            (stream, cursor.cursor_group)
            for (stream, _), cursor in self.positions.all()
            if cursor.halted and cursor.cursor_group and not cursor.waits
        }
        for cursor_group in sorted(stopped):
            parted = self.positions.part(*cursor_group, self.assignment.machines)
            await self._go_on(parted)
            for _, cursor in parted:
                if cursor.halted:
                    self.partition_fetches[cursor].rest()

    async def _go_on(self, cursors: Iterable[tuple[StreamPartition, Cursor]]) -> None:
        """Plan skip routes for cursors and fetch what they need from their positions on."""
        for place, cursor in cursors:
            self.detours.plan(place, cursor)
            await self._open(place, cursor)

    async def _open(self, place: StreamPartition, cursor: Cursor) -> None:
        """Fetch what a cursor needs: from its position, or from the end of the data already fetched
        for it."""
        if partition_fetch := self.partition_fetches.get(cursor):
            self.detours.lead(place, cursor, partition_fetch, self.intake.find_need(cursor))
        else:
            size = self.detours.find_size(cursor)
            self.partition_fetches[cursor] = await self.fetcher.open(
                *place[1], cursor.position, size=size, epoch=cursor.log_position.epoch
            )

    def _shut(self, cursor: Cursor) -> None:
        """Stop fetching for a cursor that has no use any more, and drop its data and its skip
        route."""
        self.detours.forget(cursor)
        self.intake.drop(cursor)
        if partition_fetch := self.partition_fetches.pop(cursor, None):
            self.fetcher.shut(partition_fetch)

    async def _recover(self) -> set[StreamPartition]:
        """Handle fetch errors. Return the partitions in which retention has passed a cursor, which
        was moved.

        A cursor whose position is not in the log goes on at the log's start. Raises SourceChanged
        if Kafka denies access, or if the log was truncated below a cursor's position.
        """
        moved: set[StreamPartition] = set()
        for place, cursor in self.positions.all():
            match self.partition_fetches[cursor].ready:
                case Denied(reason):
                    raise SourceChanged(reason, place[0])
                case Changed(position, cut):
                    stream, (topic, partition) = place
                    raise SourceChanged(
                        f"{topic}-{partition}: the log was truncated at {cut}, below the position {position}, and has grown"
                        f" again. Run `overlay stream reset {stream}` to start anew",
                        stream,
                    )
                case Lost():
                    first = await self._find_start(place, cursor.position)
                    if first > cursor.position:
                        self._note_loss(place, first - cursor.position, cursor)
                        cursor.log_position = LogPosition(first)
                        moved.add(place)
                    self.intake.drop(cursor)
                    self.partition_fetches[cursor].seek(cursor.position, cursor.log_position.epoch)
        return moved

    async def _find_start(self, place: StreamPartition, position: int) -> int:
        """Return the offset to go on at in a log that does not have `position`: at least its start.

        Raises SourceChanged if the log ends below `position`, since it is then a different log.
        """
        stream, source = place
        first, end = (await self.admin.find_bounds([source]))[source]
        if position > end:
            raise SourceChanged(
                f"{source[0]}-{source[1]}: the log ends at {end}, below the position {position}: it was truncated or"
                f" created again. Run `overlay stream reset {stream}` to start anew",
                stream,
            )
        return max(first, position)

    def _note_loss(self, place: StreamPartition, lost: int, cursor: Cursor) -> None:
        """Count and log records that retention deleted before a cursor read them.

        A cursor that only the index is made from has lost nothing: retention would delete its
        chunks as well.
        """
        if cursor.members:
            stream, source = place
            self.metrics.records_lost.labels(stream).inc(lost)
            log.error("retention passed the position", stream=stream, partition=source, lost=lost)

    def _note_moved(self, places: set[StreamPartition]) -> CommitUnit:
        """Return a commit unit without records that stores moved positions, even if no record ever
        follows them."""
        changed = self._settle(places)
        return CommitUnit(RoundResult(), self.positions.delta(places, changed))

    def _absorb(self, outcome: RoundResult, owners: Iterable[tuple[StreamPartition, Cursor]]) -> CommitUnit:
        """Move the cursors to where the round has brought them, and return what is to be committed.

        Also decides what each cursor fetches next, joins cursors that have met, hands offers to the
        dispatch loop, parks consumers that are full, and begins the plain sends. Raises
        DeliveryFailed if a batch is larger than its topic takes.
        """
        refuse_oversized(outcome.batches)
        for (place, cursor), progress in zip(owners, outcome.progress, strict=True):
            if progress.stopped and cursor.sequenced:
                # what it cannot read has sequences only once a session begins behind it (kept/ledgers.py)
                raise SourceUnavailable(f"{_find_corruption(place, outcome)}. The shard goes on behind it")
        moved: set[StreamPartition] = set()
        changed: set[ConsumerId] = {*outcome.delivered, *outcome.buried}
        self.positions.sequences.update(outcome.sequences)
        self.pending_estimate.publish()
        for (place, cursor), progress in zip(owners, outcome.progress, strict=True):
            if progress.log_position.position > cursor.position:
                cursor.log_position = progress.log_position
                moved.add(place)
            partition_fetch = self.partition_fetches[cursor]
            # what the cursor fetches next: nothing while data is left, or if it stopped; the right
            # position if it read only a part; else on, past what it may skip
            if self.intake.keeps(cursor, progress) or cursor.halted:
                continue
            if progress.stopped:
                cursor.halted = True
                partition_fetch.rest()
                self._halt(place, outcome)
            elif progress.log_position.position != progress.task.fetched.next_offset:
                partition_fetch.seek(cursor.position, cursor.log_position.epoch)
            else:
                self.detours.leap(place, cursor)
                self.detours.lead(place, cursor, partition_fetch, cursor.log_position)
            behind = partition_fetch.stable_end - partition_fetch.position
            outcome.backlog |= behind > 0 and progress.task.fetched.data.size >= BACKLOG_BYTES
        # the order matters: cursors join first, then consumers are offered records, then full ones
        # leave
        changed |= self._settle({place for place, _ in owners})
        if self.dispatch_loop is not None:
            outcome.beyond |= self.pending_estimate.settle(self._is_at_end)
            changed |= self.dispatch_loop.offer(outcome.offers, outcome.beyond)
            left, left_at = self._leave()
            changed |= left
            moved |= left_at
        self.counting.take(outcome)
        self._tell_progress()
        batches = CommitUnit(outcome, self.positions.delta(moved, changed))
        if outcome.given_out:
            batches.on_commit = self._note_committed
            if pause := self.intake.rest(outcome.given_out):
                asyncio.get_running_loop().call_later(pause, self.fetcher.changed.set)
        plain = [outgoing for _, outgoing in outcome.batches if not outgoing.batch.is_transactional]
        if plain:
            batches.plain = asyncio.create_task(self._send_plain(plain))
        return batches

    def _is_at_end(self, consumer: ConsumerId) -> bool:
        """Return whether a consumer has read all committed records, as far as the last responses
        tell."""
        cursors = [t for (stream, _), t in self.positions.all() if stream == consumer[0] and consumer in t.members]
        partition_fetches = [(cursor, self.partition_fetches.get(cursor)) for cursor in cursors]
        return bool(cursors) and all(
            partition_fetch and cursor.position >= partition_fetch.stable_end >= 0
            for cursor, partition_fetch in partition_fetches
        )

    def _note_ends(self) -> None:
        """Tell machines that nothing lies ahead of them. A partition fetch may learn of the log's
        end only after the last record was processed."""
        if self.dispatch_loop is not None and (ended := self.pending_estimate.settle(self._is_at_end)):
            self.dispatch_loop.offer((), ended)

    def _note_committed(self, done: CommitUnit) -> None:
        """Note which sequences are committed, and wake the reading loop."""
        self.committed.update(done.outcome.given_out)
        self.fetcher.changed.set()  # cursor groups may wait for committed sequences

    def _tell_progress(self) -> None:
        """Log every PROGRESS_S how far behind the catching-up cursors are."""
        if monotonic() - self._told < PROGRESS_S:
            return
        self._told = monotonic()
        for (stream, (topic, partition)), cursor in self.positions.all():
            left = self.partition_fetches[cursor].stable_end - cursor.position
            if left > 0:
                names = sorted(name for _, name in cursor.members)[:3]
                log.info("catching up", stream=stream, partition=f"{topic}-{partition}", left=left, consumers=names)

    def _settle(self, places: set[StreamPartition]) -> set[ConsumerId]:
        """Join cursors that have met. Return the consumers whose positions the state must record
        differently from now on."""
        ordered = {stream for stream, _ in places} & self.positions.ordered
        for stream in ordered:
            self.positions.align(stream)
        changed: set[ConsumerId] = set()
        for place in places | {place for place in self.positions.cursors if place[0] in ordered}:
            cursors = self.positions.cursors[place]
            changed |= {
                member for cursor in cursors if len(cursors) > 1 or cursor.is_alone for member in cursor.members
            }
            self._join(place)
        return changed

    def _join(self, place: StreamPartition) -> None:
        """Join the cursors of a partition that have met, until none has.

        A joined cursor has more consumers, so its skip route leaves out less or other parts of the
        log. It may therefore meet the next cursor at once.
        """
        while spent := self.positions.settle(place):
            for cursor in spent:
                self._shut(cursor)
            for cursor in self.positions.cursors[place]:
                self.detours.plan(place, cursor)
                if partition_fetch := self.partition_fetches.get(cursor):
                    self.detours.lead(place, cursor, partition_fetch, self.intake.find_need(cursor))

    def _halt(self, place: StreamPartition, outcome: RoundResult) -> None:
        self.halted[place] = str(_find_corruption(place, outcome))
        log.error("partition stopped", stream=place[0], reason=self.halted[place])

    async def _send_plain(self, batches: list[OutputBatch]) -> list[int]:
        """Send batches outside of transactions, in the order of the calls. Return their offsets."""
        assert self.plain is not None
        async with self._plain_order:
            return await self.plain.send(batches)


def _find_corruption(place: StreamPartition, outcome: RoundResult) -> CorruptBatch:
    """Return what stops a partition in a round."""
    stream, source = place
    bad = next(c.malformed for c in outcome.corruptions if (c.stream, c.source, c.skipped) == (stream, source, False))
    return CorruptBatch(*source, bad.base_offset, bad.fault.text)


async def _is_quiet(changed: asyncio.Event, stopping: asyncio.Task[bool], patience: float | None) -> bool:
    """Wait until something was fetched or the service stops. Return True if neither happened within
    `patience` seconds; None waits forever."""
    waiting = asyncio.create_task(changed.wait())
    try:
        done, _ = await asyncio.wait((waiting, stopping), timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        return not done
    finally:
        waiting.cancel()
