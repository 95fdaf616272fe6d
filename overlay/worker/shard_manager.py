"""The shards that the group of workers assigned to this worker, and what runs on each.

Two kinds of change arrive. If the group deals out shards anew, those that stay run on. If a consumer
is created, changed or removed while the service runs, only the shards concerned commit what is under
way and begin a new session, unless the running one and its machines can take the change over (changes.py). Then the
running session also drops the state of deleted consumers; else it is dropped between two sessions, while none uses it.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from overlay.chance import draw_id
from overlay.clock import now_ms, now_ns
from overlay.config import ConsumerConfig, Loaded, StreamConfig, fill_defaults
from overlay.config.consumer import AckPolicy, Engine
from overlay.consumer.events import Deleted, Paused, Pulled, Resumed, Updated
from overlay.consumer.info import ConsumerInfo, Facts
from overlay.consumer.pulls import PullRequest, StatusText
from overlay.consumer.table import PAUSED
from overlay.errors import OverlayError, StateKept
from overlay.kafka.admin import Admin
from overlay.kafka.fetcher import Sharing
from overlay.kafka.own_topics import shard_of
from overlay.kafka.passed_over import OnPassedOver, ignore
from overlay.logs import get_logger
from overlay.metrics import Metrics
from overlay.state.amend import amend, forget_consumer
from overlay.state.lag import Lags
from overlay.state.shard_state import ConsumerId, ShardState

from .changes import find_step
from .dispatch_loop import DispatchLoop
from .gauges import Gauges
from .job_watch import JobStandings
from .membership import Membership
from .metric_series import Series, observe_all
from .places import find_places
from .rates import Rates
from .report import report_consumer, report_readiness, report_service
from .round.task import Counts
from .session import Session
from .shard import Shard
from .stream_report import report_streams

log = get_logger(__name__)

WAITING = "waiting for the group of workers to hand out shards"
RELEASE_S = 20.0
"""Seconds that a shard has to commit what is under way when it is released."""


class _Part(NamedTuple):
    """What a shard runs on: its consumers, the streams whose index it keeps, and the configs of all
    streams involved."""

    mine: dict[ConsumerId, ConsumerConfig]
    keeps: tuple[str, ...]
    streams: dict[str, StreamConfig]


def find_filtered(configs: Mapping[ConsumerId, ConsumerConfig]) -> set[ConsumerId]:
    """Return the consumers on whose records a filter is evaluated."""
    return {id for id, each in configs.items() if each.filter.sql is not None or each.filter.properties is not None}


def _list_changed_names(before: Loaded, after: Loaded) -> dict[str, list[str]]:
    """Return the names of all consumers of each stream in which one comes or goes."""
    streams = {stream for stream, _ in before.consumers.keys() ^ after.consumers.keys()}
    return {each: [name for stream, name in after.consumers if stream == each] for each in streams}


@dataclass(slots=True)
class ShardManager:
    """Runs the shards of one group membership. `loaded`: the configs to serve; `count`: the number
    of shards."""

    loaded: Loaded
    count: int
    admin: Admin
    metrics: Metrics
    membership: Membership
    group: asyncio.TaskGroup
    rates: Rates
    lags: Lags = field(default_factory=Lags)
    jobs: JobStandings = field(default_factory=JobStandings)
    """Of the consumers that Spark jobs deliver; outlives the membership, as `lags` do."""
    latency_by_consumer: bool = False
    """Whether delivery latencies are kept for each consumer, not for each stream."""
    on_passed_over: OnPassedOver = ignore
    """Called for each reason for which records of an ack topic, an index topic or a source could not be read."""
    sharing: Sharing | None = None
    """The fetches that the shards share; None if each fetches for itself alone."""
    shards: dict[int, Shard] = field(default_factory=dict)
    owned: frozenset[int] = frozenset()
    generation: int = -1
    """The group's generation in which `owned` was assigned to us, -1 while no assignment holds."""
    trouble: str = WAITING
    opened: set[ConsumerId] = field(default_factory=set)
    """Consumers that have metric series, also from an earlier membership."""
    series: Series = field(init=False)
    _streams: set[str] = field(default_factory=set)
    """Streams of former configs, which may have metric series, since a change was last carried out whole."""
    _serving: dict[int, tuple[asyncio.Task[None], asyncio.Event]] = field(default_factory=dict)
    _changing: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self.series = Series(self.metrics, self.opened)

    # the group's news

    async def take(self, numbers: frozenset[int]) -> bool:
        """Serve exactly these shards, which the group has assigned to us. Those that run already run
        on; others commit what is under way and stop, and this waits for them. Return whether that
        was done. If these are not the shards of the present assignment any more, do nothing and return
        False."""
        async with self._changing:
            # before the question whether they are ours, since it takes a while
            for number in sorted(numbers - self._serving.keys()):
                await self._open_consumers(number)
            # The group may deal out shards again since, or we are leaving: nothing would stop a shard that starts now,
            # and one that stops now may be ours for longer.
            if not self.membership.is_assigned(numbers):
                return False
            waits = not numbers and self.membership.is_moving
            self.trouble, self.owned = WAITING if waits else "", numbers
            self.generation = self.membership.generation
            for number in sorted(numbers - self._serving.keys()):
                self._start(number)
            await self._stop([number for number in self._serving if number not in numbers])
            # after the last commits of the ended sessions, which would open the series again
            await self._close_consumers(self.elsewhere)
            # those that were deleted while this worker was in no group
            await self._drop(self._find_unserved())
            self._close_moved()
            return True

    async def release(self) -> None:
        """Release all shards: commit what is under way, and stop."""
        async with self._changing:
            self.trouble, self.owned = "the group of workers is dealing out shards", frozenset()
            self.generation = -1
            await self._stop(list(self._serving))

    # the control topic's news

    def find_shard(self, about: ConsumerId) -> int | None:
        """Return the shard of a consumer, None if this worker does not own it.

        With an empty consumer name, return the shard of the stream; with both empty, shard 0. With a shard's number in
        place of the name, and no stream, return that shard; one of those that there are if there are not so many.
        """
        name = about[1]
        if not about[0] and name.isascii() and name.isdecimal() and len(name) <= 4:
            number = int(name) % self.count
        else:
            number = shard_of(tuple(name for name in about if name), self.count) if any(about) else 0
        return number if number in self.owned else None

    async def is_owner(self, shard: int) -> bool:
        """Return whether the group of workers assigns the shard to this worker. The group's coordinator
        is asked, unless it has confirmed that within the last seconds (`Membership.is_owner`)."""
        return await self.membership.is_owner(shard)

    def drain(self, *, drained: bool) -> None:
        """Have the group give our shards to other workers, or, if not `drained`, give us some again.
        Does not wait until that is done."""
        self.membership.drain(drained=drained)

    async def take_up(self, loaded: Loaded, forget: Collection[ConsumerId] = ()) -> None:
        """Serve `loaded` from now on, and drop the state of those consumers in `forget` that belong
        to shards of ours.

        Every change is carried out even if the state of some consumers could not be dropped; then StateKept
        is raised at the end. Another error ends it at once. The next call then carries out what is missing;
        shards that start before it serve `loaded`, since states may be dropped already.
        """
        failures: dict[ConsumerId, str] = {}
        async with self._changing:
            self._streams |= self.loaded.streams.keys()
            names = _list_changed_names(self.loaded, loaded)
            self.loaded = loaded
            self.series.open_streams(loaded.streams.keys() - self._streams)
            for number in sorted(self.owned):
                failures |= await self._change(number, [id for id in forget if self.find_shard(id) == number])
            for session in self.sessions:
                if session.dispatch_loop is not None:
                    for stream, each in names.items():
                        session.dispatch_loop.learn(stream, each)
            # after the last commits of the ended sessions, which would open the series again
            elsewhere = {id for id in forget if self.find_shard(id) is None}
            await self._drop(self._find_unserved() | elsewhere)
            self.series.close_streams(self._streams - loaded.streams.keys())
            self._streams.clear()
            self._close_moved()
        if failures:
            raise StateKept(failures)

    async def _change(self, number: int, gone: Collection[ConsumerId]) -> dict[ConsumerId, str]:
        """Have a shard of ours serve `loaded`, with a new session if the running one cannot take the change over, and drop
        the state of its consumers `gone`. Return the consumers whose state could not be dropped, with the reasons.
        """
        old, new = self._choose_running(number), self._choose(self.loaded, number)
        if (not gone and old == new) or await self._change_in_place(number, old, new, gone):
            if (shard := self.shards.get(number)) is not None:
                shard.loaded = self.loaded
            return {}
        log.info("shard takes up a change", shard=number)
        for id in gone:
            if (dispatch_loop := self._find_dispatch_loop(id)) is not None:
                # the machine's last step tells clients with open pull requests
                dispatch_loop.order(id, Deleted())
        await self._stop([number])
        try:
            # one that is made again under the name begins at 0, and its session opens its series
            await self._drop(gone)
            await self._open_consumers(number)
            return await self._forget(number, gone)
        finally:
            self._start(number)

    async def _open_consumers(self, number: int) -> None:
        """Open the series of a shard's consumers. `_start` opens those that this leaves out, all of them in one go."""
        mine, *_ = self._choose(self.loaded, number)
        await self.series.open_many(mine, find_filtered(mine))

    async def _close_consumers(self, ids: Collection[ConsumerId]) -> None:
        """Remove the series and the lag of consumers that are not served here any more."""
        self.lags.forget(ids)
        await self.series.close_consumers(ids)

    def _find_unserved(self) -> set[ConsumerId]:
        """Return the consumers that have counts or series, also from an earlier membership, and are not to be served."""
        known = {*self.opened, *self.rates.delivered, *self.rates.newest, *self.rates.dead_letters}
        return known - self.loaded.served.keys()

    async def _drop(self, ids: Collection[ConsumerId]) -> None:
        """Remove the counts, the series and the lag of consumers that were deleted."""
        self.rates.forget(ids)
        await self._close_consumers(ids)

    def _close_moved(self) -> None:
        """Remove the index gauges of streams whose index this worker does not keep, and the other gauges
        of streams that none of its shards reads: other workers set them."""
        parts = [self._choose(self.loaded, number) for number in self.owned]
        self.series.close_indexes(self.loaded.streams.keys() - {name for part in parts for name in part.keeps})
        self.series.close_readings(self.loaded.streams.keys() - {name for part in parts for name in part.streams})

    async def _forget(self, number: int, gone: Iterable[ConsumerId]) -> dict[ConsumerId, str]:
        """Drop the state of the consumers `gone` of a shard that was stopped. Return those for which that
        has failed, each with the reason; empty if all of them are dropped.

        A new owner of the shard may have dropped it already, and may serve another consumer by the
        same name. So nothing is dropped unless the shard is still ours. The first consumer for which
        that is not confirmed ends it, for all that are left: the shard is stopped meanwhile, and a
        confirmation takes seconds.
        """
        is_ours = True

        async def confirm(state: ShardState) -> int:
            nonlocal is_ours
            if await self.membership.confirm(number) is None:
                is_ours = False
                raise OverlayError(f"shard {number} is not ours any more: its owner drops what was deleted")
            return state.generation

        failures: dict[ConsumerId, str] = {}
        reason = ""
        for id in gone:
            forget = functools.partial(forget_consumer, consumer=id)
            try:
                if is_ours:
                    await amend(self.loaded.service, self.admin, forget, confirm)
                else:
                    failures[id] = reason
            except OverlayError as error:
                failures[id] = reason = str(error) or type(error).__name__
        return failures

    def tend(self) -> list[ConsumerId]:
        """Pause and resume consumers with machines as `pause_until` of their configs asks. Return our
        consumers whose `inactive_threshold` has passed, so that they are to be deleted."""
        idle: list[ConsumerId] = []
        for shard in self.shards.values():
            if shard.session is not None and shard.session.dispatch_loop is not None:
                dispatch_loop = shard.session.dispatch_loop
                for id, facts in dispatch_loop.machine_facts.facts.items():
                    self._tend_pause(id, facts, dispatch_loop)
                    if facts.is_removal_said:
                        idle.append(id)
        return idle

    def _tend_pause(self, id: ConsumerId, facts: Facts, dispatch_loop: DispatchLoop) -> None:
        """Have a machine paused if its config's `pause_until` is ahead and is not the machine's; have it resumed if
        that is not ahead and the machine is still paused.
        """
        config = self.loaded.consumers.get(id)
        if config is None:
            return
        until, now = config.pause_until or 0, now_ns()
        has = facts.paused_until if facts.phase in PAUSED else 0
        if until > now and has != until:
            dispatch_loop.order(id, Paused(until))
        elif until <= now < has:
            dispatch_loop.order(id, Resumed())

    def pull(self, id: ConsumerId, request: PullRequest | StatusText, reply: str) -> bool:
        """Queue a pull request, or the status that refuses it, for a consumer's machine, which answers at
        the address `reply`. Return False if no machine of the consumer takes requests on this worker."""
        dispatch_loop = self._find_dispatch_loop(id)
        if dispatch_loop is None or dispatch_loop.is_ending:
            return False
        dispatch_loop.order(id, Pulled(request, reply, draw_id()))
        return True

    def find_info(self, id: ConsumerId) -> ConsumerInfo | None:
        """Return the ConsumerInfo of a consumer's machine, None if it has no machine here."""
        dispatch_loop = self._find_dispatch_loop(id)
        if dispatch_loop is None:
            return None
        info = dispatch_loop.machine_facts.find_info(id, now_ns())
        assert info is not None
        # the machine's own flag is no answer: a machine runs without readers too, since a topic
        # keeps its records for later ones
        return replace(info, push_bound=dispatch_loop.readers.is_bound(id))

    def _find_dispatch_loop(self, id: ConsumerId) -> DispatchLoop | None:
        """Return the dispatch loop that runs the consumer's machine, None if none does."""
        for session in self.sessions:
            if session.dispatch_loop is not None and id in session.dispatch_loop.machine_facts.facts:
                return session.dispatch_loop
        return None

    async def _change_in_place(self, number: int, before: _Part, after: _Part, gone: Collection[ConsumerId]) -> bool:
        """Have a shard's running session and machines take up changed configs, and drop the state of the consumers `gone`.
        Return whether that was enough; False if the change requires a new session. `before`, `after`: what the shard runs
        on."""
        shard = self.shards.get(number)
        step = find_step(before.mine, after.mine, gone) if shard is not None and before[1:] == after[1:] else None
        if shard is None or step is None:
            return False
        dispatch_loops = {id: self._find_dispatch_loop(id) for id in step.orders}
        if not all(dispatch_loops.values()):
            return False
        # before the first of their deliveries is counted
        await self.series.open_many(step.renewed, find_filtered(step.renewed))
        if step.touches_session and not await shard.take_up(self.loaded, after.mine, step):
            return False
        shard.mine, shard.loaded = after.mine, self.loaded
        for id, config in step.orders.items():
            if (dispatch_loop := self._find_dispatch_loop(id)) is None:
                return False
            dispatch_loop.order(id, Updated(fill_defaults(config)))
        await self._drop(step.forget)
        return True

    # what there is to tell

    @property
    def elsewhere(self) -> frozenset[ConsumerId]:
        """Consumers whose shards other workers own; empty while the group has assigned no shards to
        this worker and may still do so (`trouble`), and after `release`."""
        if self.trouble:
            return frozenset()
        return frozenset(c for c in self.loaded.served if shard_of(c, self.count) not in self.owned)

    def report(self) -> dict[str, Any]:
        """Return the bodies of /streams and /consumers, by the keys `streams` and `consumers`."""
        return report_service(self.loaded, self.sessions, self.rates, self.lags, self.elsewhere, self.jobs)

    def report_readiness(self) -> dict[str, Any]:
        """Return the body of /readyz."""
        return report_readiness(self.loaded, self.shards.values(), self.trouble)

    def note_places(self) -> None:
        """Record in `lags` where the consumers of all sessions are now."""
        for session in self.sessions:
            self.lags.note(find_places(session, self.rates.newest), now_ms())

    async def set_gauges(self) -> None:
        """Set the gauges of the consumers and streams that this worker serves."""
        gauges = Gauges(self.metrics, self.lags, self.opened)
        self.note_places()
        await gauges.set_consumers(
            lambda: {consumer for session in self.sessions for consumer in session.assignment.stalled}
        )
        gauges.set_silence(self.jobs.measure_silence(self.lags, self._is_paused, now_ms()))
        loops = (session.dispatch_loop for session in self.sessions)
        gauges.set_suspended(loop.listening.find_suspended() for loop in loops if loop is not None)
        for found in self._report_streams(self.loaded.streams):
            gauges.set_stream(found)

    def find_job_consumers(self) -> dict[ConsumerId, ShardState | None]:
        """Return the consumers of our shards that are left to Spark jobs, each with the state of its shard; None while that
        is not served."""
        found: dict[ConsumerId, ShardState | None] = {}
        for id, config in self.loaded.consumers.items():
            if config.engine is Engine.SPARK and (number := self.find_shard(id)) is not None:
                session = self.shards[number].session if number in self.shards else None
                found[id] = None if session is None else session.commits.state
        return found

    def _is_paused(self, id: ConsumerId) -> bool:
        config = self.loaded.consumers.get(id)
        return config is not None and (config.pause_until or 0) > now_ns()

    def find_kept_policies(self) -> dict[ConsumerId, AckPolicy]:
        """Return the ack policies of the state, for our consumers whose configs say another one."""
        return {id: policy for each in self.sessions for id, policy in each.assignment.kept_policies.items()}

    def report_consumer(self, id: ConsumerId) -> Mapping[str, Any]:
        """Return what /consumers says of one consumer, empty if it is unknown."""
        if id not in self.loaded.consumers:
            return {}
        for session in self.sessions:
            self.lags.note(find_places(session, self.rates.newest, id), now_ms())
        is_elsewhere = self.find_shard(id) is None
        return report_consumer(self.loaded, self.sessions, self.rates, self.lags, id, is_elsewhere, self.jobs)

    def report_stream(self, name: str) -> Mapping[str, Any]:
        """Return what /streams says of one stream, empty if it is unknown."""
        if name not in self.loaded.streams:
            return {}
        return next(self._report_streams([name]))

    def _report_streams(self, names: Iterable[str]) -> Iterator[Mapping[str, Any]]:
        return report_streams(self.loaded, self.sessions, self.rates, names, self.elsewhere)

    @property
    def sessions(self) -> list[Session]:
        """The sessions of the shards that have been taken over and are being served, or are about to be."""
        return [shard.session for shard in self.shards.values() if shard.session is not None]

    # shards

    def _choose(self, loaded: Loaded, number: int) -> _Part:
        """Return what a shard runs on with these configs."""
        mine = {c: config for c, config in loaded.served.items() if shard_of(c, self.count) == number}
        keeps = tuple(name for name in loaded.streams if shard_of((name,), self.count) == number)
        streams = {name: loaded.streams[name] for name in sorted({*keeps, *(stream for stream, _ in mine)})}
        return _Part(mine, keeps, streams)

    def _choose_running(self, number: int) -> _Part:
        """Return what a shard runs on now; nothing if it does not run. An error may have kept it from an earlier change."""
        shard = self.shards.get(number)
        return _Part({}, (), {}) if shard is None else self._choose(shard.loaded, number)

    def _start(self, number: int) -> None:
        """Start a shard, unless it has no consumers and keeps no index."""
        mine, keeps, _ = self._choose(self.loaded, number)
        if not mine and not keeps:
            return
        shard = Shard(
            self.loaded,
            number,
            mine,
            keeps,
            self.admin,
            self.metrics,
            self.membership,
            self._note_commit,
            self.on_passed_over,
            self.sharing,
        )
        self.shards[number] = shard
        self.series.open_consumers(mine, find_filtered(mine))
        enough = asyncio.Event()
        self._serving[number] = self.group.create_task(shard.run(enough), name=f"shard-{number}"), enough

    async def _stop(self, numbers: Iterable[int]) -> None:
        """Have shards commit what is under way, and wait up to RELEASE_S for them to end; those that have
        not ended by then are cancelled. Shards that do not run are ignored."""
        tasks = []
        for number in numbers:
            if number in self._serving:
                task, enough = self._serving.pop(number)
                enough.set()
                tasks.append(task)
            self.shards.pop(number, None)
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=RELEASE_S)
            for task in late:
                log.warning("shard given up with a transaction under way", shard=task.get_name())
                task.cancel()

    def _note_commit(self, counts: Counts) -> None:
        """Count a committed round in the metrics and the rates."""
        now = now_ms()
        # one look-up of the histogram for all consumers of a stream
        ages: dict[tuple[str, str], list[float]] = {}
        for consumer, records in counts.delivered.items():
            self.series.count_delivered(consumer, records)
            if (oldest := counts.oldest.get(consumer)) is not None:
                kept = consumer if self.latency_by_consumer else (consumer[0], "")
                ages.setdefault(kept, []).append(max(0, now - oldest) / 1000)
        for kept, seconds in ages.items():
            observe_all(self.metrics.delivery_latency_seconds.labels(*kept), seconds)
        for (consumer, _), records in counts.dead_letters.items():
            self.metrics.dead_letters.labels(*consumer).inc(records)
        for read in counts.reads:
            stream, added = read.partition[0], self.rates.reads.take(read)
            self.rates.note_first_reads(stream, added.first, now)
            self.metrics.records_decoded.labels(stream).inc(added.first)
            self.metrics.records_read_again.labels(stream).inc(added.again)
            for reason, unaddressed in added.unaddressed.items():
                self.metrics.records_unaddressed.labels(stream, reason).inc(unaddressed)
        self.rates.note(counts, now)
