"""Hand-over: a consumer changes between the service and a Spark job, or between two jobs.

Who owns a consumer is said by its entry in the service's state. Without `job` in it the service
does, and its position is there. With `job` that job does, and its position is in the last plan of
the job (job_plan.py) if that plan repeats the entry's `claim`. If it does not, the job has not
written a plan since it took the consumer over, or the plan is from an earlier time, and the
position is the one with which the job began. While there is no state topic, no service has run, and
jobs deliver without claims. The group of a consumer's pipeline (leases.py) only keeps two owners
from beginning at all. It is no lock: a member may be cut off, and the service may not be allowed to
see groups.

The state can be the lock since a shard has one writer, and becoming it fences the former one
(takeover.py). A job that takes a consumer writes the entry as the owner of the shard (amend.py). A
running service is fenced, reads the state again and finds the consumer not its own. What it had not
committed by then was not delivered either.

A job has one writer of plans, who is fenced in the same way, under the job's transactional id. So
taking a consumer from a job has these steps, in this order:

1. The entry gets a `recall`, a random mark. From here on a driver of the job that starts anew finds
   that the consumer is to be given back. If it is to deliver again (its file says so), it takes the
   mark out as the owner of the shard, which fences the one that recalls.
2. The job's driver is fenced. One that began before cannot write a plan any more, and no transaction
   hides the last plan. One that begins later reads the state after its own InitProducerId, and so
   the mark.
3. The last plan is read. If its batch has not ended, some of its deliveries may be committed, and the
   consumer stays the job's until the job has ended the batch.
4. The entry is written with the position of the plan: for the service, in the first transaction of
   its session; for another job, with that job's name and a new claim, if the mark is still ours.

A crash before 4 leaves the consumer to the job, or to whichever owner takes these steps again. A job
that crashes after its claim and before its first plan finds the claim in the entry, and the
position beside it.

A consumer without an entry may have been delivered by a job before the service first ran. So the
service then looks through the plans of all jobs, for those that have the consumer without a claim. A
plan with a claim says that there was an entry: the operator has dropped it, and the consumer begins
anew.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import TransactionalIdAuthorizationFailed

from overlay.chance import draw_id
from overlay.config import ServiceConfig
from overlay.consumer.snapshot import decode as decode_machine
from overlay.consumer.snapshot import has_pending
from overlay.errors import CredentialsRefused, OverlayError, SourceUnavailable
from overlay.kafka.admin import Admin
from overlay.kafka.log_position import LogPosition, TopicPartition
from overlay.kafka.own_topics import job_id, job_topic, shard_of, state_topic
from overlay.kafka.properties import Properties

from .amend import ATTEMPTS, amend_shard, count_shards, read_states
from .job_log import read_last
from .job_plan import BatchPlan, JobPosition
from .job_plan_codec import decode_plan
from .job_reads import find_snapshot
from .partitions import find_anew
from .shard_state import ConsumerId, ConsumerState, Delta, ShardState, StateUnreadable
from .takeover import read_state

if TYPE_CHECKING:
    # commands that only look at the plans load no Arrow
    from overlay.index.ledger.ledger import Ledger

Starts = Mapping[TopicPartition, int]
"""The partitions of a stream, with the log start of each."""


ReadLedger = Callable[[], Awaitable["Ledger | None"]]
"""Reads a stream's ledger as it is now; None if there is none."""


