"""A consumer that changes hands between the service and Spark jobs."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import pytest
from aiokafka.client import AIOKafkaClient

from overlay.config import ServiceConfig
from overlay.config.service import KafkaProperties, TopicsConfig
from overlay.errors import OverlayError
from overlay.index.ledger.allocate import allocate
from overlay.index.ledger.ledger import Ledger
from overlay.kafka.admin import Admin
from overlay.kafka.connection import open_client
from overlay.kafka.log_position import LogPosition
from overlay.kafka.own_topics import job_topic, shard_of, state_topic
from overlay.output.transaction import Transactions
from overlay.state.amend import amend_shard, own_shard, read_states
from overlay.state.handover import Claimed, ReadLedger, TakenBack, claim_consumers, find_lost, read_plans, take_back
from overlay.state.job_plan import BatchPlan, BatchUnfinished, ConsumerPlan, JobPosition
from overlay.state.shard_state import ConsumerState, Delta, ShardState, encode, write_machine
from overlay.state.takeover import ensure_state_topic
from spark.job.journal import JobTaken, Journal
from tests.consumer.driver import Driver, configure
from tests.support.kafka import NewTopicFixture

P0, P1 = ("t", 0), ("t", 1)
STARTS = MappingProxyType({P0: 3, P1: 4})


def make_plan(stop: int, *, number: int = 0, left: Mapping[str, JobPosition] | None = None, **claims: str) -> BatchPlan:
    """A complete batch that ends at `stop` in partition 0; each consumer has `stop` for its last sequence."""
    consumers = {name: ConsumerPlan("f", 0, stop, number, {P0: 3}, claim) for name, claim in claims.items()}
    return BatchPlan(number, 1, "S", "f", {P0: (3, stop)}, consumers, {}, is_complete=True, left=left or {})


@dataclass
class Place:
    """A service's state with two shards, and the jobs beside it."""

    admin: Admin
    client: AIOKafkaClient
    service: ServiceConfig
    journals: dict[str, Journal] = field(default_factory=dict)

    @property
    def prefix(self) -> str:
        return self.service.topics.prefix

    async def claim(
        self, job: str, *names: str, plan: BatchPlan | None = None, read_ledger: ReadLedger | None = None
    ) -> dict[str, Claimed]:
        given = self.service, self.admin, self.client, "S", names, job, plan, STARTS
        return await claim_consumers(*given, read_ledger)

    async def put(self, state: ConsumerState, *names: str, **more: object) -> None:
        """Write the entries of consumers, as the owner of their shards."""
        for name in names:
            delta = Delta(consumers={("S", name): state}, **more)  # type: ignore[arg-type]
            shard = shard_of(("S", name), 2)
            await amend_shard(self.service, self.client, self.admin, shard, lambda _, delta=delta: delta)  # type: ignore[misc]

    async def put_machine(self, name: str, record: bytes) -> None:
        async def write(transactions: Transactions, _: ShardState) -> None:
            await transactions.begin()
            await transactions.finish(encode(Delta()), more=write_machine(("S", name), record))

        await own_shard(self.service, self.client, self.admin, shard_of(("S", name), 2), write)

    async def find_ends(self) -> list[int]:
        """The log ends of the shards, which every takeover that writes moves.

        A transaction's commit is answered before its marker is in the log, so this waits until no
        transaction is open.
        """
        shards = [(state_topic(self.prefix), shard) for shard in range(2)]
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            ends = await self.admin.find_bounds(shards, committed=False)
            if ends == await self.admin.find_bounds(shards):
                return [end for _, end in ends.values()]
        raise AssertionError(f"a transaction in {self.prefix}'s state is open for 30 s")

    async def read(self) -> list[ShardState]:
        return await read_states(self.client, self.admin, self.prefix)

    async def entry(self, name: str) -> ConsumerState | None:
        return (await self.read())[shard_of(("S", name), 2)].consumers.get(("S", name))

    async def lost(self, job: str, **claims: str) -> set[str]:
        return await find_lost(self.client, self.admin, self.prefix, "S", job, claims)

    def journal(self, job: str) -> Journal:
        return Journal(self.service.kafka, self.prefix, job, 1)

    def write(self, job: str, plan: BatchPlan) -> None:
        with self.journal(job) as journal:
            journal.write(plan)

    async def take_back(self, *names: str) -> dict[str, TakenBack]:
        """As the service does for consumers of one shard, without committing what it found."""
        shard = shard_of(("S", names[0]), 2)
        state = (await self.read())[shard]

        async def record(delta: Delta) -> None:
            await amend_shard(self.service, self.client, self.admin, shard, lambda _: delta)
            state.apply(delta)

        wanted = {("S", name): STARTS for name in names}
        found = await take_back(self.service.kafka, self.client, self.admin, self.prefix, wanted, state, record)
        return {name: each for (_, name), each in found.items()}


