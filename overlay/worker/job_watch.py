"""What a worker knows of the consumers that Spark jobs deliver: where they are, by the jobs' plans in Kafka, and for how long
a job has been silent.

The owner of a consumer's shard tells of it, as it does of those that it serves. Nothing is asked while there are no such
consumers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from overlay.clock import now_ms, now_ns
from overlay.config import Loaded
from overlay.config.consumer import DeliverPolicy
from overlay.errors import OverlayError
from overlay.kafka.admin import Admin
from overlay.kafka.log_position import TopicPartition
from overlay.kafka.properties import Properties
from overlay.logs import get_logger
from overlay.state.job_positions import NOT_BEGUN, InJob, find_in_state, find_job_places
from overlay.state.lag import Lag, Lags
from overlay.state.lag_watch import find_ends
from overlay.state.plan_reader import PlanReader
from overlay.state.shard_state import ConsumerId, ShardState
from overlay.waits import is_set_within, unless

log = get_logger(__name__)

LOOK_S = 5.0
"""Seconds between two looks at the plans."""


@dataclass(slots=True)
class JobStandings:
    """The last look at the plans, for the reports and metrics of a worker. `known`: where consumers are, of those that were
    looked for; one that neither a job nor the service has delivered is missing."""

    known: Mapping[ConsumerId, InJob] = field(default_factory=dict)
    _since: dict[ConsumerId, int] = field(default_factory=dict)
    """Since when each consumer is looked for without a break and, as far as is known, has something to read; ms since 1970."""
    _idle: Collection[ConsumerId] = ()
    """Those with which no job has begun and that have nothing to read."""

    def note(
        self,
        wanted: Iterable[ConsumerId],
        known: Mapping[ConsumerId, InJob],
        now: int,
        idle: Collection[ConsumerId] = (),
    ) -> set[ConsumerId]:
        """Set what was found of the consumers that were looked for. Return those of the last look that are not among them
        any more. `now`: ms since 1970. `idle`: those that are not `known` and have nothing to read."""
        self._idle = idle
        since = {consumer: now if consumer in idle else self._since.get(consumer, now) for consumer in wanted}
        gone = self._since.keys() - since.keys()
        self.known, self._since = known, since
        return gone

    def describe(self, consumer: ConsumerId, lag: Lag, now: int) -> dict[str, Any]:
        """Return what /consumers says of a consumer besides its config: the `reason` names its job, and the rest is there if
        it is known where the consumer is. Empty if no look was for this consumer. `now`: ms since 1970."""
        if consumer not in self._since:
            return {}
        if (found := self.known.get(consumer)) is None:
            return {"reason": NOT_BEGUN}
        positions = {f"{topic}-{number}": at for (topic, number), at in sorted(found.position.offsets.items())}
        told: dict[str, Any] = {
            "reason": found.describe(),
            "job": found.job,
            "owner": found.owner,
            "consumer_sequence": found.position.sequence,
            "positions": positions,
        }
        if (rate := found.find_rate(now)) is not None:
            told["rate"] = rate
        return told if lag.records is None else told | {"lag_records": lag.records}

    def measure_silence(self, lags: Lags, is_paused: Callable[[ConsumerId], bool], now: int) -> dict[ConsumerId, float]:
        """Return for how many seconds each consumer has had records to read while its job has neither begun nor ended a
        batch; 0 if it has none to read, or if its file pauses it. One with which no job has begun counts from the first
        look at which it had something to read. A consumer whose lag is not known is left out. `now`: ms since 1970."""
        silence: dict[ConsumerId, float] = {}
        for consumer, since in self._since.items():
            found, lag = self.known.get(consumer), lags.find(consumer, now)
            active_ms = since if found is None or not found.active_ms else found.active_ms
            silent = max(0, now - active_ms) / 1000
            if is_paused(consumer) or consumer in self._idle or lag.records == 0:
                silence[consumer] = 0.0
            elif found is None:
                silence[consumer] = silent
            elif lag.seconds is not None:
                silence[consumer] = min(silent, lag.seconds)
        return silence


@dataclass(slots=True)
class JobWatch:
    """Reads the plans of Spark jobs for one worker, and sets in `standings` and `lags` where their consumers are.

    `find_wanted`: returns the consumers with `engine: spark` of this worker's shards, each with the state of its shard, None
    if that is not at hand. `find_loaded`: returns their configs. `close`: removes the metric series of the consumers it is
    given, which were wanted at the last look and are no longer.
    """

    kafka: Properties
    admin: Admin
    prefix: str
    standings: JobStandings
    lags: Lags
    find_wanted: Callable[[], Mapping[ConsumerId, ShardState | None]]
    find_loaded: Callable[[], Loaded]
    close: Callable[[Iterable[ConsumerId]], None]
    _reader: PlanReader = field(init=False)
    _ends: dict[ConsumerId, Mapping[TopicPartition, int]] = field(default_factory=dict)
    """Where the logs ended at the first look for each consumer with which no job has begun and that is to begin at the end."""

    def __post_init__(self) -> None:
        self._reader = PlanReader(self.kafka, self.admin, self.prefix)

    async def run(self, stop: asyncio.Event) -> None:
        """Look every LOOK_S seconds until `stop`. An error is logged, and the next look tries again: jobs that cannot
        be seen end no worker."""
        while not await is_set_within(stop, LOOK_S):
            try:
                await unless(stop, self.look())
            except OverlayError as error:
                log.debug("Spark jobs are not known for now", reason=str(error))
            except Exception as error:  # noqa: BLE001 - of any library; deliveries do not depend on it
                log.warning("Spark jobs are not known for now", reason=f"{type(error).__name__}: {error}")

    async def look(self) -> None:
        """Read the plans once, and ask for the ends of the logs that they read. Kafka is not asked if no consumer is wanted.
        Raises OverlayError."""
        wanted = self.find_wanted()
        plans = await self._reader.read() if wanted else {}
        found = {consumer: find_in_state(consumer, state, plans) for consumer, state in wanted.items()}
        known = {consumer: each for consumer, each in found.items() if each is not None}
        ends = await find_ends(self.admin, {source for each in known.values() for source in each.position.offsets})
        waiting = wanted.keys() - known.keys()
        idle = await self._find_idle(waiting)
        now = now_ms()
        self.lags.note(find_job_places(known, ends), now)
        gone = self.standings.note(wanted, known, now, idle)
        # an earlier consumer of that name may have had a lag
        self.lags.forget(gone | waiting)
        self.close(gone)

    async def _find_idle(self, waiting: Collection[ConsumerId]) -> set[ConsumerId]:
        """Return which of these consumers, with which no job has begun, have nothing to read: the topics of their streams have
        no records, or those of a consumer that is to begin at the end none since the first look for it. Raises
        OverlayError."""
        before, self._ends = self._ends, {}
        if not waiting:
            return set()
        loaded, now = self.find_loaded(), now_ns()
        configs = {id: loaded.consumers[id] for id in waiting if id in loaded.consumers and id[0] in loaded.streams}
        topics = {id: loaded.streams[id[0]].topic_names for id in configs}
        facts = await self.admin.find_topics(
            {name for names in topics.values() for name in names}, with_config=False, denied={}
        )
        partitions = {name: [(name, number) for number in range(found.partitions)] for name, found in facts.items()}
        bounds = await self.admin.find_bounds(source for sources in partitions.values() for source in sources)
        idle = set(waiting)
        for id, config in configs.items():
            sources = [source for name in topics[id] for source in partitions.get(name, ())]
            begins: Mapping[TopicPartition, int] = {}
            if config.deliver_policy is DeliverPolicy.NEW:
                begins = self._ends[id] = before.get(id, {source: bounds[source][1] for source in sources})
            has_begun = (config.opt_start_time or 0) <= now
            if has_begun and any(end > max(start, begins.get(at, 0)) for at in sources for start, end in [bounds[at]]):
                idle.discard(id)
        return idle
