"""The state of a shard: how far its streams are read, and what each consumer has been given.

The state partition of a shard is a log of deltas, with a complete checkpoint now and then. A delta
says what one transaction changed, and is in the same transaction as the records that it accounts
for. A checkpoint says everything, so that older records can be deleted. The state is read by
applying the records in order.

Consumers at the tail share the stream's position. When they advance, one position of each partition
is written, however many consumers there are. A consumer elsewhere (catching up, stalled, or its
file removed) has positions of its own.

A log position is an offset with the leader epoch and CRC of the batch before it. With these a later
reader can tell whether the log below the offset is still the log that was read.

State records are JSON with a version. A record of another version is refused, never read in part.
The log also has the records of consumers' machines (overlay/consumer/snapshot.py); their key names
the consumer, and this module does not read their values. A machine's record that is larger than a
Kafka record may be is written in parts, which the key counts. All parts are in one transaction, so
a reader that finds one of them finds the others behind it.
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

from overlay.errors import OverlayError
from overlay.kafka.log_position import LogPosition, TopicPartition
from overlay.output.ending import Ending, from_wire, to_wire
from overlay.output.record import Record
from overlay.units import read_int64

from .state_links import Link

VERSION = 1
MACHINE = "machine"
PART_BYTES = 900_000
"""Most bytes of a machine's record in one Kafka record: below the default limit of topics."""

ConsumerId = tuple[str, str]
StreamPartition = tuple[str, TopicPartition]
"""The name of a stream, and a partition of its sources or of its ack topic."""
Part = TypeVar("Part")
Fact = TypeVar("Fact")


class StateUnreadable(OverlayError):
    """A state partition, or the state topic of a Spark job, holds something that this version
    cannot read. The operator has to act."""


@dataclass(frozen=True, slots=True)
class ConsumerState:
    """What the state records of one consumer.

    `sequence`: the last consumer sequence given out. `own`: positions that count in place of the
    stream's. `snapshot`: for last_per_subject, the offsets below which only the last message of
    each subject is delivered. `floor`: the offsets below which nothing is delivered, for a consumer
    that begins after its position. `heard`: the next offset to read in each partition of the
    stream's ack topic, where it differs from the stream's. `replay_until`: for replay original, the
    stream's last sequence when the consumer was created; None if unknown or not needed. `policy`:
    the ack policy with which the consumer is delivered; empty if unknown.

    Who delivers the consumer (handover.py) is said by three texts. `job`: name of the Spark job that
    does; empty for the service. `claim`: a random mark, drawn anew each time that a job takes the
    consumer over from the service or from another job. `recall`: a random mark if the job is to give
    the consumer back; it delivers nothing more. A job's consumer has its positions in the plans of
    the job, and here those with which the job began, none if the consumer was new.
    """

    sequence: int = 0
    own: Mapping[TopicPartition, LogPosition] = field(default_factory=dict)
    snapshot: Mapping[TopicPartition, int] = field(default_factory=dict)
    floor: Mapping[TopicPartition, int] = field(default_factory=dict)
    heard: Mapping[TopicPartition, int] = field(default_factory=dict)
    replay_until: int | None = None
    policy: str = ""
    job: str = ""
    claim: str = ""
    recall: str = ""