@pytest.fixture
async def bare(bootstrap: str, admin: Admin) -> AsyncIterator[Place]:
    """No service has run yet."""
    kafka = KafkaProperties.model_validate({"bootstrap.servers": bootstrap})
    topics = TopicsConfig(prefix=f"hand-{uuid.uuid4().hex[:8]}")
    client = await open_client({"bootstrap.servers": bootstrap})
    try:
        yield Place(admin, client, ServiceConfig.model_validate({"kafka": kafka, "topics": topics}))
    finally:
        await client.close()


@pytest.fixture
async def place(bare: Place) -> Place:
    await ensure_state_topic(bare.admin, bare.prefix, 2, 1)
    return bare


async def test_where_no_service_has_run(bare: Place) -> None:
    found = await bare.claim(
        "J", "old", "left", "new", plan=make_plan(9, left={"left": JobPosition({}, 0, "L")}, old="O")
    )
    assert found == {"old": Claimed("O", None), "left": Claimed("L", None), "new": Claimed("", None)}
    assert await bare.read() == []
    assert await bare.lost("J", new="", old="O") == {"old"}  # its entry is gone with the state


async def test_consumers_that_the_service_does_not_know(place: Place) -> None:
    found = await place.claim("J", "old", "early", "new", plan=make_plan(9, old="O", early=""))
    claim = found["new"].claim
    assert found == {"old": Claimed("O", None), "early": Claimed("", None), "new": Claimed(claim, None)}
    assert await place.entry("new") == ConsumerState(job="J", claim=claim) and claim
    assert await place.entry("early") == ConsumerState(job="J")
    assert await place.lost("J", **{name: each.claim for name, each in found.items()}) == set()
    assert await place.lost("J", new="other", absent="", dropped="D") == {"new", "dropped"}
    assert await place.lost("K", new=claim) == {"new"}


async def test_a_job_that_starts_again_leaves_the_shards_alone(place: Place) -> None:
    own = {P0: LogPosition(7)}
    await place.put(ConsumerState(5, own, floor={P1: 6}, job="J", claim="C"), "c")
    await place.put(ConsumerState(job="J", claim="N"), "new")
    before = await place.find_ends()
    # its plan has the claim; or it crashed before its first plan, and an old plan has an old claim; or it was new
    assert await place.claim("J", "c", plan=make_plan(20, c="C")) == {"c": Claimed("C", None)}
    start = JobPosition({P0: 7, P1: 6}, 5, "C")
    for plan in (None, make_plan(20, c="old"), make_plan(20, d="C")):
        assert await place.claim("J", "c", "new", plan=plan) == {"c": Claimed("C", start), "new": Claimed("N", None)}
    assert await place.find_ends() == before


async def test_a_consumer_of_the_service_goes_on_where_it_stands(place: Place) -> None:
    cursors = {("S", P0): LogPosition(40, 1, 2), ("S", ("elsewhere", 0)): LogPosition(8)}
    known = ConsumerState(11, snapshot={P0: 30}, floor={P1: 9}, heard={P0: 3}, replay_until=5)
    await place.put(known, "c", cursors=cursors)
    (found,) = (await place.claim("J", "c")).values()
    assert found.start == JobPosition({P0: 40, P1: 9}, 11, found.claim) and found.claim
    own = {P0: LogPosition(40, 1, 2), P1: LogPosition(4)}
    assert await place.entry("c") == ConsumerState(11, own, {}, {P1: 9}, {}, 5, job="J", claim=found.claim)
    # it crashes before its first plan: its own plan may be older than the claim
    assert await place.claim("J", "c", plan=make_plan(12, c="")) == {"c": found}


