"""Where the consumers of Spark jobs are, by the service's state and the last plans of the jobs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from overlay.kafka.log_position import TopicPartition

from .job_plan import BatchPlan, JobPosition
from .lag import Place
from .shard_state import ConsumerId, ConsumerState, ShardState

NOT_BEGUN = "no Spark job has begun with it"


@dataclass(frozen=True, slots=True)
class InJob:
    """A consumer that a Spark job delivers, or has still to take from the service.

    `job`: the job's name, "" if no job has begun with it. `position`: how far the consumer's deliveries are committed.
    `plan`: the last plan of the job if the job delivers the consumer by it, under the claim of `position`; None if not.
    """

    consumer: ConsumerId
    job: str
    position: JobPosition
    plan: BatchPlan | None

    @property
    def owner(self) -> str:
        """The id of the Spark application that has written the plan, empty if that is not known."""
        return self.plan.owner if self.plan is not None else ""

    @property
    def active_ms(self) -> int:
        """When the job last began or ended a batch, or when the consumer may have the next one if that is later (it is paused,
        or has used up its rate); ms since 1970, 0 without a plan."""
        if self.plan is None:
            return 0
        return max(self.plan.now, self.plan.ended, self.plan.consumers[self.consumer[1]].pace.due)

    def find_rate(self, now: int) -> float | None:
        """Return the consumer's deliveries per second, None if not known. `now`: ms since 1970."""
        return None if self.plan is None else self.plan.find_rate(self.consumer[1], now)

    def describe(self) -> str:
        """Return a sentence that names the job and the application."""
        if not self.job:
            return NOT_BEGUN
        return f"Spark job {self.job!r} delivers it" + (f", as application {self.owner}" if self.owner else "")


def find_in_jobs(consumer: ConsumerId, known: ConsumerState | None, jobs: Mapping[str, BatchPlan]) -> InJob | None:
    """Return a consumer as a Spark job has it; None if no job does.

    `known`: its entry in the service's state, None if there is none, or if that is not at hand. `jobs`: the last plan
    of each job, by the job's name. An entry names the job; the position is from the job's last plan, or from the entry
    if the plan does not have the consumer under the same claim. Without an entry, the job is the first by name whose
    last plan delivers the consumer, or else the first that the consumer has left.
    """
    stream, name = consumer
    if known is not None and not known.job:
        return None
    of_stream = {job: plan for job, plan in jobs.items() if plan.name == stream}
    first = sorted(of_stream, key=lambda job: (name not in of_stream[job].consumers, job))
    for job in [known.job] if known is not None else first:
        plan = of_stream.get(job)
        found = plan.find_delivered(name) if plan is not None else None
        if plan is not None and found is not None and (known is None or found.claim == known.claim):
            return InJob(consumer, job, found, plan if name in plan.consumers else None)
    if known is None:
        return None
    own = {source: log_position.position for source, log_position in known.own.items()}
    return InJob(consumer, known.job, JobPosition(own, known.sequence, known.claim), None)


def find_in_state(consumer: ConsumerId, state: ShardState | None, jobs: Mapping[str, BatchPlan]) -> InJob | None:
    """Return a consumer that is left to Spark jobs, as a job has it, or as the service has left it if no job has begun with
    it; None if neither knows it. `state`: of its shard, None if that is not at hand. `jobs`: as in `find_in_jobs`.
    """
    known = None if state is None else state.consumers.get(consumer)
    if state is None or known is None or known.job:
        return find_in_jobs(consumer, known, jobs)
    offsets = {source: at.position for (stream, source), at in state.cursors.items() if stream == consumer[0]}
    offsets |= {source: at.position for source, at in known.own.items()}
    return InJob(consumer, "", JobPosition(offsets, known.sequence), None)


def find_job_places(
    found: Mapping[ConsumerId, InJob], ends: Mapping[TopicPartition, int]
) -> dict[ConsumerId, dict[TopicPartition, Place]]:
    """Return the places of these consumers, for their lag. `ends`: last stable offsets, which Kafka was just asked for."""
    return {
        consumer: {
            source: Place(position, ends.get(source, -1), None, is_live=False)
            for source, position in each.position.offsets.items()
        }
        for consumer, each in found.items()
    }
