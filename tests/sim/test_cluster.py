"""What may go wrong with the simulated cluster, as a client sees it. What goes right is compared in tests/sim/contract."""

from __future__ import annotations

from typing import Any

import pytest
from aiokafka.protocol.admin import DeleteTopicsRequest
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.protocol.transaction import AddPartitionsToTxnRequest, EndTxnRequest, InitProducerIdRequest

from tests.sim.contract.requests import make_batch, of_producer, read_partition
from tests.sim.kafka import Answer, Cluster, Session, Settings
from tests.sim.kafka.codes import Code

TOPIC = "t"


class Client:
    """Asks brokers of a cluster, at a time that the test sets."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.now = 0.0
        self.sessions: dict[int, Session] = {}

    def ask(self, broker: int, request: Any) -> Answer:
        session = self.sessions.get(broker)
        if session is None or session.closed:
            session = self.sessions[broker] = self.cluster.open(broker, "test")
        return self.cluster.ask(session, request.prepare(self.cluster.versions), self.now)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.cluster.advance(self.now)

    def produce(self, count: int = 1, *, broker: int | None = None, acks: int = -1, **fields: Any) -> Answer:
        batch = make_batch(count, int(self.cluster.wall_ms), **fields)
        leader = self.leader if broker is None else broker
        return self.ask(leader, ProduceRequest(None, acks, 1_000, [(TOPIC, [(0, batch)])]))

    def fetch(self, offset: int, *, broker: int | None = None, wait_ms: int = 0) -> Answer:
        leader = self.leader if broker is None else broker
        return self.ask(leader, FetchRequest(wait_ms, 1, 1 << 20, 1, [(TOPIC, [(0, offset, 1 << 20)])]))

    @property
    def leader(self) -> int:
        return self.cluster.topics[TOPIC].partitions[0].leader


@pytest.fixture
def client() -> Client:
    cluster = Cluster(3, settings=Settings(retention_check_s=0, cleaner_s=0, marker_s=0.5))
    cluster.create_topic(TOPIC, assignment=[[0, 1, 2]])
    return Client(cluster)


def read_result(answer: Answer) -> tuple[int, int]:
    """Return (code, offset) of a produce request for one partition."""
    code, offset = answer.response.topics[0][1][0][1:3]
    return code, offset


def read_fetched(answer: Answer) -> tuple[int, list[int]]:
    """Return the code and the base offsets of one partition's batches."""
    found = read_partition(answer.response.topics[0][1][0])
    return found["code"], [batch[0] for batch in found["batches"]]


def test_a_fetch_is_answered_when_its_time_is_over(client: Client) -> None:
    called: list[float] = []
    answer = client.fetch(0, wait_ms=500)
    answer.done(lambda: called.append(client.cluster.now))
    assert answer.is_held
    assert client.cluster.next_due() == 0.5
    client.pass_time(0.6)
    assert read_fetched(answer) == (0, [])
    assert called == [0.5]
    assert client.cluster.next_due() == float("inf")


def test_a_fetch_of_a_closed_session_is_forgotten(client: Client) -> None:
    answer = client.fetch(0, wait_ms=500)
    client.cluster.close(client.sessions[0])
    client.produce()
    client.pass_time(1.0)
    assert answer.response is None


def test_producers_wait_while_followers_get_nothing(client: Client) -> None:
    client.cluster.stall_replication(TOPIC, 0)
    answer, late = client.produce(), client.produce(2)
    assert answer.is_held
    assert read_result(client.produce(acks=1)) == (0, 3)
    assert read_fetched(client.fetch(0)) == (0, [])
    client.pass_time(0.5)
    client.cluster.resume_replication(TOPIC, 0)
    assert [read_result(answer), read_result(late)] == [(0, 0), (0, 1)]
    client.cluster.stall_replication(TOPIC, 0)
    answer = client.produce()
    client.pass_time(1.5)
    assert read_result(answer) == (Code.REQUEST_TIMED_OUT, -1)
    # it is in the log all the same
    client.cluster.resume_replication(TOPIC, 0)
    assert read_fetched(client.fetch(4)) == (0, [4])


def test_records_above_the_high_watermark_are_lost_with_their_leader(client: Client) -> None:
    client.produce()
    client.cluster.stall_replication(TOPIC, 0)
    held, told = client.produce(), client.produce(acks=1)
    client.cluster.stop(0)
    assert held.response is None
    assert read_result(told) == (0, 2)
    assert client.leader == 1
    assert read_fetched(client.fetch(0)) == (0, [0])
    client.cluster.resume_replication(TOPIC, 0)
    assert read_result(client.produce()) == (0, 1)
    assert [epoch for epoch, _ in client.cluster.topics[TOPIC].partitions[0].log.epochs] == [0, 1]