async def test_what_a_job_cannot_go_on_with(place: Place) -> None:
    known = ConsumerState(11, {P0: LogPosition(29)})
    await place.put(known, "c")
    await place.put_machine("c", make_machine(deliver="explicit"))
    with pytest.raises(OverlayError, match=r"consumer 'c' of stream 'S' .*cannot go on.*`overlay consumer rm S c`"):
        await place.claim("J", "c")
    assert await place.entry("c") == known


async def test_a_consumer_whose_pace_the_service_kept_goes_on_behind_its_last_delivery(place: Place) -> None:
    """By the ledger as it is once the service has let go: an earlier one may not reach so far."""
    await place.put(ConsumerState(2, {P0: LogPosition(4), P1: LogPosition(9)}), "c")
    await place.put_machine("c", make_machine())
    short, whole = Ledger(), Ledger()
    for ledger, rounds in ((short, 1), (whole, 2)):
        for at in range(rounds):
            taken = {P0: (3 + 3 * at, LogPosition(6 + 3 * at)), P1: (4 + 2 * at, LogPosition(6 + 2 * at))}
            entry = allocate(ledger.standing, taken)
            assert entry is not None and not ledger.append(entry)
    found, reads = list[Claimed](), [short, whole]

    async def read_ledger() -> Ledger:
        return reads.pop(0)

    # sequences 1 to 5 are P0 from 3 on and P1 from 4 on; 6, 7 and 8 are P0 from 6 on
    found += (await place.claim("J", "c", read_ledger=read_ledger)).values()
    assert found[0].start == JobPosition({P0: 8, P1: 9}, 5, found[0].claim) and not reads
    # the machine is gone: the service begins where the job ends
    assert all(not state.machines for state in await place.read())
    place.write("J", make_plan(20, c=found[0].claim))
    (back,) = (await place.take_back("c")).values()
    assert back.state is not None and back.state.own[P0] == LogPosition(20)


def make_machine(deliver: str = "none") -> bytes:
    """The record of a machine that has delivered three messages, with consumer sequences 3 to 5, up to sequence 7."""
    driver = Driver(configure(ack_policy=deliver, rate_limit_bps=8_000_000), start=5, sequence=2)
    driver.offer(3)
    assert [row[:2] for row in driver.sent()] == [(5, 3), (6, 4), (7, 5)]
    return driver.machine.take_checkpoint()


async def test_last_messages_go_on_with_their_new_owner(place: Place) -> None:
    """From the service to a job, to another job, and back: always with the snapshot, as long as it is not at an end."""
    snapshot = {P0: 30, P1: 50}
    await place.put(ConsumerState(11, {P0: LogPosition(30), P1: LogPosition(20)}, snapshot), "c")
    first = (await place.claim("J", "c"))["c"]
    assert first.start == JobPosition({P0: 30, P1: 20}, 11, first.claim, snapshot)
    begun = ConsumerPlan("f", 11, 13, 0, {P0: 30, P1: 20}, first.claim, {P0: (30, 30), P1: (20, 40)}, snapshot=snapshot)
    place.write("J", BatchPlan(0, 1, "S", "f", {P0: (0, 90), P1: (0, 90)}, {"c": begun}, {}, is_complete=True))
    second = (await place.claim("K", "c"))["c"]
    assert second.start == JobPosition({P0: 30, P1: 40}, 13, second.claim, snapshot)
    over = replace(begun, before=13, last=14, claim=second.claim, reads={P0: (30, 30), P1: (40, 50)})
    for last, left in ((replace(over, reads={P0: (30, 30), P1: (40, 45)}), snapshot), (over, {})):
        place.write("K", BatchPlan(0, 1, "S", "f", {P0: (0, 90), P1: (0, 90)}, {"c": last}, {}, is_complete=True))
        (back,) = (await place.take_back("c")).values()
        assert back.state is not None and back.state.snapshot == left
        assert back.state.own == {P0: LogPosition(30), P1: LogPosition(last.reads[P1][1])}


