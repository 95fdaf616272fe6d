"""Nodes of embedded clusters."""

from __future__ import annotations

import base64
import uuid
from dataclasses import dataclass

from . import ports

HOST = "127.0.0.1"
HEAP_MIB = 1024
"""Enough for one node; Kafka mostly relies on the page cache."""


@dataclass(frozen=True, slots=True)
class BrokerNode:
    """A broker and controller in one process; by default a cluster of its own."""

    id: int = 1
    controller_ports: tuple[int, ...] = ()
    """Controller ports of nodes 1, 2, ... in order; every node must know all before the first
    starts.

    Empty for a node that is its own cluster, which uses any port.
    """
    cluster_id: str = ""
    """The same for all nodes; "" to choose one when the storage is formatted."""
    heap_mib: int = HEAP_MIB

    @property
    def is_alone(self) -> bool:
        return not self.controller_ports

    @property
    def controller_port(self) -> int:
        """The port of this node's controller; 0 if it is chosen at the start."""
        return 0 if self.is_alone else self.controller_ports[self.id - 1]

    def list_voters(self, controller_port: int) -> str:
        """Return the cluster's controllers in Kafka's format: `1@127.0.0.1:9093,2@...`. `controller_port`: that of
        this node, which counts only if the node is alone.
        """
        found = {self.id: controller_port} if self.is_alone else dict(enumerate(self.controller_ports, 1))
        return ",".join(f"{number}@{HOST}:{port}" for number, port in found.items())


ALONE = BrokerNode()


def plan_cluster(count: int, *, heap_mib: int = HEAP_MIB) -> list[BrokerNode]:
    """Return the `count` nodes of a new cluster, with ids from 1 on. `heap_mib`: most MiB of each node's heap.

    Start them at the same time, because none becomes ready before most of them run.
    """
    controllers, cluster_id = tuple(ports.find_free(HOST, count)), generate_cluster_id()
    return [BrokerNode(number, controllers, cluster_id, heap_mib) for number in range(1, count + 1)]


def generate_cluster_id() -> str:
    """Return a random id in Kafka's format: 16 bytes in URL-safe base64, no dash in front."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return text