def test_an_unclean_election_loses_whole_batches(client: Client) -> None:
    for _ in range(3):
        client.produce(4)
    client.cluster.move_leader(TOPIC, 0, unclean=True, lose=5)
    assert read_fetched(client.fetch(0)) == (0, [0])
    assert read_fetched(client.fetch(5))[0] == Code.OFFSET_OUT_OF_RANGE
    assert read_result(client.produce()) == (0, 4)


def test_too_few_in_sync(client: Client) -> None:
    client.cluster.configure(TOPIC, {"min.insync.replicas": "2"})
    client.cluster.shrink_isr(TOPIC, 0)
    assert read_result(client.produce()) == (Code.NOT_ENOUGH_REPLICAS, -1)
    assert read_result(client.produce(acks=1)) == (0, 0)
    client.cluster.restore_isr(TOPIC, 0)
    assert read_result(client.produce()) == (0, 1)


def test_a_stale_leader_has_nothing_new(client: Client) -> None:
    client.produce()
    client.cluster.stale(0)
    client.cluster.move_leader(TOPIC, 0, 1)
    client.produce(2)
    assert read_fetched(client.fetch(0, broker=0)) == (0, [0])
    assert read_fetched(client.fetch(1, broker=0)) == (0, [])
    leaders = [
        client.ask(broker, MetadataRequest([TOPIC])).response.topics[0][3][0][2] for broker in client.cluster.brokers
    ]
    assert leaders == [0, 1, 1]
    answer = client.produce(broker=0)
    assert answer.is_held
    client.cluster.refresh(0)
    assert read_result(answer)[0] == Code.NOT_LEADER_OR_FOLLOWER
    assert read_result(client.produce(broker=0))[0] == Code.NOT_LEADER_OR_FOLLOWER
    assert read_fetched(client.fetch(0)) == (0, [0, 1])


def test_brokers_hear_late_of_topics() -> None:
    cluster = Cluster(3, settings=Settings(metadata_s=0.3))
    client = Client(cluster)
    cluster.create_topic(TOPIC, assignment=[[1, 0, 2]])
    ask = [client.ask(broker, MetadataRequest([TOPIC])).response.topics[0][0] for broker in cluster.brokers]
    assert ask == [0, Code.UNKNOWN_TOPIC_OR_PARTITION, Code.UNKNOWN_TOPIC_OR_PARTITION]
    assert read_result(client.produce())[0] == Code.UNKNOWN_TOPIC_OR_PARTITION
    client.pass_time(0.4)
    assert read_result(client.produce()) == (0, 0)
    client.ask(0, DeleteTopicsRequest([TOPIC], 1_000))
    ask = [client.ask(broker, MetadataRequest([TOPIC])).response.topics[0][0] for broker in cluster.brokers]
    assert ask == [Code.UNKNOWN_TOPIC_OR_PARTITION, 0, 0]


def test_a_dead_leader_is_noticed_later() -> None:
    cluster = Cluster(3, settings=Settings(failover_s=9.0))
    cluster.create_topic(TOPIC, assignment=[[0, 1]])
    client = Client(cluster)
    cluster.stop(0)
    with pytest.raises(ConnectionRefusedError):
        cluster.open(0, "test")
    assert client.ask(1, MetadataRequest([TOPIC])).response.topics[0][3][0][2] == 0
    client.pass_time(9.5)
    assert client.leader == 1
    assert read_result(client.produce()) == (0, 0)


def test_a_dead_follower_holds_up_producers_until_it_is_noticed() -> None:
    cluster = Cluster(3, settings=Settings(failover_s=0.5))
    cluster.create_topic(TOPIC, assignment=[[0, 1]])
    client = Client(cluster)
    cluster.stop(1)
    answer = client.produce()
    assert answer.is_held
    client.pass_time(0.6)
    assert read_result(answer) == (0, 0)


def test_a_closed_session_is_told(client: Client) -> None:
    told: list[int] = []
    client.fetch(0, wait_ms=500)
    client.sessions[0].on_close.append(lambda: told.append(0))
    client.cluster.stop(0)
    assert told == [0]
    with pytest.raises(ConnectionResetError):
        client.cluster.ask(client.sessions[0], MetadataRequest([]).prepare(client.cluster.versions), 0.0)