async def test_from_one_job_to_another(place: Place) -> None:
    entry = ConsumerState(5, {P0: LogPosition(7)}, job="K", claim="C")
    await place.put(entry, "moved", "begun")
    unfinished = replace(make_plan(20, moved="C", begun="old"), is_complete=False)
    with place.journal("K") as journal:
        journal.write(unfinished)
        with pytest.raises(BatchUnfinished, match="batch 0 of the Spark job"):
            await place.claim("J", "moved")
        with pytest.raises(JobTaken):
            journal.write(unfinished.complete(0))
    assert await place.lost("K", moved="C") == {"moved"}  # recalled
    with place.journal("K") as journal:  # it starts again, and ends its batch
        assert await place.claim("K", "moved", plan=journal.last) == {"moved": Claimed("C", None)}
        assert await place.lost("K", moved="C") == set()
        journal.write(unfinished.complete(0))
    found = await place.claim("J", "moved", "begun")
    # what K read is in its plan; of a consumer whose claim K's plan does not have, beside the claim
    assert found["moved"].start == JobPosition({P0: 20, P1: 4}, 20, found["moved"].claim)
    assert found["begun"].start == JobPosition({P0: 7, P1: 4}, 5, found["begun"].claim)
    assert await place.lost("J", **{name: each.claim for name, each in found.items()}) == set()
    assert await place.claim("J", "moved") == {"moved": found["moved"]}  # crashed before its first plan
    assert len({"C", found["moved"].claim, found["begun"].claim}) == 3


async def test_positions_in_a_topic_that_was_created_again(place: Place, new_topic: NewTopicFixture) -> None:
    """They are offsets of another log: the owner that takes the consumer reads the new topic from its start."""
    topic = new_topic()
    source, ids = (topic, 0), {topic: (await place.admin.find_topics([topic]))[topic].identity}
    for known, offset in ((ids, 20), ({topic: "the one before"}, 0)):
        for name in ("c", "d"):
            left: dict[str, JobPosition] = {} if name == "c" else {name: JobPosition({source: 20}, 20, "C")}
            await place.put(ConsumerState(job="J", claim="C"), name)
            consumers = {} if left else {name: ConsumerPlan("f", 0, 20, 0, {source: 3}, "C")}
            plan = BatchPlan(0, 1, "S", "f", {source: (3, 20)}, consumers, {}, True, left, ids=known)
            place.write("J", plan)
            (back,) = (await place.take_back(name)).values()
            assert back.state is not None and back.state.own[source] == LogPosition(offset)
            found = await claim_consumers(place.service, place.admin, place.client, "S", [name], "K", None, {source: 0})
            assert found[name].start == JobPosition({source: offset}, 20, found[name].claim)


async def test_a_position_of_the_service_in_a_topic_that_was_created_again(
    place: Place, new_topic: NewTopicFixture
) -> None:
    topic = new_topic()
    source = (topic, 0)
    own = ConsumerState(5, {source: LogPosition(7)})
    await place.put(own, "c", topics={("S", topic): "the one before", ("other", topic): "another"})

    async def claim() -> Claimed:
        given = (place.service, place.admin, place.client, "S", ["c"], "J", None, {source: 0})
        return (await claim_consumers(*given))["c"]

    with pytest.raises(
        OverlayError, match=rf"'c' of stream 'S' .* in topic {topic}, .* created again .*`overlay stream reset S`"
    ):
        await claim()
    assert await place.entry("c") == own
    identity = (await place.admin.find_topics([topic]))[topic].identity
    await place.put(own, "c", topics={("S", topic): identity})
    found = await claim()
    assert found.start == JobPosition({source: 7}, 5, found.claim)


