"""What goes into a round and what comes out of it: the readers, the tasks, and the result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from overlay.arrays import Ints
from overlay.dispatch.dispatcher import Offer
from overlay.filter import Filter
from overlay.kafka.fetched import Fetched
from overlay.kafka.log_position import LogPosition, TopicPartition
from overlay.match import Tally, Values
from overlay.output.batch_builder import OutputBatch, OutputTopic
from overlay.scan import Malformed
from overlay.state.shard_state import ConsumerId, StreamPartition
from overlay.subject import Pattern

from .indexing import Sealed


@dataclass(frozen=True, slots=True, eq=False)
class Reader:
    """A consumer as the pipeline sees it: what it wants, and where its records go."""

    id: ConsumerId
    subjects: tuple[Pattern, ...]
    output_topic: OutputTopic | None
    """None for a pull consumer."""
    filter: Filter | None = None
    first_sequence: int = 0
    """In a stream with a ledger, the stream sequence below which nothing is delivered."""
    has_machine: bool = False
    """Whether a machine decides about deliveries. Then matching records are offered to it instead
    of being delivered."""
    values: Values | None = None
    """Condition on filter values (docs/filters.md); None to accept all."""
    dead_letter_topic: OutputTopic | None = None
    """The topic for dead letters of messages that are given up. Without a machine, these are the
    records that the output can never take; if it is None, the consumer stops at such a record."""
    recipient: int = 0
    """The consumer's number among the recipients of the output topic's envelope."""

    @property
    def takes_all(self) -> bool:
        """Whether the consumer wants every record of its subjects, since it has neither a filter nor filter values."""
        return self.filter is None and self.values is None


@dataclass(frozen=True, slots=True)
class Task:
    """One reading of a cursor in a round, of which it may have several: the offsets from `position` to `stop`
    (exclusive) of fetched data, for the consumers `readers`.
    """

    stream: str
    source: TopicPartition
    fetched: Fetched
    position: int
    stop: int
    readers: tuple[Reader, ...]
    only: Ints | None = None
    """Offsets to deliver and no others, ascending (last_per_subject); None to deliver all."""
    floors: Mapping[ConsumerId, int] = field(default_factory=dict)
    """By consumer, the offset below which it is given nothing."""
    indexed: bool = False
    """Whether the stream's chunk index is made from this task."""
    sequenced: bool = False
    """Whether the task's records get their stream sequences in this round."""
    cursor_group: int = 0
    """The number of its cursor's group, 0 if it is in none."""
    others: Mapping[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    """In a stream with a ledger: by other partition, the readers' position there and the last
    stable offset, -1 if that is unknown."""


@dataclass(frozen=True, slots=True)
class Corruption:
    """A batch that could not be read. `skipped`: whether the stream goes on after it, else its
    partition stops there."""

    stream: str
    source: TopicPartition
    malformed: Malformed
    skipped: bool


@dataclass(frozen=True, slots=True)
class Progress:
    """How far one task came. `log_position`: up to there its consumers were given everything.
    `stopped`: a corrupt batch is there, and the partition does not go on.

    `is_put_off`: the task was not processed, since a corrupt batch has stopped another partition of
    its cursor group, and consumers with machines wait for that. `read_ms`: the timestamp of the last
    record that was read, ms since 1970; None if there was none.
    """

    task: Task
    log_position: LogPosition
    stopped: bool = False
    is_put_off: bool = False
    read_ms: int | None = None


@dataclass(frozen=True, slots=True)
class SliceRead:
    """What was read of a partition in one slice: offsets from `first` to below `end`.

    `records`: how many there were. `unaddressed`: those without a subject in the stream, by reason.
    `example`: offset and reason of one of these; None if there is none.
    """

    partition: StreamPartition
    first: int
    end: int
    records: int
    unaddressed: Mapping[str, int] = field(default_factory=dict)
    example: tuple[int, str] | None = None


@dataclass(frozen=True, slots=True)
class Counts:
    """What is to be counted in the metrics once a round or step is committed."""

    delivered: Mapping[ConsumerId, int] = field(default_factory=dict)
    """Messages by consumer."""
    dead_letters: Mapping[tuple[ConsumerId, str], int] = field(default_factory=dict)
    """Messages given up, by consumer and reason: max_deliver, term or undeliverable. If the consumer has a dead letter
    topic, there is a dead letter for each."""
    newest: Mapping[ConsumerId, int] = field(default_factory=dict)
    """The source timestamp of the last record delivered to each consumer, ms since 1970."""
    oldest: Mapping[ConsumerId, int] = field(default_factory=dict)
    """The same of the first record."""
    decoded: Mapping[str, int] = field(default_factory=dict)
    """Records by stream."""
    indexed: Mapping[str, int] = field(default_factory=dict)
    """Records that went into chunks, by stream."""
    reads: Sequence[SliceRead] = ()
    """What was read, slice by slice."""
    index_topics: Collection[str] = ()
    """The index topics that took ledger entries or chunk headers."""

    def list_consumers(self) -> set[ConsumerId]:
        """Return the consumers to which messages were delivered, or of which some were given up."""
        return {*self.delivered, *(consumer for consumer, _ in self.dead_letters)}


@dataclass(frozen=True, slots=True)
class RoundResult:
    """What the pipeline made of a round: batches, offers, and how far each task came. Never changed
    after it was made."""

    progress: Sequence[Progress] = ()
    """One for each task, in their order."""
    batches: Sequence[tuple[tuple[ConsumerId, ...], OutputBatch]] = ()
    """Each with the consumers whose deliveries or dead letters it holds."""
    offers: Sequence[tuple[TopicPartition, Offer]] = ()
    """Records that consumers with machines want, and the partitions they are from."""
    beyond: Mapping[ConsumerId, int] = field(default_factory=dict)
    """By consumer with a machine, how many more records lie ahead, if that has changed; an
    estimate."""
    sequences: Mapping[ConsumerId, int] = field(default_factory=dict)
    """The last consumer sequence of each consumer that was given something."""
    counts: Counts = field(default_factory=Counts)
    unsequenced: Mapping[str, int] = field(default_factory=dict)
    """Records by stream that consumers with machines wanted and cannot be offered, since no ledger
    knows their sequences."""
    corruptions: Sequence[Corruption] = ()
    results: Mapping[tuple[ConsumerId, str], int] = field(default_factory=dict)
    """Records by consumer and filter result: true, false or unknown."""
    nulls: Mapping[tuple[ConsumerId, str], int] = field(default_factory=dict)
    """Values that a filter named and that could not be read, by consumer and reason."""
    ledger: Sequence[OutputBatch] = ()
    """Ledger entries, as batches for the index topics."""
    given_out: Mapping[str, int] = field(default_factory=dict)
    """By stream whose head was read, the sequence that comes next."""
    index: Sequence[OutputBatch] = ()
    """Chunk headers, as batches for the index topics."""
    sealed: Sequence[Sealed] = ()
    """The chunks of these headers."""


class Gathering:
    """The lists and counters that the pipeline fills while it works on a round; `finish` makes the
    result of them."""

    def __init__(self) -> None:
        self.progress: list[Progress] = []
        self.batches: list[tuple[tuple[ConsumerId, ...], OutputBatch]] = []
        self.offers: list[tuple[TopicPartition, Offer]] = []
        self.beyond: dict[ConsumerId, int] = {}
        self.sequences: dict[ConsumerId, int] = {}
        self.delivered: Counter[ConsumerId] = Counter()
        self.dead_letters: Counter[tuple[ConsumerId, str]] = Counter()
        self.newest: dict[ConsumerId, int] = {}
        self.oldest: dict[ConsumerId, int] = {}
        self.decoded: Counter[str] = Counter()
        self.indexed: Counter[str] = Counter()
        self.reads: list[SliceRead] = []
        self.unsequenced: Counter[str] = Counter()
        self.corruptions: list[Corruption] = []
        self.results: Counter[tuple[ConsumerId, str]] = Counter()
        self.nulls: Counter[tuple[ConsumerId, str]] = Counter()

    def note(self, consumer: ConsumerId, tally: Tally) -> None:
        """Add the filter results of a slice for a consumer to the counters."""
        for result in ("true", "false", "unknown"):
            if records := getattr(tally, result):
                self.results[consumer, result] += records
        for reason, values in tally.nulls.items():
            self.nulls[consumer, reason] += values

    def finish(
        self,
        ledger: Sequence[OutputBatch],
        given_out: Mapping[str, int],
        index: Sequence[OutputBatch],
        sealed: Sequence[Sealed],
    ) -> RoundResult:
        """Return the result of the round: what was gathered, and these values, as RoundResult
        describes them."""
        counts = Counts(
            self.delivered, self.dead_letters, self.newest, self.oldest, self.decoded, self.indexed, self.reads,
            {each.topic for each in (*ledger, *index)},
        )  # fmt: skip
        return RoundResult(
            self.progress,
            self.batches,
            self.offers,
            self.beyond,
            self.sequences,
            counts,
            self.unsequenced,
            self.corruptions,
            self.results,
            self.nulls,
            ledger,
            given_out,
            index,
            sealed,
        )