def test_refused_batches(client: Client) -> None:
    client.cluster.refuse_produce(TOPIC)
    assert read_result(client.produce()) == (Code.KAFKA_STORAGE_ERROR, -1)
    client.cluster.refuse_produce(TOPIC, 0)
    client.cluster.configure(TOPIC, {"max.message.bytes": "80"})
    assert read_result(client.produce(9)) == (Code.MESSAGE_TOO_LARGE, -1)
    client.cluster.configure(TOPIC, {"max.message.bytes": None})
    assert read_result(client.produce(9)) == (0, 0)


def test_expiry_goes_by_batches(client: Client) -> None:
    for _ in range(3):
        client.produce(4)
    client.cluster.expire(TOPIC, 0, 6)
    assert read_fetched(client.fetch(3))[0] == Code.OFFSET_OUT_OF_RANGE
    assert read_fetched(client.fetch(4)) == (0, [4, 8])
    client.cluster.expire(TOPIC, 0, 100)
    assert client.cluster.topics[TOPIC].partitions[0].log.start == 12


def test_a_compacted_log(client: Client) -> None:
    client.cluster.configure(TOPIC, {"cleanup.policy": "compact", "delete.retention.ms": "1000"})
    for key, value in ((b"a", b"1"), (b"b", b"1"), (b"a", None), (b"b", b"2")):
        batch = make_batch([(key, value)], int(client.cluster.wall_ms))
        client.ask(0, ProduceRequest(None, -1, 1_000, [(TOPIC, [(0, batch)])]))
    client.cluster.compact(TOPIC, 0)
    assert read_fetched(client.fetch(0)) == (0, [2, 3])
    client.pass_time(2.0)
    client.cluster.compact(TOPIC, 0)
    assert read_fetched(client.fetch(0)) == (0, [3])


def test_a_transaction_ends_in_its_own_time(client: Client) -> None:
    coordinator = client.cluster.coordinator("tx", 1)
    started = client.ask(coordinator, InitProducerIdRequest("tx", 60_000)).response
    producer = started.producer_id, started.producer_epoch
    add = AddPartitionsToTxnRequest("tx", *producer, [(TOPIC, [0])])
    assert client.ask(coordinator, add).response.errors[0][1][0][1] == 0
    batch = make_batch(2, int(client.cluster.wall_ms), **of_producer(producer, 0, transactional=True))
    sent = client.ask(0, ProduceRequest("tx", -1, 1_000, [(TOPIC, [(0, batch)])]))
    assert read_result(sent) == (0, 0)
    assert client.ask(coordinator, EndTxnRequest("tx", *producer, True)).response.error_code == 0
    assert read_fetched(client.fetch(0)) == (0, [])
    assert client.ask(coordinator, add).response.errors[0][1][0][1] == Code.CONCURRENT_TRANSACTIONS
    client.cluster.stop(coordinator)
    client.pass_time(1.0)
    assert read_fetched(client.fetch(0)) == (0, [0, 2])
    heir = client.cluster.coordinator("tx", 1)
    assert heir != coordinator
    assert client.ask(heir, add).response.errors[0][1][0][1] == 0


def test_a_marker_that_is_lost_with_its_leader_is_written_by_the_next_one(client: Client) -> None:
    cluster = client.cluster
    coordinator = cluster.coordinator("tx", 1)
    started = client.ask(coordinator, InitProducerIdRequest("tx", 60_000)).response
    producer = started.producer_id, started.producer_epoch
    client.ask(coordinator, AddPartitionsToTxnRequest("tx", *producer, [(TOPIC, [0])]))
    batch = make_batch(2, int(cluster.wall_ms), **of_producer(producer, 0, transactional=True))
    client.ask(0, ProduceRequest("tx", -1, 1_000, [(TOPIC, [(0, batch)])]))
    cluster.settings.replication_s = 1.0
    client.ask(coordinator, EndTxnRequest("tx", *producer, True))
    client.pass_time(0.5)
    log = cluster.topics[TOPIC].partitions[0].log
    assert (log.last_stable, log.end) == (2, 3)
    cluster.move_leader(TOPIC, 0)
    assert log.end == 2
    client.pass_time(3.0)
    assert (log.last_stable, log.end) == (3, 3)


def test_a_topic_that_was_created_again_has_another_id(client: Client) -> None:
    old = client.cluster.topics[TOPIC]
    client.produce(3)
    new = client.cluster.recreate_topic(TOPIC, 2)
    assert old.id != new.id
    assert len(new.partitions) == 2
    client.cluster.add_partitions(TOPIC, 4)
    assert len(client.cluster.topics[TOPIC].partitions) == 4
    assert read_fetched(client.fetch(3))[0] == Code.OFFSET_OUT_OF_RANGE