@dataclass(frozen=True, slots=True)
class Delta:
    """What one transaction changed. A consumer's state is replaced as a whole."""

    cursors: dict[tuple[str, TopicPartition], LogPosition] = field(default_factory=dict)
    """By stream and partition, the stream's position: that of its tail."""
    consumers: dict[ConsumerId, ConsumerState] = field(default_factory=dict)
    topics: dict[tuple[str, str], str] = field(default_factory=dict)
    """Kafka's topic id by stream and topic: of its sources, its index and its acks."""
    forgotten: tuple[ConsumerId, ...] = ()
    """Consumers that are dropped before the rest of the delta applies. A consumer may be dropped
    and begin anew in the same delta."""
    generation: int | None = None
    """The owner's generation in the group; only in the first record of an ownership."""
    reset: tuple[str, ...] = ()
    """Streams whose cursors, topic ids and positions in ack topics are dropped before the rest of the delta counts."""
    acks: dict[tuple[str, TopicPartition], LogPosition] = field(default_factory=dict)
    """For each stream and partition of its ack topic, where to read on for consumers that have no position there of their own
    (`ConsumerState.heard`)."""
    sequences: dict[str, int] = field(default_factory=dict)
    """By stream whose ledger this shard keeps, the sequence that is given out next. A ledger that ends
    below it has lost its end."""
    endings: tuple[Ending, ...] = ()
    """How the last transactions of former owners were decided (output/ending.py), all that are kept; empty if that has not
    changed."""

    def merge(self, later: Delta) -> Delta:
        """Return one delta that changes a state as this one and then `later` would. Both stay as they are."""
        kept = {consumer: state for consumer, state in self.consumers.items() if consumer not in later.forgotten}
        return Delta(
            {**_without(later.reset, self.cursors), **later.cursors},
            {**kept, **later.consumers},
            {**_without(later.reset, self.topics), **later.topics},
            (*self.forgotten, *later.forgotten),
            self.generation if later.generation is None else later.generation,
            (*self.reset, *later.reset),
            {**_without(later.reset, self.acks), **later.acks},
            {**{name: at for name, at in self.sequences.items() if name not in later.reset}, **later.sequences},
            later.endings or self.endings,
        )

    def __bool__(self) -> bool:
        changes = self.cursors or self.consumers or self.topics or self.forgotten or self.reset or self.acks
        return bool(changes or self.sequences or self.endings) or self.generation is not None


@dataclass(slots=True)
class ShardState:
    """The whole state of a shard, in memory. Fields without a text are as in Delta; `generation` is
    that of the last worker that owned the shard, -1 if there was none."""

    cursors: dict[tuple[str, TopicPartition], LogPosition] = field(default_factory=dict)
    consumers: dict[ConsumerId, ConsumerState] = field(default_factory=dict)
    topics: dict[tuple[str, str], str] = field(default_factory=dict)
    generation: int = -1
    acks: dict[tuple[str, TopicPartition], LogPosition] = field(default_factory=dict)
    length: int = 0
    """Number of records in the log it was read from."""
    end: int = 0
    """The offset after the last record of the log that this state contains: what the next record
    follows (state_links.py)."""
    sequences: dict[str, int] = field(default_factory=dict)
    endings: tuple[Ending, ...] = ()
    machines: dict[ConsumerId, list[bytes]] = field(default_factory=dict)
    """Records of each consumer's machine in order, as they were read. A session that runs a machine
    takes its records out."""

    def list_machines(self) -> list[Record]:
        """Return the records in `machines` as Kafka records. These are the machines that do not run in this session."""
        return [
            r for consumer, values in self.machines.items() for value in values for r in write_machine(consumer, value)
        ]

    def apply(self, delta: Delta) -> None:
        """Apply a delta. The machines' records of streams that it resets, and of consumers that it
        forgets, are dropped. `end` and `length` stay as they are."""
        self.cursors, self.topics = _without(delta.reset, self.cursors), _without(delta.reset, self.topics)
        self.acks = _without(delta.reset, self.acks)
        for stream in delta.reset:
            self.sequences.pop(stream, None)
        for consumer in [each for each in self.machines if each[0] in delta.reset]:
            del self.machines[consumer]
        for consumer in delta.forgotten:
            self.consumers.pop(consumer, None)
            self.machines.pop(consumer, None)
        self.cursors.update(delta.cursors)
        self.consumers.update(delta.consumers)
        self.topics.update(delta.topics)
        self.acks.update(delta.acks)
        self.sequences.update(delta.sequences)
        self.endings = delta.endings or self.endings
        if delta.generation is not None:
            self.generation = delta.generation

    def log_position_of(self, consumer: ConsumerId, source: TopicPartition) -> LogPosition | None:
        """Return a consumer's position in a partition: its own, or else that of its stream; None if there is neither
        yet. A consumer that the state does not have is where its stream is."""
        state = self.consumers.get(consumer)
        if state is not None and source in state.own:
            return state.own[source]
        return self.cursors.get((consumer[0], source))

    def pin(self, consumer: ConsumerId, starts: Mapping[TopicPartition, int]) -> ConsumerState:
        """Return the consumer's state with a position of its own in each partition of `starts`, so
        that the stream's position can move on without it.

        `starts`: by partition of the stream, the offset at which the consumer begins if it has no
        position there yet. Raises KeyError if the consumer is unknown. Nothing is changed here.
        """
        known = self.consumers[consumer]
        now = {source: self.log_position_of(consumer, source) or LogPosition(first) for source, first in starts.items()}
        return replace(known, own={**known.own, **now})

    def checkpoint(self) -> Delta:
        """Return everything but the machines' records as one delta. Its dicts are those of this
        state: encode it before the state changes."""
        return Delta(
            self.cursors,
            self.consumers,
            self.topics,
            generation=self.generation,
            acks=self.acks,
            sequences=self.sequences,
            endings=self.endings,
        )

    def sign(self) -> Delta:
        """Return what every owner writes in its first transaction: its generation, and how the last transactions of
        former owners were decided."""
        return Delta(generation=self.generation, endings=self.endings)