class LedgerBehind(OverlayError):
    """The place of a consumer's last sequence is not in the stream's ledger as it was read. The operator lets the job
    read the ledger."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """A consumer that a job may deliver. `claim`: what its plans have to repeat; "" if the job
    began to deliver it before any service had run. `start`: where it begins; None if it goes on as
    the job's own plan says or, if that does not have the consumer under `claim`, begins as a new
    one."""

    claim: str
    start: JobPosition | None


@dataclass(frozen=True, slots=True)
class TakenBack:
    """A consumer that the service takes from a job. `job`: its name, or that of one of them if
    several have delivered it; "" if that is unknown, since some job's plan cannot be read.
    `reason`: why the consumer stays the job's; empty if it does not. `state`: without a reason,
    what the state is to record of it; None if it begins as a new consumer."""

    job: str
    state: ConsumerState | None = None
    reason: str = ""


async def claim_consumers(
    service: ServiceConfig,
    admin: Admin,
    client: AIOKafkaClient,
    stream: str,
    names: Iterable[str],
    job: str,
    plan: BatchPlan | None,
    starts: Starts,
    read_ledger: ReadLedger | None = None,
) -> dict[str, Claimed]:
    """Make a job the owner of the consumers `names` of a stream. Return by name how it delivers each.

    Consumers of other jobs are recalled, and the drivers of these jobs fenced. If no service has run
    yet, nothing is written. `plan`: the last plan of `job`, None if it has none; read it after the job's
    driver has fenced its predecessor. `starts`: the log start of each partition of the stream. `read_ledger`: for
    consumers of a stream of several partitions whose pace the service kept. Shards in which nothing changes are not taken
    over.

    Raises OverlayError for a consumer that the job cannot take, for example BatchUnfinished if a batch of another job
    that delivers it has not ended; also the errors of `amend_shard`. Consumers of shards that were written before
    stay claimed.
    """
    known = _list_claims(plan, stream)
    shards = await count_shards(admin, service.topics.prefix)
    if not shards:
        return {name: Claimed(known.get(name, ""), None) for name in names}
    claimed: dict[str, Claimed] = {}
    for shard, mine in _group_by_shard(stream, names, shards).items():
        claiming = _Claiming(job, known, starts, mine, read_ledger)
        await claiming.run(service, client, admin, shard)
        claimed |= claiming.claimed
    return claimed


async def find_consumers_of(client: AIOKafkaClient, admin: Admin, prefix: str, job: str) -> list[ConsumerId]:
    """Return the consumers that a job delivers by the service's state, sorted, also those that another owner recalls;
    none if no service has run yet. Raises SourceUnavailable, CredentialsRefused, StateUnreadable, SourceChanged.
    """
    states = await read_states(client, admin, prefix)
    return sorted(c for state in states for c, entry in state.consumers.items() if entry.job == job)


async def find_lost(
    client: AIOKafkaClient, admin: Admin, prefix: str, stream: str, job: str, claims: Mapping[str, str]
) -> set[str]:
    """Return which of the consumers in `claims` are not the job's any more: the state says that the
    service or another job has them, has another claim for them, recalls them, or has dropped them. A
    consumer that is not in the state was dropped, unless its claim is empty.
    `claims`: the claim of each consumer by its name, as `claim_consumers` returned it.

    Raises SourceUnavailable, StateUnreadable, SourceChanged.
    """
    shards = await count_shards(admin, prefix)
    grouped = _group_by_shard(stream, claims, shards) if shards else {}
    entries: dict[ConsumerId, ConsumerState] = {}
    for shard in grouped:
        entries |= (await read_state(client, admin, state_topic(prefix), shard))[0].consumers
    return {name for name, claim in claims.items() if _is_lost(entries.get((stream, name)), job, claim)}


def _is_lost(entry: ConsumerState | None, job: str, claim: str) -> bool:
    if entry is None:
        return claim != ""  # an entry was there, and was dropped
    return (entry.job, entry.claim) != (job, claim) or entry.recall != ""


async def take_back(
    kafka: Properties,
    client: AIOKafkaClient,
    admin: Admin,
    prefix: str,
    consumers: Mapping[ConsumerId, Starts],
    state: ShardState,
    record: Callable[[Delta], Awaitable[None]],
) -> dict[ConsumerId, TakenBack]:
    """Take consumers that the owner of their shard is to deliver from the Spark jobs that have
    them: record a recall for each that has none, fence the drivers of these jobs, and find where
    the consumers go on.

    Return those that a job has had, or may have had if a job's plan cannot be read. Those left out are
    the service's already, or new. A consumer that cannot be taken has a `reason`. The states returned
    are not in `state`: the caller commits them before the first delivery.

    `consumers`: each with the log starts of its stream's partitions. `state`: of their shard. `record`:
    commits a delta to it and applies the delta to `state`. Raises SourceUnavailable, and what `record`
    raises.
    """
    given = {c: known for c in consumers if (known := state.consumers.get(c)) is not None and known.job}
    if fresh := {c: replace(known, recall=draw_id()) for c, known in given.items() if not known.recall}:
        await record(Delta(consumers=fresh))
    found: dict[ConsumerId, TakenBack] = {}
    for job in sorted({known.job for known in given.values()}):
        mine = {c: known for c, known in given.items() if known.job == job}
        try:
            plan = await _fence_job(kafka, client, admin, prefix, job)
            found |= {c: _give_back(c, known, plan, consumers[c]) for c, known in mine.items()}
        except SourceUnavailable:
            raise
        except OverlayError as error:
            found |= dict.fromkeys(mine, TakenBack(job, reason=str(error)))
    if new := {c: starts for c, starts in consumers.items() if c not in state.consumers}:
        found |= await _find_unrecorded(kafka, client, admin, prefix, new)
    return found


async def _find_unrecorded(
    kafka: Properties, client: AIOKafkaClient, admin: Admin, prefix: str, consumers: Mapping[ConsumerId, Starts]
) -> dict[ConsumerId, TakenBack]:
    """Return those of the consumers that a job has delivered without a claim, by the plans of all jobs, and
    fence that job (`_take_unrecorded`). If any job's plan cannot be read, fence none and return all of the
    consumers, each with the reason. Raises SourceUnavailable."""
    jobs: dict[ConsumerId, list[str]] = {}
    try:
        for job, plan in (await read_plans(client, admin, prefix)).items():
            for c in consumers:
                if _list_claims(plan, c[0]).get(c[1]) == "":
                    jobs.setdefault(c, []).append(job)
    except SourceUnavailable:
        raise
    except OverlayError as error:
        # the consumers of a plan that cannot be read are unknown, so it may be any
        return dict.fromkeys(consumers, TakenBack("", reason=str(error)))
    return {c: await _take_unrecorded(kafka, client, admin, prefix, c, jobs[c], consumers[c]) for c in jobs}


async def _take_unrecorded(
    kafka: Properties,
    client: AIOKafkaClient,
    admin: Admin,
    prefix: str,
    consumer: ConsumerId,
    jobs: Collection[str],
    starts: Starts,
) -> TakenBack:
    """Fence the job that has delivered a consumer without a claim, and return how the consumer goes on.
    If `jobs` (at least one) are several, none is fenced, and the `reason` asks the operator to choose
    one. Raises SourceUnavailable; another error becomes the `reason`."""
    job, *others = jobs
    if others:
        topics = ", ".join(job_topic(prefix, each) for each in jobs)
        return TakenBack(
            job,
            reason=f"several Spark jobs have delivered it: topics {topics}. Delete each topic whose position is not to count",
        )
    try:
        plan = await _fence_job(kafka, client, admin, prefix, job)
        return _give_back(consumer, ConsumerState(job=job), plan, starts)
    except SourceUnavailable:
        raise
    except OverlayError as error:
        return TakenBack(job, reason=str(error))


def _give_back(consumer: ConsumerId, entry: ConsumerState, plan: BatchPlan | None, starts: Starts) -> TakenBack:
    """Return how the service goes on with a consumer of a job: from its position in the job's last plan,
    if that has the consumer under the claim of `entry`; else from the positions in `entry`, if there
    are any; else as a new consumer.

    `entry`: what the state says of the consumer. Raises BatchUnfinished if a batch of the plan that
    delivers it has not ended.
    """
    if (position := _find_in_plan(plan, consumer, entry.claim)) is not None:
        return TakenBack(
            entry.job, ConsumerState(position.sequence, _place(position, starts), snapshot=position.snapshot)
        )
    if entry.own:
        own = {**_place_at(starts), **entry.own}
        return TakenBack(entry.job, replace(entry, own=own, job="", claim="", recall=""))
    return TakenBack(entry.job)


@dataclass(slots=True)
class _Claiming:
    """A job's claim of the consumers `mine`, all of one shard.

    `known`: the claims in the job's own plan, by name. `starts`: the log start of each partition of the
    stream. `read_ledger`: as in `claim_consumers`; `ledger`: what it has returned last. `ids`: Kafka's ids of its topics, by
    name; found by `run`.
    `claimed`: by name, how the job delivers each; filled by `run`. `mark`: the recall that is
    written for consumers of other jobs. `recalled`: the entries of these consumers with that recall.
    `positions`: where these consumers stand by the last plans of their jobs, None if a plan has no
    position.
    """

    job: str
    known: Mapping[str, str]
    starts: Starts
    mine: Collection[ConsumerId]
    read_ledger: ReadLedger | None = None
    ledger: Ledger | None = None
    ids: dict[str, str] = field(default_factory=dict)
    claimed: dict[str, Claimed] = field(default_factory=dict)
    mark: str = field(default_factory=draw_id)
    recalled: dict[ConsumerId, ConsumerState] = field(default_factory=dict)
    positions: dict[ConsumerId, JobPosition | None] = field(default_factory=dict)

    async def run(self, service: ServiceConfig, client: AIOKafkaClient, admin: Admin, shard: int) -> None:
        """Make the job the owner of the consumers in the state of this shard, after it has recalled those
        of other jobs and fenced the drivers of these. Fill `claimed`. The shard is taken over only if
        something changes. Raises OverlayError."""
        prefix = service.topics.prefix
        facts = await admin.find_topics({topic for topic, _ in self.starts}, with_config=False, denied={})
        self.ids = {name: each.identity for name, each in facts.items()}
        state, _ = await read_state(client, admin, state_topic(prefix), shard)
        if self.recall(state):
            await amend_shard(service, client, admin, shard, self.recall)
            for job in sorted({entry.job for entry in self.recalled.values()}):
                plan = await _fence_job(service.kafka, client, admin, prefix, job)
                of_job = {c: entry for c, entry in self.recalled.items() if entry.job == job}
                self.positions |= {c: _find_in_plan(plan, c, entry.claim) for c, entry in of_job.items()}
            state, _ = await read_state(client, admin, state_topic(prefix), shard)
        for attempt in range(ATTEMPTS):
            try:
                if self.change(state):
                    await amend_shard(service, client, admin, shard, self.change)
                return
            except LedgerBehind:
                # the service went on between a reading of the ledger and the takeover, after which it waits for a while
                if self.read_ledger is None or attempt == ATTEMPTS - 1:
                    raise
                self.ledger = await self.read_ledger()

    def recall(self, state: ShardState) -> Delta:
        """Return the delta that recalls those of the consumers that other jobs have, and set `recalled`
        to the entries in it."""
        entries = {c: entry for c in self.mine if (entry := state.consumers.get(c)) is not None}
        self.recalled = {c: replace(e, recall=self.mark) for c, e in entries.items() if e.job not in ("", self.job)}
        return Delta(consumers=dict(self.recalled))

    def change(self, state: ShardState) -> Delta:
        """Return the delta that makes the job the owner of the consumers, and set in `claimed` how it
        delivers each. A later call overwrites what an earlier one has set. Raises OverlayError for a
        consumer that the job cannot take."""
        delta, left = Delta(), list[ConsumerId]()
        for consumer in self.mine:
            entry, start = self._take(state, consumer)
            self.claimed[consumer[1]] = Claimed(entry.claim, start)
            if entry != state.consumers.get(consumer):
                delta.consumers[consumer] = entry
            if consumer in delta.consumers and state.machines.get(consumer):
                left.append(consumer)
        # the service must not go on with a machine of the past when it gets the consumer back
        return replace(delta, forgotten=tuple(left))

    def _take(self, state: ShardState, consumer: ConsumerId) -> tuple[ConsumerState, JobPosition | None]:
        """Return the entry that makes the job the owner of a consumer, and where the job begins to
        deliver it; None as in `Claimed.start`. Raises OverlayError if the job cannot take it."""
        entry, known = state.consumers.get(consumer), self.known.get(consumer[1])
        if entry is None:
            return ConsumerState(job=self.job, claim=draw_id() if known is None else known), None
        if entry.job == self.job:
            entry = replace(entry, recall="")
            return entry, None if known == entry.claim else self._find_start(entry)
        entry = self._take_from_job(consumer, entry) if entry.job else self._take_from_service(state, consumer)
        return entry, self._find_start(entry)

    def _take_from_service(self, state: ShardState, consumer: ConsumerId) -> ConsumerState:
        """Return the entry that makes the job the owner of a consumer of the service, with every position
        its own. Raises OverlayError if a machine of the service has deliveries for it that may come again, with which a job
        cannot go on, or if a topic was created again since the service has read it."""
        stream, name = consumer
        known = {topic: id for (of, topic), id in state.topics.items() if of == stream}
        if anew := find_anew(known, self.ids):
            raise OverlayError(
                f"consumer {name!r} of stream {stream!r} has positions of the service in topic {', '.join(sorted(anew))},"
                f" which was deleted and created again since: they mean nothing. Run `overlay stream reset {stream}` first"
            )
        pinned = state.pin(consumer, self.starts)
        if records := state.machines.get(consumer):
            pinned = self._leave_machine(consumer, pinned, records)
        snapshot = find_snapshot(pinned.snapshot, {source: at.position for source, at in pinned.own.items()})
        return replace(pinned, snapshot=snapshot, heard={}, job=self.job, claim=draw_id())

    def _leave_machine(self, consumer: ConsumerId, pinned: ConsumerState, records: Sequence[bytes]) -> ConsumerState:
        """Return the entry of a consumer whose pace a machine kept, as that of `rate_limit_bps` or a pause, with sequence and
        positions behind its last delivery. `pinned`: the entry, with every position its own. `records`: the machine's.
        Raises OverlayError if a delivery of it may come again, and LedgerBehind."""
        stream, name = consumer
        decoded = [decode_machine(record) for record in records]
        if has_pending(decoded):
            raise OverlayError(
                f"consumer {name!r} of stream {stream!r} has deliveries in the service's state that a Spark job cannot go on"
                " with. Let the service deliver it; or give the Spark job a consumer of another name. To begin anew with"
                f" Spark, take its file out and say `overlay consumer rm {stream} {name}`"
            )
        head = decoded[-1].head
        if len(self.starts) == 1:
            passed = dict.fromkeys(self.starts, head["position"])
        elif self.ledger is not None and self.ledger.next_sequence > head["position"]:
            passed = self.ledger.positions_at(head["position"] + 1)
        else:
            raise LedgerBehind(
                f"consumer {name!r} of stream {stream!r} has come to sequence {head['position']} in the service, and the"
                " ledger does not say where this is, or cannot be read. Allow the job to read it, and start the job again"
            )
        own = {
            source: at if at.position >= passed.get(source, 0) else LogPosition(passed[source])
            for source, at in pinned.own.items()
        }
        return replace(pinned, sequence=max(pinned.sequence, head["delivered"].consumer), own=own)

    def _take_from_job(self, consumer: ConsumerId, entry: ConsumerState) -> ConsumerState:
        """Return the entry that makes this job the owner of another job's consumer, at its position in the
        last plan of that job; if that has none, the positions of `entry` stay. Raises OverlayError if
        another owner has replaced or removed our recall."""
        if entry.recall != self.mark:
            raise OverlayError(
                f"consumer {consumer[1]!r} of stream {consumer[0]!r} is taken from Spark job {entry.job!r} by several owners at"
                " once, or that job has started again. Stop the others, and start this job again"
            )
        taken = replace(entry, job=self.job, claim=draw_id(), recall="")
        if (position := self.positions[consumer]) is None:
            return taken
        own = _place(position, self.starts)
        return replace(taken, sequence=position.sequence, own=own, snapshot=position.snapshot, floor={})

    def _find_start(self, entry: ConsumerState) -> JobPosition | None:
        """Return where a job begins by the entry's own positions; None if the entry has none. In each
        partition of `starts` that is the own position, else the log start, but not below the floor."""
        if not entry.own:
            return None
        own = {**_place_at(self.starts), **entry.own}
        offsets = {source: max(own[source].position, entry.floor.get(source, 0)) for source in self.starts}
        return JobPosition(offsets, entry.sequence, entry.claim, find_snapshot(entry.snapshot, offsets))


def _place_at(offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, LogPosition]:
    return {source: LogPosition(offset) for source, offset in offsets.items()}


def _place(position: JobPosition, starts: Starts) -> dict[TopicPartition, LogPosition]:
    """Return a job's position as log positions. A partition of `starts` that the job did not know has its
    log start."""
    return _place_at({**starts, **position.offsets})


def _list_claims(plan: BatchPlan | None, stream: str) -> dict[str, str]:
    """Return the claims of the stream's consumers in a plan, by name; also of those that have left. Empty
    if there is no plan, or one of another stream."""
    if plan is None or plan.name != stream:
        return {}
    left = {name: each.claim for name, each in plan.left.items()}
    return left | {name: each.claim for name, each in plan.consumers.items()}


def _find_in_plan(plan: BatchPlan | None, consumer: ConsumerId, claim: str) -> JobPosition | None:
    """Return where a consumer stands after a plan's batch; None if there is no plan or it does not have the
    consumer under this claim. Raises BatchUnfinished if the consumer is in the batch and that has not
    ended."""
    stream, name = consumer
    if plan is None or _list_claims(plan, stream).get(name) != claim:
        return None
    return plan.find_position(name)


async def _fence_job(
    kafka: Properties, client: AIOKafkaClient, admin: Admin, prefix: str, job: str
) -> BatchPlan | None:
    """Fence a job's driver, and return the job's last plan, None if it has none. In the plan, no consumer has read
    anything of a topic that was created again since. Raises OverlayError if the job's state topic is gone or its
    plan cannot be read, SourceUnavailable."""
    from overlay.output.transaction import Transactions  # commands that read plans alone need none

    topic = job_topic(prefix, job)
    if topic not in await admin.find_topics([topic], with_config=False):
        raise OverlayError(
            f"its position is in topic {topic} of Spark job {job!r}, which is gone. Restore the topic; or take the consumer's"
            " file out, drop its state with `overlay consumer rm`, and let it begin anew"
        )
    transactions = Transactions(kafka, job_id(prefix, job), topic, 0)
    try:
        await transactions.start([topic])
        await transactions.end_lost([(topic, 0)])
        return await _begin_anew(admin, await _read_plan(client, admin, topic))
    except SourceUnavailable as error:
        if isinstance(error.__cause__, TransactionalIdAuthorizationFailed):
            raise CredentialsRefused(
                f"Kafka does not allow the transactional id {job_id(prefix, job)}, under which Spark job {job!r} is stopped"
                " before its consumer is taken over. Grant Write on it"
            ) from error
        raise
    finally:
        await transactions.close()


async def _begin_anew(admin: Admin, plan: BatchPlan | None) -> BatchPlan | None:
    """Return a plan without offsets of topics that were created again since it was written (BatchPlan.begin_anew). A
    topic that is gone, or that this user may not describe, counts as the same. Raises SourceUnavailable."""
    if plan is None:
        return None
    facts = await admin.find_topics(plan.ids, with_config=False, denied={})
    return plan.begin_anew(find_anew(plan.ids, {name: each.identity for name, each in facts.items()}))


async def _read_plan(client: AIOKafkaClient, admin: Admin, topic: str) -> BatchPlan | None:
    """Return the last plan of a job's state topic, None if it has none. Raises StateUnreadable,
    SourceChanged, SourceUnavailable."""
    found = await read_last(client, admin, topic, 0)
    try:
        return None if found is None else decode_plan(found)
    except StateUnreadable as error:
        raise StateUnreadable(f"topic {topic}: {error}") from error


async def read_plans(client: AIOKafkaClient, admin: Admin, prefix: str) -> dict[str, BatchPlan]:
    """Return the last plan of every Spark job, by the job's name; a job without a plan is left out. Raises
    StateUnreadable, SourceChanged, SourceUnavailable."""
    start = job_topic(prefix, "")
    found = {
        topic.removeprefix(start): await _read_plan(client, admin, topic) for topic in await admin.list_topics(start)
    }
    return {job: plan for job, plan in found.items() if plan is not None}


def _group_by_shard(stream: str, names: Iterable[str], shards: int) -> dict[int, list[ConsumerId]]:
    grouped: dict[int, list[ConsumerId]] = {}
    for name in names:
        grouped.setdefault(shard_of((stream, name), shards), []).append((stream, name))
    return grouped
