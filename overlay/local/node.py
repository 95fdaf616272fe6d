"""Which node of which cluster an embedded broker is."""

from __future__ import annotations

import base64
import uuid
from dataclasses import dataclass

from . import ports

HOST = "127.0.0.1"
HEAP_MIB = 1024
"""Serves one node with room to spare; the page cache does the rest."""


@dataclass(frozen=True, slots=True)
class Node:
    """A broker and controller in one process; by default a cluster by itself."""

    id: int = 1
    controller_ports: tuple[int, ...] = ()
    """Of nodes 1, 2, ... in this order, for all must know them before the first one starts; empty: alone, on any port."""
    cluster_id: str = ""
    """The same for all nodes; empty: chosen when the storage is formatted."""
    heap_mib: int = HEAP_MIB

    @property
    def is_alone(self) -> bool:
        return not self.controller_ports

    @property
    def controller_port(self) -> int:
        """Where its controller listens, 0 when that is left to the start."""
        return 0 if self.is_alone else self.controller_ports[self.id - 1]

    def list_voters(self, controller_port: int) -> str:
        """The controllers of its cluster as Kafka writes them; `controller_port` is its own."""
        found = {self.id: controller_port} if self.is_alone else dict(enumerate(self.controller_ports, 1))
        return ",".join(f"{number}@{HOST}:{port}" for number, port in found.items())


ALONE = Node()


def plan_cluster(count: int, *, heap_mib: int = HEAP_MIB) -> list[Node]:
    """The nodes of a new cluster. Start them at the same time: none is ready before most of them are there."""
    controllers, cluster_id = tuple(ports.find_free(HOST, count)), generate_cluster_id()
    return [Node(number, controllers, cluster_id, heap_mib) for number in range(1, count + 1)]


def generate_cluster_id() -> str:
    """A random id as Kafka writes them: the 16 bytes of a UUID in URL-safe base64, not starting with a dash."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return text