def _without(streams: tuple[str, ...], entries: dict[tuple[str, Part], Fact]) -> dict[tuple[str, Part], Fact]:
    """Return the entries of which the stream, the first part of the key, is not among `streams`."""
    return {key: fact for key, fact in entries.items() if key[0] not in streams} if streams else entries


def encode(delta: Delta, *, checkpoint: bool = False, after: int | None = None, is_whole: bool = False) -> bytes:
    """Return the value of a state record.

    `checkpoint`: whether `delta` is the whole state (`ShardState.checkpoint`), which then replaces what
    records before it say, and the consumers that this record forgets. `after`: the end of the records
    that this one follows (`ShardState.end`), None if unknown.
    `is_whole`: the records of all machines are written with this checkpoint.
    """
    record: dict[str, Any] = {"v": VERSION, "kind": "checkpoint" if checkpoint else "delta"}
    if after is not None:
        record["after"] = after
    if is_whole:
        record["whole"] = True
    if delta.generation is not None:
        record["generation"] = delta.generation
    if delta.cursors:
        # the keys "cursors", "own" and so on are the record format, not to be renamed
        record["cursors"] = [
            [stream, *source, *_flat(log_position)] for (stream, source), log_position in delta.cursors.items()
        ]
    if delta.consumers:
        record["consumers"] = [[*consumer, _wire(state)] for consumer, state in delta.consumers.items()]
    if delta.topics:
        record["topics"] = [[stream, topic, identity] for (stream, topic), identity in delta.topics.items()]
    if delta.forgotten:
        record["forgotten"] = delta.forgotten
    if delta.acks:
        record["acks"] = [
            [stream, *source, *_flat(log_position)] for (stream, source), log_position in delta.acks.items()
        ]
    if delta.reset:
        record["reset"] = delta.reset
    if delta.sequences:
        record["sequences"] = delta.sequences
    if delta.endings:
        record["endings"] = to_wire(delta.endings)
    return json.dumps(record, separators=(",", ":")).encode()


def _flat(log_position: LogPosition) -> tuple[int, int, int]:
    return log_position.position, log_position.epoch, log_position.crc


def _wire(state: ConsumerState) -> dict[str, Any]:
    """Return a consumer's state as a JSON object. It always has the sequence; other fields are left out if
    they have their default."""
    wire: dict[str, Any] = {"seq": state.sequence}
    if state.own:
        wire["own"] = [[*source, *_flat(log_position)] for source, log_position in state.own.items()]
    if state.snapshot:
        wire["snapshot"] = [[*source, end] for source, end in state.snapshot.items()]
    if state.floor:
        wire["floor"] = [[*source, offset] for source, offset in state.floor.items()]
    if state.heard:
        wire["heard"] = [[*source, offset] for source, offset in state.heard.items()]
    if state.replay_until is not None:
        wire["replay_until"] = state.replay_until
    if state.policy:
        wire["policy"] = state.policy
    if state.job or state.claim or state.recall:
        texts = {"job": state.job, "claim": state.claim, "recall": state.recall}
        wire |= {key: text for key, text in texts.items() if text}
    return wire


class StateRecord(NamedTuple):
    """What a state record says. `is_checkpoint`: it replaces everything before it, but the records of
    machines only if it `is_whole`. `after` and `is_whole` are those of `encode`."""

    delta: Delta
    is_checkpoint: bool
    after: int | None
    is_whole: bool


