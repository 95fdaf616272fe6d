"""`overlay run`: serves a config folder's consumers in one process, with HTTP for operators, until
told to stop.

The process is one worker of a group. It serves the shards that the group assigns to it. A second
process with the same config takes a part of them, or stands by if there is one shard only. The
folder's files and the control topic together say what is served (control/registry.py). Changes of
both take effect while the service runs, but those of overlay.yaml only at the next start.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tenacity import AsyncRetrying, retry_if_exception_type, wait_random_exponential

from overlay.clock import now_ms
from overlay.config import Loaded
from overlay.config.identity import Identity, identify
from overlay.control.registry import Registry
from overlay.control.serve import RequestServer
from overlay.default_folder import SERVICE_FILE
from overlay.errors import OverlayError, SourceUnavailable
from overlay.fleet.publisher import Publisher
from overlay.fleet.status import WorkerStatus, clean
from overlay.kafka.admin import Admin, new_topic
from overlay.kafka.connection import reach
from overlay.kafka.own_topics import list_shared_topics, requests_topic, state_topic
from overlay.kafka.shared_fetches import SharedFetches
from overlay.logs import get_logger
from overlay.metrics import Metrics
from overlay.output.topics import find_fault
from overlay.state.lag import Lags
from overlay.state.lag_watch import LagWatch
from overlay.state.shard_state import ConsumerId
from overlay.state.takeover import ensure_state_topic
from overlay.waits import Backoff, is_set_within, unless

from .gauges import Gauges
from .http import start_pages
from .job_watch import JobStandings, JobWatch
from .membership import Membership
from .metric_series import Series
from .own_picture import OwnPicture, describe_own
from .rates import Rates
from .report import report_readiness, report_service
from .session import Session
from .shard_manager import ShardManager
from .status import ProcessStart, StatusSource, name_worker
from .unreadable import Unreadable, UnreadableTeller
from .warmup import load_kernels

log = get_logger(__name__)

SWITCH_S = 0.0002
"""How long a thread waits for the GIL before it requests it, in seconds. The event loop and the
pipeline pass bytes to each other all the time. With Python's default of 5 ms, each would idle
whenever the other has a little work."""
LOOK_S = 0.5
"""Seconds between two looks at the folder's files if there is no control topic."""
REST_S = (1.0, 60.0)
"""Shortest and longest pause in seconds after changed files could not be taken up."""
PAUSE_S = 2.0
"""Longest pause in seconds between two attempts to reach Kafka, and so how late its return may be
noticed."""


