"""One ownership of a shard, from takeover to the first error: reading, the pipeline, and commits, side by side.

Three things run at once. The feed fetches. The reading loop takes what has come, one round at a time, has the
pipeline turn it into finished batches in a thread, and moves the tracks. The commit loop (worker/commit/commits.py)
sends batches while the next round is being worked on.

Nothing here survives an error. Positions in memory run ahead of what is committed, so after a failure the whole session is
thrown away and the next one begins from the state partition.
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
from overlay.kafka.fetcher import Changed, Denied, Feed, Lane, Lost
from overlay.kafka.log_position import Mark
from overlay.logs import get_logger
from overlay.metrics import Metrics
from overlay.output.batch_builder import Outgoing, refuse_oversized
from overlay.output.transaction import PlainSender
from overlay.state.shard_state import ConsumerId

from .acks.backpressure import Parking
from .acks.dispatch_loop import Clerk
from .assignment import Roster
from .commit.commits import Commits, Round
from .commit.counting import Counting
from .cursors.cursor import Track
from .cursors.positions import Place, Positions
from .intake import Intake
from .kept.following import Following
from .last_messages import Snapshots
from .round.indexing import Reach
from .round.pending_estimate import Outlook
from .round.pipeline import Outcome, Pipeline
from .skip_routes import Detours

log = get_logger(__name__)

BACKLOG_BYTES = 1 << 19
PROGRESS_S = 5.0
SEAL_S = 1.0
"""How often it is asked, while nothing comes, whether a chunk is old enough to be sealed."""


@dataclass(slots=True)
class Session:
    """Good for one run; see the module's essay."""

    client: AIOKafkaClient
    admin: Admin
    metrics: Metrics
    roster: Roster
    positions: Positions
    commits: Commits
    plain: PlainSender | None
    clerk: Clerk | None = None
    """Who serves the consumers that have machines."""
    halted: dict[Place, str] = field(default_factory=dict)
    """Partitions with a corrupt batch in the way."""
    feed: Feed = field(init=False)
    lanes: dict[Track, Lane] = field(default_factory=dict)
    detours: Detours = field(init=False)
    intake: Intake = field(init=False)
    following: Following = field(init=False)
    snapshots: Snapshots = field(init=False)
    outlook: Outlook = field(init=False)
    committed: dict[str, int] = field(default_factory=dict)
    """Of the ledgers that are kept here, the first sequence that is not committed yet."""
    counting: Counting = field(init=False)
    reaches: dict[Place, Reach] = field(init=False)
    """How far the indexes reach that are kept here, with what is on its way to their topics."""
    is_over: bool = False
    """Whether it only waits for its own end: nothing may be asked of it any more."""
    _serving: asyncio.Task[None] | None = None
    _parking: Parking | None = None
    _plain_order: asyncio.Lock = field(default_factory=asyncio.Lock)
    _told: float = field(default_factory=monotonic)

    def __post_init__(self) -> None:
        self.detours = Detours(self.roster, self.positions, self.metrics)
        self.intake = Intake(self.roster, self.positions, self.lanes, self.detours, self.metrics, self.committed)
        self.following = Following(self.roster)
        self.snapshots = Snapshots(self.client, self.metrics, self.roster, self.positions)
        compacted = [topic for topic in self.roster.topics if self.roster.is_compacted(topic)]
        self.outlook = Outlook(self.roster.streams, self.roster.indexes, compacted)
        self.reaches = {
            place: Reach(self.roster.indexes[place[0]].count_made(place[1], track.position), track.position)
            for place, track in self.positions.all()
            if track.indexed
        }
        self.counting = Counting(self.metrics, self.reaches)

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop`, then commit what is under way. Raises whatever ends the session early."""
        for place, track in self.positions.all():
            self.detours.plan(place, track)
        self._settle(set(self.positions.tracks))
        await self.commits.open(self.positions.everything(), self.roster.opening)
        self.committed.update((stream, self.roster.ledgers[stream].next_sequence) for stream in self.roster.heads)
        self.feed = Feed(self.client)
        try:
            await self.following.open(self.feed)
            for place, track in self.positions.all():
                await self._open(place, track)
            reading = asyncio.create_task(self._read(stop), name="reading")
            committing = asyncio.create_task(self.commits.run(), name="committing")
            if self.clerk is not None:
                self._parking = Parking(self.positions, self.clerk, self.roster.readers)
                self.clerk.on_progress = self._note_progress
                self._serving = asyncio.create_task(self.clerk.run(self._send_plain), name="clerk")
            await self._run_all(reading, committing, *((self._serving,) if self._serving else ()))
        finally:
            await self.feed.close()

    async def _run_all(self, *tasks: asyncio.Task[None]) -> None:
        """Wait for all tasks. The first error ends the others, which may take as long as a job in one of their threads."""
        try:
            await asyncio.gather(*tasks)
        finally:
            self.is_over = True
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, stop: asyncio.Event) -> None:
        feed = self.feed
        patience = SEAL_S if self.roster.index_topics else None
        stopping = asyncio.create_task(stop.wait())
        fetched_bytes = 0
        sending: asyncio.Task[None] | None = None
        try:
            async with Jobs("pipeline") as jobs:
                pipeline = Pipeline(
                    self.roster.streams,
                    self.positions.sequences,
                    self.roster.index_topics,
                    self.roster.ledgers,
                    self.outlook,
                )
                while not stop.is_set():
                    feed.changed.clear()
                    if moved := await self._recover():
                        await self.commits.put(self._note_moved(moved))
                    self.following.read()
                    await self._go_on(self.snapshots.decide(self.lanes, feed.changed.set))
                    await self._come_back()
                    await self._part()
                    tasks, tracks = self.intake.take_round()
                    self.metrics.bytes_fetched.inc(feed.bytes_fetched - fetched_bytes)
                    fetched_bytes = feed.bytes_fetched
                    if not tasks:
                        self._note_ends()
                        if not await _is_quiet(feed.changed, stopping, patience):
                            continue
                    outcome = await jobs.run(pipeline.run, tasks, now_ms())
                    if not tasks and not outcome.index and not outcome.ledger:
                        continue
                    previous = sending
                    done = self._absorb(outcome, tracks)
                    sending = done.plain or sending
                    await self.commits.put(done)
                    if previous is not None:
                        await previous  # one round under way at a time: what comes meanwhile makes a larger one
                rest = await jobs.run(pipeline.close, now_ms())
                if rest.index:
                    self.counting.take(rest)
                    await self.commits.put(Round(rest, self.positions.delta((), ())))
                if self.clerk is not None and self._serving is not None:
                    self.clerk.end()
                    await self._serving
                self.commits.end()
        finally:
            stopping.cancel()
            await self.snapshots.close()

    def _note_progress(self) -> None:
        """A machine has delivered: somebody may have room again."""
        if self.positions.parked:
            self.feed.changed.set()

    def _leave(self) -> tuple[set[ConsumerId], set[Place]]:
        """Have those leave their tracks who cannot keep up: whose position is written differently from now on, and the
        partitions in which another track may be the tail."""
        assert self._parking is not None
        left, empty = self._parking.leave()
        for _, track in empty:
            self._shut(track)
        changed, self._parking.returned = left | self._parking.returned, set()
        return changed, {place for place, _ in empty}

    async def _come_back(self) -> None:
        """Have those go on who left their tracks and have room again."""
        await self._go_on(self._parking.come_back() if self._parking is not None else ())

    async def _part(self) -> None:
        """Have consumers with machines wait where a corrupt batch stops their convoy. The others in it go on."""
        stopped = {
            (stream, track.convoy)
            for (stream, _), track in self.positions.all()
            if track.halted and track.convoy and not track.waits
        }
        for convoy in sorted(stopped):
            parted = self.positions.part(*convoy, self.roster.machines)
            await self._go_on(parted)
            for _, track in parted:
                if track.halted:
                    self.lanes[track].rest()

    async def _go_on(self, tracks: Iterable[tuple[Place, Track]]) -> None:
        """Have tracks fetch what they need from now on."""
        for place, track in tracks:
            self.detours.plan(place, track)
            await self._open(place, track)

    async def _open(self, place: Place, track: Track) -> None:
        """Have what a track needs be fetched, from where it stands or behind what is at hand for it."""
        if lane := self.lanes.get(track):
            self.detours.lead(place, track, lane, self.intake.find_need(track))
        else:
            size = self.detours.find_size(track)
            self.lanes[track] = await self.feed.open(*place[1], track.position, size=size, epoch=track.mark.epoch)

    def _shut(self, track: Track) -> None:
        """Nobody needs what comes here any more."""
        self.detours.forget(track)
        self.intake.drop(track)
        if lane := self.lanes.pop(track, None):
            self.feed.shut(lane)

    async def _recover(self) -> set[Place]:
        """Have tracks go on whose position the log does not have; the partitions of those that retention has passed."""
        moved: set[Place] = set()
        for place, track in self.positions.all():
            match self.lanes[track].ready:
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
                    first = await self._find_start(place, track.position)
                    if first > track.position:
                        self._note_loss(place, first - track.position, track)
                        track.mark = Mark(first)
                        moved.add(place)
                    self.intake.drop(track)
                    self.lanes[track].seek(track.position, track.mark.epoch)
        return moved

    async def _find_start(self, place: Place, position: int) -> int:
        """Where to go on in a log that does not have `position`: at its start, unless it is another log."""
        stream, source = place
        first, end = (await self.admin.find_bounds([source]))[source]
        if position > end:
            raise SourceChanged(
                f"{source[0]}-{source[1]}: the log ends at {end}, below the position {position}: it was truncated or"
                f" created again. Run `overlay stream reset {stream}` to start anew",
                stream,
            )
        return max(first, position)

    def _note_loss(self, place: Place, lost: int, track: Track) -> None:
        """Retention was faster than a track. The index alone has lost nothing: its chunks would go as well."""
        if track.members:
            stream, source = place
            self.metrics.records_lost.labels(stream).inc(lost)
            log.error("retention passed the position", stream=stream, partition=source, lost=lost)

    def _note_moved(self, places: set[Place]) -> Round:
        """A round without records, so that a position is remembered even when none ever comes after it."""
        changed = self._settle(places)
        return Round(Outcome(), self.positions.delta(places, changed))

    def _absorb(self, outcome: Outcome, owners: Iterable[tuple[Place, Track]]) -> Round:
        """Move the tracks to where the round has brought them."""
        refuse_oversized(outcome.batches)
        for (place, track), progress in zip(owners, outcome.progress, strict=True):
            if progress.stopped and track.sequenced:
                # what it cannot read has sequences only once a session begins behind it (kept/ledgers.py)
                raise SourceUnavailable(f"{_find_corruption(place, outcome)}. The shard goes on behind it")
        moved: set[Place] = set()
        changed: set[ConsumerId] = {*outcome.delivered, *outcome.buried}
        self.positions.sequences.update(outcome.sequences)
        self.outlook.publish()
        for (place, track), progress in zip(owners, outcome.progress, strict=True):
            if progress.mark.position > track.position:
                track.mark = progress.mark
                moved.add(place)
            lane = self.lanes[track]
            if self.intake.keeps(track, progress) or track.halted:
                continue
            if progress.stopped:
                track.halted = True
                lane.rest()
                self._halt(place, outcome)
            elif progress.mark.position != progress.task.fetched.next_offset:
                lane.seek(track.position, track.mark.epoch)
            else:
                self.detours.leap(place, track)
                self.detours.lead(place, track, lane, track.mark)
            behind = lane.stable_end - lane.position
            outcome.backlog |= behind > 0 and progress.task.fetched.data.size >= BACKLOG_BYTES
        changed |= self._settle({place for place, _ in owners})
        if self.clerk is not None:
            outcome.beyond |= self.outlook.settle(self._is_at_end)
            changed |= self.clerk.offer(outcome.offers, outcome.beyond)
            left, left_at = self._leave()
            changed |= left
            moved |= left_at
        self.counting.take(outcome)
        self._tell_progress()
        batches = Round(outcome, self.positions.delta(moved, changed))
        if outcome.given_out:
            batches.on_commit = self._note_committed
            if pause := self.intake.rest(outcome.given_out):
                asyncio.get_running_loop().call_later(pause, self.feed.changed.set)
        plain = [outgoing for _, outgoing in outcome.batches if not outgoing.batch.is_transactional]
        if plain:
            batches.plain = asyncio.create_task(self._send_plain(plain))
        return batches

    def _is_at_end(self, consumer: ConsumerId) -> bool:
        """Whether a consumer has read all that is committed, as far as is known."""
        tracks = [t for (stream, _), t in self.positions.all() if stream == consumer[0] and consumer in t.members]
        lanes = [(track, self.lanes.get(track)) for track in tracks]
        return bool(tracks) and all(lane and track.position >= lane.stable_end >= 0 for track, lane in lanes)

    def _note_ends(self) -> None:
        """Tell machines that nothing lies ahead: a lane may learn of the log's end after all has been worked on."""
        if self.clerk is not None and (ended := self.outlook.settle(self._is_at_end)):
            self.clerk.offer((), ended)

    def _note_committed(self, done: Round) -> None:
        self.committed.update(done.outcome.given_out)
        self.feed.changed.set()  # there may be those who waited for it

    def _tell_progress(self) -> None:
        """Say now and then how far those are who are catching up."""
        if monotonic() - self._told < PROGRESS_S:
            return
        self._told = monotonic()
        for (stream, (topic, partition)), track in self.positions.all():
            left = self.lanes[track].stable_end - track.position
            if left > 0:
                names = sorted(name for _, name in track.members)[:3]
                log.info("catching up", stream=stream, partition=f"{topic}-{partition}", left=left, consumers=names)

    def _settle(self, places: set[Place]) -> set[ConsumerId]:
        """Join tracks that have met; the consumers whose position is written differently from now on."""
        ordered = {stream for stream, _ in places} & self.positions.ordered
        for stream in ordered:
            self.positions.align(stream)
        changed: set[ConsumerId] = set()
        for place in places | {place for place in self.positions.tracks if place[0] in ordered}:
            tracks = self.positions.tracks[place]
            changed |= {member for track in tracks if len(tracks) > 1 or track.is_alone for member in track.members}
            self._join(place)
        return changed

    def _join(self, place: Place) -> None:
        """Join tracks that have met, until none does: those that were joined may leave out other parts, and meet again."""
        while spent := self.positions.settle(place):
            for track in spent:
                self._shut(track)
            for track in self.positions.tracks[place]:
                self.detours.plan(place, track)
                if lane := self.lanes.get(track):
                    self.detours.lead(place, track, lane, self.intake.find_need(track))

    def _halt(self, place: Place, outcome: Outcome) -> None:
        self.halted[place] = str(_find_corruption(place, outcome))
        log.error("partition stopped", stream=place[0], reason=self.halted[place])

    async def _send_plain(self, batches: list[Outgoing]) -> list[int]:
        assert self.plain is not None
        async with self._plain_order:
            return await self.plain.send(batches)


def _find_corruption(place: Place, outcome: Outcome) -> CorruptBatch:
    """Return what stops a partition in a round."""
    stream, source = place
    bad = next(c.malformed for c in outcome.corruptions if (c.stream, c.source, c.skipped) == (stream, source, False))
    return CorruptBatch(*source, bad.base_offset, bad.fault.text)


async def _is_quiet(changed: asyncio.Event, stopping: asyncio.Task[bool], patience: float | None) -> bool:
    """Wait until something has been fetched or it is time to stop; True when neither came within `patience` seconds."""
    waiting = asyncio.create_task(changed.wait())
    try:
        done, _ = await asyncio.wait((waiting, stopping), timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        return not done
    finally:
        waiting.cancel()