def decode(value: bytes) -> StateRecord:
    """Return what a state record says. Raises StateUnreadable."""
    try:
        record = json.loads(value, parse_int=read_int64)
        if record["v"] != VERSION:
            raise StateUnreadable(f"state of version {record['v']}; this overlay reads version {VERSION}. Upgrade it")
        delta = Delta(
            {
                (stream, (topic, p)): LogPosition(*log_position)
                for stream, topic, p, *log_position in record.get("cursors", ())
            },
            {(stream, name): _unwire(wire) for stream, name, wire in record.get("consumers", ())},
            {(stream, topic): identity for stream, topic, identity in record.get("topics", ())},
            tuple((stream, name) for stream, name in record.get("forgotten", ())),
            record.get("generation"),
            tuple(record.get("reset", ())),
            {
                (stream, (topic, p)): LogPosition(*log_position)
                for stream, topic, p, *log_position in record.get("acks", ())
            },
            dict(record.get("sequences", {})),
            from_wire(record.get("endings", ())),
        )
        return StateRecord(delta, record["kind"] == "checkpoint", record.get("after"), record.get("whole", False))
    except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise StateUnreadable(f"a state record is not ours: {value[:80]!r} ({error})") from error


def _unwire(wire: dict[str, Any]) -> ConsumerState:
    """Return the consumer state in a JSON object."""
    return ConsumerState(
        wire["seq"],
        {(topic, p): LogPosition(*log_position) for topic, p, *log_position in wire.get("own", ())},
        {(topic, p): end for topic, p, end in wire.get("snapshot", ())},
        {(topic, p): offset for topic, p, offset in wire.get("floor", ())},
        {(topic, p): offset for topic, p, offset in wire.get("heard", ())},
        wire.get("replay_until"),
        wire.get("policy", ""),
        wire.get("job", ""),
        wire.get("claim", ""),
        wire.get("recall", ""),
    )


def write_machine(consumer: ConsumerId, value: bytes) -> list[Record]:
    """Return the Kafka records of one record of a machine, in order: several if it has more than
    PART_BYTES."""
    parts = [value[at : at + PART_BYTES] for at in range(0, len(value), PART_BYTES)]
    name = "/".join(consumer)
    return [Record(f"{MACHINE} {name} {i} {len(parts)}".encode(), part) for i, part in enumerate(parts, 1)]


class StateReplay:
    """Rebuilds a shard's state from its records. `state` is complete once all records were applied.
    `count`: how many records there were. `links`: the Link of each state record. Both include void
    records. `void`: the offsets of state records that are not applied, nor are the records of
    machines between each of them and the next state record."""

    def __init__(self, void: Container[int] = ()) -> None:
        self.state = ShardState()
        self.count = 0
        self.links: list[Link] = []
        self._void = void
        self._parts: list[bytes] = []

    def apply(self, offset: int, key: bytes | None, value: bytes) -> None:
        """Apply the next record to `state`: a state record if it has no key, else one of a machine, or a
        part of one. Records that are void are counted and not applied. Raises StateUnreadable."""
        self.count += 1
        if key is None:
            self._apply_delta(offset, value)
        else:
            if self.links:
                self.links[-1] = replace(self.links[-1], end=offset + 1)
            if not self._is_void():
                self._apply_machine(key, value)
        if not self._is_void():
            self.state.end = offset + 1

    def _is_void(self) -> bool:
        """Return whether the last state record is void, so that it and the records of machines behind it are
        passed over."""
        return bool(self.links) and self.links[-1].offset in self._void

    def _apply_delta(self, offset: int, value: bytes) -> None:
        """Note the link of a state record, and apply the record unless it is void. Raises
        StateUnreadable."""
        record = decode(value)
        self.links.append(Link(offset, offset + 1, record.after, record.is_whole))
        if self._is_void():
            return
        if record.is_checkpoint:
            self.state = ShardState(machines={} if record.is_whole else self.state.machines)
        self.state.apply(record.delta)

    def _apply_machine(self, key: bytes, value: bytes) -> None:
        """Add a machine's record to the state once its last part is there. Raises StateUnreadable if the key is not
        that of a machine's record, or if a part before this one is missing."""
        try:
            kind, name, number, count = key.decode().split(" ")
            stream, consumer = name.split("/")
            part, last = int(number), int(count)
        except ValueError as error:
            raise StateUnreadable(f"a state record is not ours: key {key[:80]!r}") from error
        if kind != MACHINE:
            raise StateUnreadable(f"state of a kind that this overlay does not know: {kind!r}. Upgrade it")
        if part == 1:
            self._parts.clear()
        self._parts.append(value)
        if len(self._parts) != part:
            raise StateUnreadable(f"part {part} of {last} of the state of {name} has no part before it")
        if part == last:
            self.state.machines.setdefault((stream, consumer), []).append(b"".join(self._parts))