@dataclass(slots=True)
class Service:
    """One worker process: serves the streams and consumers that a config folder defines. `port`:
    where HTTP listens, once `run` has started it."""

    loaded: Loaded
    """The folder's files, as they were last read."""
    metrics: Metrics = field(default_factory=Metrics)
    rates: Rates = field(default_factory=Rates)
    lags: Lags = field(default_factory=Lags)
    jobs: JobStandings = field(default_factory=JobStandings)
    port: int = 0
    trouble: str = "starting"
    identity: Identity = field(init=False)
    cluster: str = ""
    """Kafka's id of the cluster, empty until it has been reached."""
    shard_manager: ShardManager | None = None
    """None until this worker is a member of the group."""
    unreadable: Unreadable = field(default_factory=Unreadable)
    _start: ProcessStart = field(default_factory=ProcessStart)
    _request_server: RequestServer | None = None
    _shards: int = 0
    """How many shards there are: the state topic's partitions."""
    _opened: set[ConsumerId] = field(default_factory=set)
    """Consumers that have metric series."""
    _own_picture: OwnPicture = field(init=False)

    def __post_init__(self) -> None:
        self._own_picture = OwnPicture(self._describe)
        self.identity = identify(self.loaded)
        series = Series(self.metrics)
        series.open_service()
        series.open_streams(self.loaded.streams)

    @property
    def sessions(self) -> list[Session]:
        """The sessions that this worker runs now, one for each shard that it serves."""
        return self.shard_manager.sessions if self.shard_manager else []

    async def run(self, stop: asyncio.Event) -> None:
        """Listen for HTTP, load the kernels, and `serve` until `stop`. Raises OverlayError if an HTTP address is
        taken or the TLS certificate cannot be used; else as `serve`.
        """
        http = self.loaded.service.http
        runners, self.port = await start_pages(self.metrics, self, http, self._find_file())
        log.info("http listens", url=f"{http.scheme}://{http.address[0]}:{self.port}/readyz")
        interval = sys.getswitchinterval()
        try:
            sys.setswitchinterval(SWITCH_S)
            self.trouble = "loading kernels"
            if await unless(stop, asyncio.to_thread(load_kernels)):
                await self.serve(stop)
        finally:
            sys.setswitchinterval(interval)
            for runner in runners:
                await runner.cleanup()

    def _find_file(self) -> str:
        """Return the path of overlay.yaml, its bare name if the config comes from no folder."""
        place = self.loaded.files.get("")
        return SERVICE_FILE if place is None else place.file

    def reload(self, files: Loaded) -> None:
        """Apply changed stream and consumer files of the folder from now on; does not wait until
        they are in effect. Changes of overlay.yaml are ignored until the next start."""
        self.loaded = replace(files, service=self.loaded.service)
        self.identity = identify(self.loaded)
        if self._request_server is not None:
            self._request_server.reload(self.loaded)

    async def serve(self, stop: asyncio.Event) -> None:
        """Serve until `stop`, without HTTP; the caller has loaded the kernels. While Kafka cannot be reached, try
        again without limit.

        Raises CredentialsRefused; in an exception group if the group of workers refuses us.
        """

        async def rest(seconds: float) -> None:
            await is_set_within(stop, seconds)

        again, pauses = retry_if_exception_type(SourceUnavailable), wait_random_exponential(multiplier=0.5, max=PAUSE_S)
        async for attempt in AsyncRetrying(retry=again, wait=pauses, sleep=rest, reraise=True):
            if stop.is_set():
                return
            with attempt:
                try:
                    await unless(stop, reach(self.loaded.service.kafka))
                    await self._work(stop)
                except SourceUnavailable as error:
                    self.trouble = str(error)
                    log.warning("waiting for Kafka", reason=str(error))
                    raise

    async def _work(self, stop: asyncio.Event) -> None:
        """Connect to Kafka, create the topics of the overlay that are missing, and be a worker of the group until
        `stop`. Raises SourceUnavailable, also if the state topic accepts no records; CredentialsRefused, in an
        exception group if the group of workers refuses us.
        """
        async with Admin(self.loaded.service.kafka) as admin:
            try:
                if await unless(stop, self._prepare(admin)):
                    await self._be_member(admin, stop)
            finally:
                self.shard_manager, request_server, self._request_server = None, self._request_server, None
                if request_server is not None:
                    await request_server.close()

    async def _prepare(self, admin: Admin) -> None:
        """Create the topics of the overlay that are missing, and read the control topic. Raises as
        `_work`."""
        service = self.loaded.service
        prefix = service.topics.prefix
        self.cluster = await admin.find_cluster()
        self._shards = await ensure_state_topic(admin, prefix, service.shards, service.topics.replication)
        await check_writable(admin, state_topic(prefix))
        if await self._ensure_control(admin):
            await self._open_request_server(admin)

    async def _be_member(self, admin: Admin, stop: asyncio.Event) -> None:
        """Join the group of workers and run the shards that it assigns to us until `stop`. Changes
        of the config come from the control topic, or from the folder's files if there is no control
        topic."""
        service, request_server = self.loaded.service, self._request_server
        prefix = service.topics.prefix
        registry = Registry(self.loaded) if request_server is None else request_server.registry
        is_drained = request_server is not None and request_server.is_drained
        membership = Membership(service.kafka, prefix, state_topic(prefix), drained=is_drained)
        if not await unless(stop, membership.start()):
            return
        sharing = SharedFetches(service.kafka, self.metrics.bytes_fetched.inc)
        async with asyncio.TaskGroup() as group:
            self.shard_manager = ShardManager(
                registry.effective(), self._shards, admin, self.metrics, membership, group, self.rates, self.lags, self.jobs,
                latency_by_consumer=service.metrics.latency_by == "consumer", opened=self._opened,
                on_passed_over=self.unreadable.note, sharing=sharing,
            )  # fmt: skip
            group.create_task(sharing.run(stop), name="shared-fetches")
            self.trouble = ""
            if request_server is not None:
                group.create_task(request_server.run(self.shard_manager, stop), name="control")
            else:
                group.create_task(self._follow_files(registry, self.shard_manager, stop), name="files")
            shard_manager = self.shard_manager
            self._watch(admin, shard_manager, group, stop)

            async def take(numbers: frozenset[int]) -> bool:
                """Serve exactly these shards, after waiting for a limited time until all of the control
                topic is taken up. Return whether they are served; if their assignment is over, nothing was
                done."""
                if numbers and request_server is not None:
                    await request_server.catch_up()
                if not await shard_manager.take(numbers):
                    return False
                if request_server is not None:
                    request_server.wake()
                return True

            await membership.run(stop, take, shard_manager.release)

    @property
    def worker(self) -> str:
        """The worker's name in the fleet."""
        return name_worker(self.loaded.service, socket.gethostname(), self.port)

    def _watch(self, admin: Admin, shard_manager: ShardManager, group: asyncio.TaskGroup, stop: asyncio.Event) -> None:
        """Start tasks in `group` that run until `stop`: the watch on the lag of the consumers, the one on Spark jobs,
        what tells of records that cannot be read and, if `fleet.publish` is set, the publisher of this worker's status."""
        kafka, prefix = self.loaded.service.kafka, self.loaded.service.topics.prefix
        teller = UnreadableTeller(self.unreadable, kafka, admin, prefix, self.worker)
        group.create_task(teller.run(stop), name="unreadable")
        lag_watch = LagWatch(kafka, admin, self.lags, shard_manager.note_places)
        group.create_task(lag_watch.run(stop), name="lag")
        wanted, close = shard_manager.find_job_consumers, shard_manager.series.close_silences
        job_watch = JobWatch(kafka, admin, prefix, self.jobs, self.lags, wanted, lambda: shard_manager.loaded, close)
        group.create_task(job_watch.run(stop), name="jobs")
        if self.loaded.service.fleet.publish:
            group.create_task(self._open_publisher(admin, shard_manager).run(stop), name="fleet")

    def _open_publisher(self, admin: Admin, shard_manager: ShardManager) -> Publisher:
        """Return what publishes the status of this worker for the fleet."""
        service = self.loaded.service
        topics = service.topics
        worker = self.worker
        source = StatusSource(lambda: self.identity, shard_manager, worker, self._start)
        return Publisher(
            service.kafka,
            admin,
            topics.prefix,
            topics.replication,
            worker,
            self.metrics,
            source.collect,
            source.mark,
        )

    async def _follow_files(self, registry: Registry, shard_manager: ShardManager, stop: asyncio.Event) -> None:
        """Pass changes of the folder's files (`reload`) to the shard manager, until `stop`. For use if
        there is no control topic. After an error, log it and try again after a pause."""
        taken, backoff = registry.files, Backoff(*REST_S)
        while not await is_set_within(stop, LOOK_S):
            if (found := self.loaded) is taken:
                continue
            try:
                registry.reload(found)
                await shard_manager.take_up(registry.effective())
            except Exception as error:
                # if it ended this task, it would end all shards of the worker
                self.metrics.unforeseen_errors.labels("files").inc()
                log.exception("an error that was not foreseen: changed files wait", cause=type(error).__name__)
                await backoff.rest(stop)
            else:
                taken = found
                backoff.reset()

    async def _ensure_control(self, admin: Admin) -> bool:
        """Create the control, reply and events topics where they are missing, and the requests topic
        if the config asks for it. Return whether all but the requests topic exist now.

        Each topic that Kafka refuses is logged as an error. With False, the consumers of the folder's
        files are still to be served, but no requests. Raises SourceUnavailable.
        """
        topics = self.loaded.service.topics
        wanted = list_shared_topics(topics.prefix, requests=topics.requests)
        refused: dict[str, str] = {}
        present = await admin.find_topics(wanted, with_config=False, denied=refused)
        missing = {name: config for name, config in wanted.items() if name not in present and name not in refused}
        _, more = await admin.create_topics(
            new_topic(name, 1, topics.replication, config) for name, config in missing.items()
        )
        refused |= more
        for topic, reason in refused.items():
            log.error("a topic of the overlay's own is missing", topic=topic, reason=reason)
        return not refused.keys() - {requests_topic(topics.prefix)}

    async def _open_request_server(self, admin: Admin) -> None:
        """Set `_request_server` to one that has read the control topic to its end. If Kafka refuses
        the topic, log that and set None: then no requests are served. Raises SourceUnavailable."""
        name = f"{self.identity.prefix}@{socket.gethostname()}"
        # set before it is open, so that `reload` reaches it meanwhile
        request_server = self._request_server = RequestServer(
            self.loaded.service.kafka,
            admin,
            Registry(self.loaded),
            name,
            worker=(self.worker, self._start.boot),
            metrics=self.metrics,
            on_passed_over=self.unreadable.note,
        )
        try:
            await request_server.open()
        except SourceUnavailable:
            raise
        except OverlayError as error:
            log.error("there are no requests: the control topic is not read", reason=str(error))
            self._request_server = None
            await request_server.close()

    def report(self) -> dict[str, Any]:
        """Return the bodies of /service, /streams and /consumers, by the keys `service`, `streams` and
        `consumers`."""
        if self.shard_manager is None:
            found = report_service(self.loaded, [], self.rates, self.lags, (), self.jobs, self.trouble)
        else:
            found = self.shard_manager.report()
        place = {"cluster": self.cluster, "shards": sorted(self._list_owned()), "shard_count": self._count_shards()}
        return found | {"service": asdict(self.identity) | place}

    def report_readiness(self) -> dict[str, Any]:
        """Return the body of /readyz."""
        if self.shard_manager is None:
            return report_readiness(self.loaded, (), self.trouble)
        return self.shard_manager.report_readiness()

    async def look(self) -> Mapping[str, Any]:
        """Return what this worker knows as the JSON object that `/fleet` answers, up to some seconds old."""
        return await self._own_picture.look()

    async def _describe(self) -> dict[str, Any]:
        manager = self.shard_manager
        if manager is not None:
            status = StatusSource(lambda: self.identity, manager, self.worker, self._start).describe_worker()
        else:
            status = WorkerStatus(
                prefix=self.identity.prefix,
                worker=self.worker,
                boot=self._start.boot,
                number=0,
                started=self._start.started,
                clock=now_ms(),
                version=self.identity.version,
                digest=self.identity.digest,
                shard_count=0,
                trouble=clean(self.trouble),
            )
        return await describe_own(status, self.report_readiness(), manager)

    async def set_gauges(self) -> None:
        """Set the gauges that no event sets. While Kafka is away, the lag of the consumers that were
        served goes on growing."""
        gauges = Gauges(self.metrics, self.lags, self._opened)
        is_ready = self.report_readiness()["ready"]
        gauges.set_worker(is_ready=is_ready, owned=len(self._list_owned()), shards=self._count_shards())
        if self.shard_manager is None:
            await gauges.set_consumers(set)
        else:
            await self.shard_manager.set_gauges()

    def _list_owned(self) -> Collection[int]:
        """Return the numbers of the shards that the group has assigned to this worker; none while it is no
        member of the group."""
        return self.shard_manager.owned if self.shard_manager is not None else ()

    def _count_shards(self) -> int:
        """Return how many shards there are, 0 while this worker is no member of the group."""
        return self.shard_manager.count if self.shard_manager is not None else 0


async def check_writable(admin: Admin, topic: str) -> None:
    """Raise SourceUnavailable if an existing topic accepts no records now: it has no leader, or too
    few replicas in sync. Does nothing if the topic is missing."""
    facts = (await admin.find_topics([topic])).get(topic)
    if facts and (fault := find_fault(facts)):
        raise SourceUnavailable(f"topic {topic}: {fault}")