async def test_a_job_that_starts_while_another_takes_its_consumer(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes the recall out, so what the other has read of its plans counts no more."""
    await place.put(ConsumerState(5, {P0: LogPosition(7)}, job="K", claim="C"), "c")
    place.write("K", make_plan(20, c="C"))
    read = claim_consumers.__globals__["_fence_job"]

    async def linger(*given: object) -> BatchPlan | None:
        plan: BatchPlan | None = await read(*given)
        assert await place.claim("K", "c", plan=plan) == {"c": Claimed("C", None)}
        return plan

    monkeypatch.setattr("overlay.state.handover._fence_job", linger)
    with pytest.raises(OverlayError, match="several owners at once, or that job has started again"):
        await place.claim("J", "c")
    assert await place.lost("K", c="C") == set()


async def test_the_way_back(place: Place) -> None:
    await place.put(ConsumerState(5, {P0: LogPosition(7, 1, 2)}, floor={P0: 8}, job="J", claim="C"), "c")
    with place.journal("J") as journal:
        # J has not written a plan since it claimed the consumer
        journal.write(make_plan(50, c="old"))
        own = {P0: LogPosition(7, 1, 2), P1: LogPosition(4)}
        back = ConsumerState(5, own, floor={P0: 8})
        assert await place.take_back("c") == {"c": TakenBack("J", back)}
        with pytest.raises(JobTaken):
            journal.write(make_plan(50, c="C"))
    for stop, plan in ((20, make_plan(20, c="C")), (30, make_plan(60, left={"c": JobPosition({P0: 30}, 30, "C")}))):
        place.write("J", plan)
        back = ConsumerState(stop, {P0: LogPosition(stop), P1: LogPosition(4)})
        assert await place.take_back("c") == {"c": TakenBack("J", back)}
    place.write("J", replace(make_plan(60, number=3, c="C"), is_complete=False))
    found = await place.take_back("c")
    assert found["c"].state is None and "batch 3 of the Spark job" in found["c"].reason


async def test_the_way_back_of_new_consumers_and_of_lost_plans(place: Place) -> None:
    assert await place.take_back("c") == {}
    await place.put(ConsumerState(job="J", claim="C"), "c")
    assert "topic" in (await place.take_back("c"))["c"].reason and "is gone" in (await place.take_back("c"))["c"].reason
    with place.journal("J"):
        assert await place.take_back("c") == {"c": TakenBack("J")}


async def test_consumers_of_jobs_from_before_the_service(place: Place) -> None:
    early = ConsumerState(20, {P0: LogPosition(20), P1: LogPosition(4)})
    place.write("J", make_plan(20, early="", dropped="D"))
    for name in ("early", "dropped", "none"):
        assert await place.take_back(name) == ({"early": TakenBack("J", early)} if name == "early" else {})
    with place.journal("K") as journal:
        journal.write(replace(make_plan(30, early=""), name="OTHER"))
        assert await place.take_back("early") == {"early": TakenBack("J", early)}
        journal.write(make_plan(30, early=""))
        found = await place.take_back("early")
        topics = f"topics {job_topic(place.prefix, 'J')}, {job_topic(place.prefix, 'K')}"
        assert found["early"].state is None and topics in found["early"].reason
        journal.write(make_plan(30))  # K was not fenced


async def test_to_and_fro_with_an_old_plan(place: Place) -> None:
    """service, job, service, job: the plan of the first time does not count the second time."""
    cursors = {("S", P0): LogPosition(10), ("S", P1): LogPosition(4)}
    await place.put(ConsumerState(10), "c", cursors=cursors)
    first = (await place.claim("J", "c"))["c"]
    place.write("J", make_plan(20, c=first.claim))
    state = (await place.take_back("c"))["c"].state
    assert state == ConsumerState(20, {P0: LogPosition(20), P1: LogPosition(4)})
    await place.put(replace(state, sequence=25, own={**state.own, P0: LogPosition(25)}), "c")
    assert await place.lost("J", c=first.claim) == {"c"}
    second = (await place.claim("J", "c", plan=make_plan(20, c=first.claim)))["c"]
    assert second == Claimed(second.claim, JobPosition({P0: 25, P1: 4}, 25, second.claim))
    assert second.claim != first.claim
    # and when it crashes now, and when the service takes it back before its first plan
    assert await place.claim("J", "c", plan=make_plan(20, c=first.claim)) == {"c": second}
    state = (await place.take_back("c"))["c"].state
    assert state == ConsumerState(25, {P0: LogPosition(25), P1: LogPosition(4)})


async def test_the_plans_of_all_jobs(place: Place) -> None:
    assert await read_plans(place.client, place.admin, place.prefix) == {}
    plans = {"J": make_plan(20, c="C"), "other": make_plan(9, number=4, d="")}
    for job, plan in plans.items():
        await asyncio.to_thread(place.write, job, plan)
    with place.journal("new"):
        assert await read_plans(place.client, place.admin, place.prefix) == plans
