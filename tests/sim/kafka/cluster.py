"""The simulated cluster: brokers that answer requests, and what may go wrong with them.

A connection is a `Session`; `ask` takes a versioned request as aiokafka builds it (`ProduceRequest_v7`, attributes by the
names of its schema) and returns an `Answer`, which the broker may hold. Times are seconds of the simulation. What brokers do
later (long polls that end, sessions and transactions that time out, retention) is done by `advance`; `next_due` says when.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

from . import administration, compaction, group_offsets, leadership, offsets, retention
from .administration import View
from .batches import Batch
from .codes import Code
from .fetch import Fetching
from .groups import Groups
from .produce import Producing
from .session import Answer, Session
from .settings import Settings, TopicConfig
from .timers import Timers
from .topics import NO_LEADER, Partition, Topic
from .transactions import Transactions
from .versions import VERSIONS

COORDINATORS = 50
"""Partitions of the coordinators' topics."""
GROUP, TRANSACTION = 0, 1


class Cluster:
    """A cluster of `brokers` brokers, numbered from `settings.first_broker`."""

    def __init__(self, brokers: int, *, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        first = self.settings.first_broker
        self.brokers = list(range(first, first + brokers))
        self.up = set(self.brokers)
        """Brokers that run."""
        self.alive = set(self.brokers)
        """Brokers that run as far as the controller knows."""
        self.versions: dict[int, tuple[int, int]] = dict(VERSIONS)
        """What ApiVersions says: (oldest, newest) by api key."""
        self.now = 0.0
        self.timers = Timers()
        self.topics: dict[str, Topic] = {}
        self.transactions = Transactions(self)
        self.groups = Groups(self)
        self.sessions: dict[Session, None] = {}
        self._created = 0
        self.views: dict[int, View] = {}
        self.coordinators = [self.brokers[i % brokers] for i in range(COORDINATORS)]
        self.marker_s: Callable[[], float] = lambda: self.settings.marker_s
        """Returns how long the markers of the next transaction take. A history may put its own in place of it."""
        self.metadata_s: Callable[[int], float] = lambda broker: (
            0.0 if broker == self.brokers[0] else self.settings.metadata_s
        )
        """Returns when a broker hears of a change that happens now, in seconds."""
        self._handlers: dict[int, Callable[[Answer], None]] = {
            0: lambda answer: Producing(self, answer).begin(),
            1: lambda answer: Fetching(self, answer).begin(),
            2: lambda answer: offsets.list_offsets(self, answer),
            3: lambda answer: administration.describe(self, answer),
            8: lambda answer: group_offsets.commit(self, answer),
            9: lambda answer: group_offsets.fetch(self, answer),
            10: self._find_coordinator,
            11: self.groups.join,
            12: self.groups.heartbeat,
            13: self.groups.leave,
            14: self.groups.sync,
            15: lambda answer: group_offsets.describe(self, answer),
            16: lambda answer: group_offsets.list_groups(self, answer),
            18: self._tell_versions,
            19: lambda answer: administration.create(self, answer),
            20: lambda answer: administration.delete(self, answer),
            21: lambda answer: offsets.delete_records(self, answer),
            22: self.transactions.init_producer,
            24: self.transactions.add_partitions,
            25: self.transactions.add_offsets,
            26: self.transactions.end,
            28: lambda answer: group_offsets.commit_in_transaction(self, answer),
            32: lambda answer: administration.describe_configs(self, answer),
            33: lambda answer: administration.alter_configs(self, answer),
            37: lambda answer: administration.create_partitions(self, answer),
            42: lambda answer: group_offsets.delete_groups(self, answer),
            44: lambda answer: administration.alter_configs_incrementally(self, answer),
            61: self.transactions.describe_producers,
            65: self.transactions.describe,
            69: lambda answer: group_offsets.describe_consumer_groups(self, answer),
        }
        retention.begin(self)

    # connections

    def address(self, broker: int) -> tuple[str, int]:
        """Return the host and the port of a broker."""
        return self.settings.host.format(broker), self.settings.port

    def open(self, broker: int, client_id: str) -> Session:
        """Connect to a broker. Raises ConnectionRefusedError if it is stopped."""
        if broker not in self.up:
            raise ConnectionRefusedError(f"broker {broker} is stopped")
        session = Session(broker, client_id)
        self.sessions[session] = None
        return session

    def close(self, session: Session) -> None:
        """The client closed a connection, or it broke. Answers that are held are dropped."""
        session.closed = True
        session.held.clear()
        self.sessions.pop(session, None)

    def hang_up(self, session: Session) -> None:
        """The broker closes a connection."""
        if not session.closed:
            self.close(session)
            for call in session.on_close:
                call()

    def ask(self, session: Session, request: Any, now: float) -> Answer:
        """Let a broker act on a request. Raises ConnectionResetError on a closed session."""
        self.advance(now)
        if session.closed:
            raise ConnectionResetError(f"broker {session.broker} closed the connection")
        answer = Answer(session, request)
        self._handlers[request.API_KEY](answer)
        self.advance(now)
        return answer

    # time

    @property
    def wall_ms(self) -> float:
        """The brokers' wall clock, ms since 1970."""
        return self.settings.wall_ms0 + self.now * 1000

    def advance(self, now: float) -> None:
        """Do what is due until a time."""
        while (timer := self.timers.pop(now)) is not None:
            self.now = max(self.now, timer.due)
            if timer.act is not None:
                timer.act()
        self.now = max(self.now, now)

    def next_due(self) -> float:
        """Return when there is something to do next, inf if never."""
        return self.timers.next_due()

    # partitions

    def find(self, topic: str, index: int) -> Partition | None:
        """Return a partition, None if there is none."""
        found = self.topics.get(topic)
        return found.partitions[index] if found is not None and 0 <= index < len(found.partitions) else None

    def find_led(self, broker: int, topic: str, index: int, epoch: int = -1) -> Partition | Code:
        """Return a partition that a broker leads, or the code with which it refuses a request for it.

        `epoch` is the leader epoch that the client knows, -1 if none.
        """
        if self.views and (view := self.views.get(broker)) is not None:
            return _find_stale(view, broker, topic, index, epoch)
        partition = self.find(topic, index)
        if partition is None:
            return Code.UNKNOWN_TOPIC_OR_PARTITION
        if epoch >= 0 and epoch != partition.epoch:
            return Code.FENCED_LEADER_EPOCH if epoch < partition.epoch else Code.UNKNOWN_LEADER_EPOCH
        return partition if partition.leader == broker else Code.NOT_LEADER_OR_FOLLOWER

    def append(self, partition: Partition, batch: Batch) -> None:
        """Append a batch to a log. Followers get it `Settings.replication_s` later."""
        log = partition.log
        log.append(batch, partition.epoch, partition.topic.config, self.wall_ms)
        delay_s = self.settings.replication_s
        if partition.is_stalled or (self.up != self.alive and not self.up.issuperset(partition.isr)):
            return
        if not delay_s or len(partition.isr) < 2:
            self._defer_watermark(partition)
        else:
            epoch, end = partition.epoch, log.end

            def replicate() -> None:
                if partition.epoch == epoch and not partition.is_stalled:
                    partition.raise_watermark(end)

            self.timers.at(self.now + delay_s, replicate)

    def _defer_watermark(self, partition: Partition) -> None:
        # the caller tells the producers' state of the batch before consumers look: the last stable offset depends on it
        log = partition.log
        log.high_watermark = log.end
        if partition.waiters:
            self.timers.at(self.now, partition.wake)

    def append_marker(self, partition: Partition, marker: Batch, kind: int) -> None:
        """Append the marker that ends a transaction in a partition."""
        self.append(partition, marker)
        partition.log.producers.end(marker, kind, self.wall_ms)

    # topics

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        config: Mapping[str, str] | None = None,
        *,
        replication: int | None = None,
        assignment: Sequence[Sequence[int]] = (),
    ) -> Topic:
        """Create a topic. `assignment`: the replicas of each partition, its first leader in front."""
        self.announce()
        self._created += 1
        id = base64.b64encode(self._created.to_bytes(16, "big")).decode()[:22]
        stamps = {"message.timestamp.type": "LogAppendTime"} if self.settings.stamps else {}
        topic = self.topics[name] = Topic(name, id, {**stamps, **(config or {})})
        self._add_partitions(topic, partitions, replication, assignment)
        return topic

    def add_partitions(self, name: str, count: int, assignment: Sequence[Sequence[int]] = ()) -> None:
        """Let a topic have `count` partitions."""
        self.announce()
        topic = self.topics[name]
        self._add_partitions(topic, count, len(topic.partitions[0].replicas), assignment)

    def _add_partitions(
        self, topic: Topic, count: int, replication: int | None, assignment: Sequence[Sequence[int]]
    ) -> None:
        factor = min(replication or self.settings.replication_factor, len(self.brokers))
        given = [list(nodes) for nodes in assignment]
        for index in range(len(topic.partitions), count):
            shift = self._created + index
            nodes = given.pop(0) if given else [self.brokers[(shift + i) % len(self.brokers)] for i in range(factor)]
            partition = Partition(topic, index, nodes, self.wall_ms)
            topic.partitions.append(partition)
            partition.isr = [node for node in nodes if node in self.alive] or nodes[:1]
            partition.leader = partition.isr[0] if partition.isr[0] in self.alive else NO_LEADER

    def delete_topic(self, name: str) -> None:
        """Delete a topic with its records and its committed offsets. Open transactions keep its name."""
        self.announce()
        topic = self.topics.pop(name)
        for group in self.groups.known.values():
            for key in [key for key in group.offsets.committed if key[0] == name]:
                del group.offsets.committed[key]
        for partition in topic.partitions:
            partition.lead(NO_LEADER)

    # faults

    def stop(self, broker: int) -> None:
        """Stop a broker as a crash does. Partitions that have other replicas in sync get another leader."""
        leadership.stop(self, broker)

    def start(self, broker: int) -> None:
        """Start a broker that was stopped."""
        leadership.start(self, broker)

    def lapse(self, broker: int) -> None:
        """Let the controller miss a broker's heartbeats until `rejoin`. The broker runs and answers, but leads and
        coordinates nothing, and no broker lists it."""
        leadership.fence(self, broker)

    def rejoin(self, broker: int) -> None:
        """End `lapse`, unless the broker was stopped meanwhile. It leads again what has no leader."""
        leadership.rejoin(self, broker)

    def move_leader(
        self, topic: str, index: int, broker: int | None = None, *, unclean: bool = False, lose: int = 0
    ) -> None:
        """Let a partition have another leader, by default the next one in sync.

        An unclean election loses the last `lose` offsets, whole batches of them. A transaction whose marker is among them,
        and whose records are not, stays open for ever, as in Kafka. Does nothing if there is no other broker.
        """
        partition = self.topics[topic].partitions[index]
        if broker is None:
            ranked = partition.replicas if unclean else partition.isr
            others = [node for node in ranked if node in self.up & self.alive and node != partition.leader]
            if not others:
                return
            broker = others[0]
        self.announce()
        leadership.move(self, partition, broker, is_unclean=unclean, lose=lose)

    def remove_leader(self, topic: str, index: int) -> None:
        """Let no broker lead a partition, until `restore_leader` or the start of a broker that was in sync."""
        partition = self.topics[topic].partitions[index]
        if partition.leader != NO_LEADER:
            self.announce()
            leadership.move(self, partition, NO_LEADER)

    def restore_leader(self, topic: str, index: int) -> None:
        """Let the first broker in sync that runs lead a partition that has no leader."""
        partition = self.topics[topic].partitions[index]
        heirs = [node for node in partition.isr if node in self.up and node in self.alive]
        if partition.leader == NO_LEADER and heirs:
            self.announce()
            leadership.move(self, partition, heirs[0])

    def stale(self, broker: int) -> None:
        """Let a broker hear of no change until `refresh`: not of leaders, topics, or other brokers."""
        leadership.make_stale(self, broker)

    def refresh(self, broker: int) -> None:
        """Let a stale broker hear what has changed."""
        leadership.refresh(self, broker)

    def stall_replication(self, topic: str, index: int) -> None:
        """Let followers get nothing: the high watermark stays, and producers with acks=all wait."""
        self.topics[topic].partitions[index].is_stalled = True

    def resume_replication(self, topic: str, index: int) -> None:
        """End `stall_replication`."""
        partition = self.topics[topic].partitions[index]
        partition.is_stalled = False
        if partition.leader != NO_LEADER:
            partition.raise_watermark(partition.log.end)

    def shrink_isr(self, topic: str, index: int, count: int = 1) -> None:
        """Leave the leader and `count - 1` followers in sync. Brokers that start again are in sync again."""
        partition = self.topics[topic].partitions[index]
        others = [node for node in partition.isr if node != partition.leader]
        partition.isr = [partition.leader, *others][:count]

    def restore_isr(self, topic: str, index: int) -> None:
        """Let all replicas that are up be in sync."""
        partition = self.topics[topic].partitions[index]
        partition.isr = [node for node in partition.replicas if node in self.up] or partition.isr

    def expire(self, topic: str, index: int, before: int) -> None:
        """Delete the batches that end before an offset, as retention would if a segment ended there."""
        partition = self.topics[topic].partitions[index]
        log = partition.log
        place = log.find(before)
        bound = log.end if place is None else max(log.segments[place[0]].bases[place[1]], log.start)
        log.advance_start(min(bound, log.high_watermark))
        partition.wake()

    def delete_before(self, topic: str, index: int, before: int) -> None:
        """Delete the records before an offset, as DeleteRecords does."""
        partition = self.topics[topic].partitions[index]
        partition.log.advance_start(min(before, partition.log.high_watermark))
        partition.wake()

    def compact(self, topic: str, index: int, *, roll: bool = True) -> None:
        """Clean a log now. The active segment stays as it is, so that `roll` begins a new one before."""
        found = self.topics[topic]
        log = found.partitions[index].log
        if roll:
            log.roll(self.wall_ms)
        compaction.compact(log, found.config, self.wall_ms)

    def retain(self, topic: str) -> None:
        """Look now for segments that are past the topic's retention."""
        for partition in self.topics[topic].partitions:
            retention.expire(partition, self.wall_ms)

    def configure(self, topic: str, config: Mapping[str, str | None]) -> None:
        """Change a topic's configuration; None takes an override back."""
        found = self.topics[topic]
        merged: dict[str, str | None] = {**found.config.overrides, **config}
        found.config = TopicConfig({key: value for key, value in merged.items() if value is not None})

    def refuse_produce(self, topic: str, code: int = Code.KAFKA_STORAGE_ERROR, index: int | None = None) -> None:
        """Refuse all batches for a topic or for one of its partitions, as when a disk is full. 0 ends it."""
        for partition in self.topics[topic].partitions:
            if index is None or partition.index == index:
                partition.refusal = int(code)

    def recreate_topic(self, name: str, partitions: int | None = None) -> Topic:
        """Delete a topic and create it again with the same configuration, under another id."""
        old = self.topics[name]
        self.delete_topic(name)
        count = partitions or len(old.partitions)
        return self.create_topic(name, count, old.config.overrides, replication=len(old.partitions[0].replicas))

    # coordinators

    def coordinator(self, key: str, kind: int) -> int:
        """Return the broker that coordinates a group (kind 0) or a transactional id (kind 1), NO_LEADER if none does."""
        shift = 0 if kind == GROUP else 1
        return self.coordinators[(_hash(key) % COORDINATORS + shift) % COORDINATORS]

    def refuse_coordinator(self, broker: int, key: str, kind: int) -> Code:
        """Return NOT_COORDINATOR if a broker is not the one."""
        return Code.NONE if self.coordinator(key, kind) == broker else Code.NOT_COORDINATOR

    def _find_coordinator(self, answer: Answer) -> None:
        request = answer.request
        is_old = request.API_VERSION < 1
        key = request.consumer_group if is_old else request.coordinator_key
        broker = self.coordinator(key, GROUP if is_old else request.coordinator_type)
        if broker == NO_LEADER:
            code, place = Code.COORDINATOR_NOT_AVAILABLE, (NO_LEADER, "", -1)
        else:
            code, place = Code.NONE, (broker, *self.address(broker))
        if is_old:
            answer.give(int(code), *place)
        else:
            answer.give(0, int(code), None if code else "", *place)

    def _tell_versions(self, answer: Answer) -> None:
        versions = [(key, *bounds) for key, bounds in self.versions.items()]
        if answer.request.API_VERSION < 1:
            answer.give(0, versions)
        else:
            answer.give(0, versions, 0)

    # what brokers know

    def view(self, broker: int) -> View:
        """Return what a broker knows of the cluster."""
        return self.views.get(broker) or View(self)

    def announce(self) -> None:
        """Call before a change of topics or leaders: brokers that hear of it later keep what they know until then."""
        for broker in sorted(self.alive & self.up):
            delay_s = self.metadata_s(broker)
            if delay_s > 0 and broker not in self.views:
                view = self.views[broker] = View(self, is_kept=True)
                self.timers.at(self.now + delay_s, partial(self._hear, broker, view))

    def _hear(self, broker: int, view: View) -> None:
        if self.views.get(broker) is view:
            self.refresh(broker)

    def find_read(self, broker: int, topic: str, index: int, epoch: int, version: int) -> Partition | Code:
        """As `find_led`, for a fetch: from version 11 on followers answer consumers as well."""
        partition = self.find_led(broker, topic, index, epoch)
        if partition is Code.NOT_LEADER_OR_FOLLOWER and version >= 11:
            found = self.find(topic, index)
            if found is not None and found.leader != NO_LEADER and broker in found.replicas:
                return found
        return partition

    def limit(self, broker: int, partition: Partition) -> int | None:
        """Return the first offset that a broker does not have of a partition, None if it has all of it.

        A stale leader has what there was when it was deposed, a follower out of sync what there was when it fell behind.
        """
        view = self.views.get(broker)
        if view is not None and view.leadership(partition)[0] == broker:
            return view.limit(partition)
        if partition.leader == broker:
            return None
        return min(partition.behind.get(broker, partition.log.high_watermark), partition.log.high_watermark)


def _find_stale(view: View, broker: int, topic: str, index: int, epoch: int) -> Partition | Code:
    """As `Cluster.find_led`, by what a stale broker knows."""
    found = view.topics.get(topic)
    if found is None or not 0 <= index < len(found.partitions):
        return Code.UNKNOWN_TOPIC_OR_PARTITION
    partition = found.partitions[index]
    leader, known, _ = view.leadership(partition)
    if epoch >= 0 and epoch != known:
        return Code.FENCED_LEADER_EPOCH if epoch < known else Code.UNKNOWN_LEADER_EPOCH
    return partition if leader == broker else Code.NOT_LEADER_OR_FOLLOWER


@cache  # each request of a group or a transaction asks for its coordinator
def _hash(text: str) -> int:
    """Return Java's hash of a text, without its sign: by it Kafka spreads groups and transactional ids."""
    found = 0
    for unit in text.encode("utf-16-be")[1::2] if text.isascii() else text.encode("utf-16-be"):
        found = (31 * found + unit) & 0xFFFFFFFF
    return found & 0x7FFFFFFF
