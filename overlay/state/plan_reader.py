"""The last plans of Spark jobs, for a watcher that reads them every few seconds."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from overlay.clock import monotonic
from overlay.errors import OverlayError, SourceUnavailable
from overlay.kafka.admin import Admin
from overlay.kafka.connection import open_client
from overlay.kafka.own_topics import job_topic
from overlay.kafka.properties import Properties
from overlay.logs import get_logger
from overlay.waits import finish_in_thread

from .job_log import read_last
from .job_plan import BatchPlan
from .job_plan_codec import decode_plan

log = get_logger(__name__)

LIST_S = 30.0
"""Seconds for which a list of the topics of jobs is used again: Kafka tells all topics of the cluster for it. A new job is
known after that at the latest."""

Version = tuple[str, int, int]
"""What is different when a job's topic has another last plan: the topic's id, and the bounds of partition 0."""


@dataclass(slots=True)
class PlanReader:
    """Reads the last plans of Spark jobs. A plan is read and decoded again only if its topic has changed."""

    kafka: Properties
    admin: Admin
    prefix: str
    _plans: dict[str, tuple[Version, BatchPlan | None]] = field(default_factory=dict)
    """By job, the last plan, None if there is none or it cannot be read."""
    _listed: Sequence[str] = ()
    """The topics of all jobs."""
    _listed_until: float = float("-inf")
    """How long that is used, by the monotonic clock in seconds."""

    async def read(self, jobs: Collection[str] | None = None) -> dict[str, BatchPlan]:
        """Return the last plan of each of these jobs by its name, None for all jobs, among which one may be missing that is
        not older than LIST_S. Left out are jobs without a plan, and jobs whose plan is unreadable or may not be read by
        this user. Raises SourceUnavailable."""
        start = job_topic(self.prefix, "")
        wanted = await self._list(start) if jobs is None else [start + job for job in jobs]
        facts = await self.admin.find_topics(wanted, with_config=False, denied={})
        bounds = await self.admin.find_bounds((topic, 0) for topic in facts)
        versions = {topic.removeprefix(start): (found.identity, *bounds[topic, 0]) for topic, found in facts.items()}
        self._plans = {job: kept for job, kept in self._plans.items() if versions.get(job) == kept[0]}
        if changed := {job: version for job, version in versions.items() if job not in self._plans}:
            await self._read_changed(changed)
        return {job: plan for job, (_, plan) in sorted(self._plans.items()) if plan is not None}

    async def _list(self, start: str) -> Sequence[str]:
        """Return the names of the topics that begin with `start`. Raises SourceUnavailable."""
        now = monotonic()
        if now >= self._listed_until:
            self._listed, self._listed_until = await self.admin.list_topics(start), now + LIST_S
        return self._listed

    async def _read_changed(self, changed: Mapping[str, Version]) -> None:
        """Read the last plans of these jobs. Raises SourceUnavailable."""
        client = await open_client(self.kafka)
        try:
            for job, version in changed.items():
                try:
                    data = await read_last(client, self.admin, job_topic(self.prefix, job), 0)
                    # the plan of thousands of consumers takes a while
                    plan = None if data is None else await finish_in_thread(decode_plan, data)
                except SourceUnavailable:
                    raise
                except OverlayError as error:
                    log.warning("the plan of a Spark job cannot be read", job=job, reason=str(error))
                    plan = None
                self._plans[job] = version, plan
        finally:
            await client.close()
