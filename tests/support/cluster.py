"""A cluster of several brokers, each of which can be killed, and what a test asks of it: who leads, and who is in sync."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import ElectionType
from confluent_kafka.admin import AdminClient

from overlay.local import Broker, BrokerNode, plan_cluster, start
from tests.support.kafka import DEADLINE_S
from tests.support.waiting import wait_until

HEAP_MIB = 256
REPLICATED = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    # one partition each: its leader is the coordinator of every group, and of every transaction
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    # leaders move when a test says so
    "auto.leader.rebalance.enable": "false",
}


class Cluster:
    """`brokers` by node id."""

    def __init__(self, brokers: dict[int, Broker]) -> None:
        self.brokers = brokers
        self._admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    def find_leader(self, topic: str, partition: int = 0) -> int:
        """The node that leads a partition, -1 when there is none."""
        return int(self._describe(topic).partitions[partition].leader)

    def await_leader(self, topic: str, *, other_than: int) -> int:
        def look() -> int:
            leader = self.find_leader(topic)
            return leader if leader not in (-1, other_than) else 0

        return wait_until(look, DEADLINE_S, f"{topic} has another leader than {other_than}")

    def await_in_sync(self, *topics: str) -> None:
        """Wait until every replica of these topics' partitions is in sync."""

        def is_so() -> bool:
            partitions = [p for topic in topics for p in self._describe(topic).partitions.values()]
            return all(len(p.isrs) == len(p.replicas) for p in partitions)

        wait_until(is_so, DEADLINE_S, f"all replicas of {topics} are in sync")

    def elect_preferred(self) -> None:
        """Have every partition led by the first of its replicas: a planned change of leaders."""
        self._admin.elect_leaders(ElectionType.PREFERRED).result(DEADLINE_S)

    def _describe(self, topic: str) -> Any:
        return self._admin.list_topics(topic, DEADLINE_S).topics[topic]


@contextmanager
def run_cluster(folder: Path, count: int = 3) -> Iterator[Cluster]:
    """Start so many brokers, each of them a controller too, with internal topics that outlive the loss of one."""
    nodes = plan_cluster(count, heap_mib=HEAP_MIB)

    def start_one(node: BrokerNode) -> Broker:
        return start(folder / f"node-{node.id}", properties=REPLICATED, node=node)

    with ExitStack() as stack:
        with ThreadPoolExecutor(count) as threads:
            starting = [threads.submit(start_one, node) for node in nodes]
        for one in starting:
            if one.exception() is None:
                # not by SIGTERM: a broker that stops wants the consent of a controller, and the last one has none
                stack.callback(one.result().kill)
        yield Cluster({node.id: one.result() for node, one in zip(nodes, starting, strict=True)})
