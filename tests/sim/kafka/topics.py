"""Topics and partitions: who leads, who is in sync, and which requests wait for a partition."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from .log import Log
from .settings import TopicConfig

NO_LEADER = -1


class Waiter(Protocol):
    """A request that a broker holds until something happens in a partition."""

    def wake(self, partition: Partition) -> None:
        """The partition has more to read, another leader, or is gone."""


class Partition:
    """A partition of a topic. Every change of its leader begins a new leader epoch."""

    __slots__ = (
        "behind",
        "cuts",
        "epoch",
        "index",
        "is_stalled",
        "isr",
        "leader",
        "log",
        "pending",
        "refusal",
        "replicas",
        "topic",
        "waiters",
    )

    def __init__(self, topic: Topic, index: int, replicas: list[int], now_ms: float) -> None:
        self.topic = topic
        self.index = index
        self.replicas = replicas
        self.isr = list(replicas)
        self.leader = replicas[0]
        self.epoch = 0
        self.log = Log(now_ms)
        self.log.begin_epoch(0)
        self.waiters: dict[Waiter, None] = {}
        """In the order in which they came; a set's order would not be the same in every run."""
        self.pending: list[tuple[int, Callable[[bool], None]]] = []
        """(offset that the high watermark has to reach, what to call then; False if the leader changed before)."""
        self.behind: dict[int, int] = {}
        """Where the logs of replicas end that fell out of sync."""
        self.cuts = 0
        """How often the log was cut."""
        self.is_stalled = False
        """Whether the followers get nothing, so that the high watermark stays."""
        self.refusal = 0
        """A code with which every batch is refused, as if the disk was full; 0 for none."""

    def wake(self) -> None:
        """Let the requests that wait look again."""
        if self.waiters:
            for waiter in list(self.waiters):
                waiter.wake(self)

    def raise_watermark(self, offset: int) -> None:
        """Let consumers see what the followers have by now, and producers know."""
        log = self.log
        if offset > log.end:
            offset = log.end
        if offset > log.high_watermark:
            log.high_watermark = offset
            while self.pending and self.pending[0][0] <= offset:
                self.pending.pop(0)[1](True)
            self.wake()

    def await_followers(self, settle: Callable[[bool], None]) -> None:
        """Call `settle` once the followers have the whole log, with False if the leader changes before."""
        if self.log.end <= self.log.high_watermark:
            settle(True)
        else:
            self.pending.append((self.log.end, settle))

    def lead(self, broker: int) -> None:
        """Begin a new leader epoch, with a leader or NO_LEADER. Requests that wait are refused."""
        self.leader = broker
        self.epoch += 1
        if broker != NO_LEADER:
            self.log.begin_epoch(self.epoch)
        pending, self.pending = self.pending, []
        for _, call in pending:
            call(False)
        self.wake()


class Topic:
    """A topic. `id` is 22 characters of Base64 and never the same for a topic that was created again."""

    __slots__ = ("config", "id", "name", "partitions")

    def __init__(self, name: str, id: str, config: Mapping[str, str]) -> None:
        self.name = name
        self.id = id
        self.config = TopicConfig(config)
        self.partitions: list[Partition] = []
