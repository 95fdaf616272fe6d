"""The pipeline, steps 2 to 7 of docs/architecture.md for one round: decode, address, match,
assemble and compress. No IO; runs in a thread.

The pipeline keeps what outlives a round: dictionaries, the answers of the matchers, and the
consumer sequences given out so far. After a failed transaction those sequences are wrong. So the
pipeline is thrown away then, with everything else that the shard holds in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from overlay.config.stream import OnCorrupt, StreamConfig
from overlay.consumer.endings import give_up
from overlay.consumer.pending import distinct
from overlay.dispatch.dead_letters import press_letters
from overlay.dispatch.dispatcher import Offer
from overlay.dispatch.record_slice import keep
from overlay.field import Field
from overlay.filter import Filter
from overlay.index.ledger.ledger import Ledger
from overlay.kafka.fetcher import Fetched
from overlay.kafka.log_position import LogPosition, TopicPartition
from overlay.match import Addressed, Addressing, Audience, Masks, Selection, Tally, Values
from overlay.output.assemble import Numbers
from overlay.output.batch_builder import BatchBuilder, OutputBatch, OutputTopic
from overlay.output.undeliverable import find_refused
from overlay.scan import Malformed
from overlay.state.shard_state import ConsumerId
from overlay.subject import Pattern

from .indexing import Indexing, Sealed
from .pending_estimate import PendingEstimate, Sight, View
from .sequencing import Sequencing, cut, find_log_position

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Reader:
    """A consumer as the pipeline sees it."""

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
    letters: OutputTopic | None = None
    """The topic for dead letters of messages that are given up. Without a machine, these are the
    records that the output can never take; if it is None, the consumer stops at such a record."""

    @property
    def takes_all(self) -> bool:
        """Whether the consumer wants every record of its subjects."""
        return self.filter is None and self.values is None


@dataclass(frozen=True, slots=True)
class Task:
    """One cursor's part in a round: the offsets from `position` to `stop` of a fetch."""

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
    """A batch that could not be read, and whether it was skipped."""

    stream: str
    source: TopicPartition
    malformed: Malformed
    skipped: bool


@dataclass(slots=True)
class Progress:
    """How far one task came. `log_position` is where its consumers now stand; `stopped` when a corrupt batch is in the way.

    `is_put_off`: a corrupt batch is in the way in another partition of the cursor group, and consumers with machines
    wait there.
    """

    task: Task
    log_position: LogPosition
    stopped: bool = False
    is_put_off: bool = False


@dataclass(slots=True)
class RoundResult:
    """What the pipeline made of a round."""

    progress: list[Progress] = field(default_factory=list)
    batches: list[tuple[ConsumerId, OutputBatch]] = field(default_factory=list)
    offers: list[tuple[TopicPartition, Offer]] = field(default_factory=list)
    """Records that consumers with machines want, and the partitions they are from."""
    beyond: dict[ConsumerId, int] = field(default_factory=dict)
    """By consumer with a machine, how many more records lie ahead, if that has changed; an
    estimate."""
    sequences: dict[ConsumerId, int] = field(default_factory=dict)
    """The last consumer sequence of each consumer that was given something."""
    delivered: Counter[ConsumerId] = field(default_factory=Counter)
    """Messages by consumer."""
    buried: Counter[ConsumerId] = field(default_factory=Counter)
    """Messages given up, by consumer. If the consumer has a dead letter topic, `batches` holds a
    dead letter for each."""
    decoded: Counter[str] = field(default_factory=Counter)
    """Records by stream."""
    unaddressed: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Records that have no subject of the stream, by stream and reason."""
    unsequenced: Counter[str] = field(default_factory=Counter)
    """Records by stream that consumers with machines wanted and cannot be offered, since no ledger
    knows their sequences."""
    corruptions: list[Corruption] = field(default_factory=list)
    newest: dict[ConsumerId, int] = field(default_factory=dict)
    """The source timestamp of the last record delivered to each consumer, ms since 1970."""
    oldest: dict[ConsumerId, int] = field(default_factory=dict)
    """The same of the first record."""
    results: Counter[tuple[ConsumerId, str]] = field(default_factory=Counter)
    """Records by consumer and filter result: true, false or unknown."""
    nulls: Counter[tuple[ConsumerId, str]] = field(default_factory=Counter)
    """Values that a filter named and that could not be read, by consumer and reason."""
    backlog: bool = False
    """Whether much more is waiting to be read."""
    ledger: list[OutputBatch] = field(default_factory=list)
    """Ledger entries, as batches for the index topics."""
    given_out: dict[str, int] = field(default_factory=dict)
    """By stream whose head was read, the sequence that comes next."""
    index: list[OutputBatch] = field(default_factory=list)
    """Chunk headers, as batches for the index topics."""
    sealed: list[Sealed] = field(default_factory=list)
    """The chunks of these headers."""
    indexed: Counter[str] = field(default_factory=Counter)
    """Records that went into chunks, by stream."""

    @property
    def size(self) -> int:
        """Bytes of all batches."""
        return sum(outgoing.batch.size for outgoing in (*(o for _, o in self.batches), *self.ledger, *self.index))

    def note(self, consumer: ConsumerId, tally: Tally) -> None:
        """Count the filter results of a slice for a consumer."""
        for result in ("true", "false", "unknown"):
            if records := getattr(tally, result):
                self.results[consumer, result] += records
        for reason, values in tally.nulls.items():
            self.nulls[consumer, reason] += values


@dataclass(frozen=True, slots=True, eq=False)
class _Screen:
    """Subject matcher and filters of a task's readers, kept from round to round."""

    audience: Audience
    masks: Masks


class Pipeline:
    """Turns the fetched data of a round into batches and offers. Not thread-safe."""

    def __init__(
        self,
        streams: Mapping[str, StreamConfig],
        sequences: Mapping[ConsumerId, int],
        index_topics: Mapping[str, str] = MappingProxyType({}),
        ledgers: Mapping[str, Ledger] = MappingProxyType({}),
        pending_estimate: PendingEstimate | None = None,
    ) -> None:
        """Begin after the consumer sequences given out so far.

        `index_topics`: by stream whose index is made here, its index topic. `ledgers`: of the
        streams that have one. `pending_estimate`: None leaves num_pending unknown.
        """
        self._streams = streams
        self._sequences = dict(sequences)
        self._addressing = {name: Addressing(s.subject.rule, s.patterns) for name, s in streams.items()}
        self._screens: dict[tuple[object, ...], _Screen] = {}
        self._builder = BatchBuilder()
        self._pending_estimate = pending_estimate
        self._sequencing = Sequencing(ledgers, index_topics)
        self._indexing = Indexing({name: streams[name] for name in index_topics}, index_topics)

    def run(self, tasks: Sequence[Task], now: int) -> RoundResult:
        """Process one round. Without tasks, only seal the chunks that are old enough. `now`: ms
        since 1970, also written on output records."""
        outcome = RoundResult()
        if self._pending_estimate is not None:
            self._pending_estimate.begin_round()
        outcome.ledger, outcome.given_out = self._sequencing.give_out(tasks, now)
        for task in tasks:
            self._run_task(task, now, outcome)
        owners = {reader.output_topic: reader.id for task in tasks for reader in task.readers if reader.output_topic}
        outcome.batches += ((owners[output_topic], outgoing) for output_topic, outgoing in self._builder.flush())
        outcome.sealed, outcome.index = self._indexing.finish(now)
        outcome.sequences = {consumer: self._sequences[consumer] for consumer in outcome.delivered}
        return outcome

    def close(self, now: int) -> RoundResult:
        """Seal all chunks, even small ones. A later pipeline goes on with chunks that are not
        full."""
        outcome = RoundResult()
        outcome.sealed, outcome.index = self._indexing.finish(now, last=True)
        return outcome

    def _run_task(self, task: Task, now: int, outcome: RoundResult) -> None:
        before = next(
            (p for p in outcome.progress if (p.stopped or p.is_put_off) and p.task.fetched is task.fetched), None
        )
        if before is not None:  # another part of a fetch that is not read so far
            outcome.progress.append(replace(before, task=task))
            return
        if _waits(task, outcome):
            outcome.progress.append(Progress(task, LogPosition(task.position), is_put_off=True))
            return
        topic, partition = task.source
        screen = self._screen(task)
        progress = Progress(task, LogPosition(task.position))
        view = self._pending_estimate.open(task) if self._pending_estimate is not None and task.readers else None
        seal, fields = None, screen.masks.fields
        if task.indexed:
            seal = self._indexing.open(task.stream, task.source, task.position, task.fetched.batches)
            fields = _unite(fields, seal.fields)
        pieces = self._addressing[task.stream].read(
            topic,
            partition,
            cut(task.fetched, task.position, task.stop),
            task.position,
            more=fields,
            stop=task.stop,
            aborted=task.fetched.aborted,
        )
        for piece in pieces:
            if isinstance(piece, Malformed):
                self._pass_over(piece, progress, outcome)
                if progress.stopped:
                    break
            else:
                progress.log_position = LogPosition(piece.records.next_offset)
                self._deal(task, piece, screen, view, now, outcome)
            if seal is not None:
                seal.add(piece, now)
        if not progress.stopped:
            # the rest of the task's range holds no records
            reached = max(progress.log_position.position, min(task.stop, task.fetched.next_offset))
            progress.log_position = find_log_position(task.fetched, reached)
        if view is not None:
            outcome.beyond |= view.close(progress.log_position.position)
        outcome.progress.append(progress)

    def _pass_over(self, piece: Malformed, progress: Progress, outcome: RoundResult) -> None:
        """Stop at a corrupt batch or skip it, as the stream's `on_corrupt` says."""
        task = progress.task
        progress.stopped = self._streams[task.stream].on_corrupt is OnCorrupt.STOP
        outcome.corruptions.append(Corruption(task.stream, task.source, piece, not progress.stopped))
        at = max(progress.log_position.position, piece.base_offset) if progress.stopped else piece.next_offset
        progress.log_position = LogPosition(at)

    def _deal(
        self, task: Task, piece: Addressed, screen: _Screen, view: View | None, now: int, outcome: RoundResult
    ) -> None:
        """Match a slice, and add its records to the output batches and offers of the readers that
        want them."""
        self._count(task, piece, outcome)
        wanted = _narrow(task, piece, screen.audience.select(piece.codes))
        sights = view.pass_by(piece.records, wanted) if view is not None else {}
        sifted = screen.masks.sift(piece, wanted, now)
        for i, tally in sifted.tallies.items():
            outcome.note(task.readers[i].id, tally)
        # consumers with machines are offered the rows; all others get them into their output here
        offered = {i: rows for i, rows in sifted.rows.items() if task.readers[i].has_machine}
        if offered:
            self._offer(task, piece, offered, outcome)
            if view is not None:
                beyond = {task.readers[i].id: sights[i].count if i in sights else 0 for i in offered}
                outcome.beyond |= view.tell(beyond)
        for i, rows in sifted.rows.items():
            reader = task.readers[i]
            if reader.output_topic is None or i in offered:
                continue
            sequences = self._sequencing.find_sequences(task.stream, task.source, piece.records.offset[rows])
            # records before the consumer's first sequence, then records that its output can never
            # take, get no consumer sequence
            if reader.first_sequence:
                rows, sequences = rows[late := sequences >= reader.first_sequence], sequences[late]
                if not rows.size:
                    continue
            if reader.letters is not None:
                rows, sequences = _sort_out(task, reader, piece, rows, sequences, now, outcome)
                if not rows.size:
                    continue
            first = self._sequences.get(reader.id, 0) + 1
            pending = _count_pending(rows, wanted[i], sights.get(i))
            numbers = Numbers(sequences, np.arange(first, first + rows.size), pending=pending)
            self._builder.add(reader.output_topic, piece, rows, task.source[1], numbers, now)
            self._sequences[reader.id] = first + rows.size - 1
            outcome.delivered[reader.id] += rows.size
            outcome.newest[reader.id] = int(piece.records.timestamp[rows[-1]])
            outcome.oldest.setdefault(reader.id, int(piece.records.timestamp[rows[0]]))

    def _offer(self, task: Task, piece: Addressed, wanted: Mapping[int, Ints], outcome: RoundResult) -> None:
        """Keep the rows that machines want, once for all of them, and offer each machine its
        own."""
        rows = distinct(np.concatenate(list(wanted.values())))
        sequences = self._sequencing.find_sequences(task.stream, task.source, piece.records.offset[rows])
        outcome.unsequenced[task.stream] += int((sequences == 0).sum())
        rows, sequences = rows[sequences > 0], sequences[sequences > 0]
        if not rows.size:
            return
        kept = keep(piece, rows, sequences)
        for i, own in wanted.items():
            places = np.flatnonzero(np.isin(rows, own, assume_unique=True))
            if first := task.readers[i].first_sequence:
                places = places[sequences[places] >= first]
            if places.size:
                outcome.offers.append((task.source, Offer(task.readers[i].id, kept, places)))

    @staticmethod
    def _count(task: Task, piece: Addressed, outcome: RoundResult) -> None:
        """Count the records of a slice."""
        outcome.decoded[task.stream] += len(piece.records)
        if task.indexed:
            outcome.indexed[task.stream] += len(piece.records)
        for reason, count in piece.count_unaddressed().items():
            outcome.unaddressed[task.stream, reason] += count

    def _screen(self, task: Task) -> _Screen:
        """Return the screen for exactly these readers."""
        dictionary = self._addressing[task.stream].dictionary(*task.source)
        key = (dictionary, *(reader.id for reader in task.readers))
        if key not in self._screens:
            # sets of readers change while consumers catch up; old screens would pile up
            if len(self._screens) > 64:
                self._screens.clear()
            properties, values = self._streams[task.stream].properties, [reader.values for reader in task.readers]
            self._screens[key] = _Screen(
                Audience(dictionary, [reader.subjects for reader in task.readers], values),
                Masks([reader.filter for reader in task.readers], properties, values),
            )
        return self._screens[key]


def _waits(task: Task, outcome: RoundResult) -> bool:
    """Return whether a task lies behind a corrupt batch in the order of sequences, with consumers that need this order."""
    if not task.cursor_group or not any(reader.has_machine for reader in task.readers):
        return False
    return any(
        p.stopped and (p.task.stream, p.task.cursor_group) == (task.stream, task.cursor_group) for p in outcome.progress
    )


def _unite(first: tuple[Field, ...], second: tuple[Field, ...]) -> tuple[Field, ...]:
    """Return both sets of fields as one, sorted."""
    return first if not second else tuple(sorted({*first, *second}, key=str))


def _sort_out(
    task: Task, reader: Reader, piece: Addressed, rows: Ints, sequences: Ints, now: int, outcome: RoundResult
) -> tuple[Ints, Ints]:
    """Write dead letters for the rows that the output can never take. Return the other rows and
    their stream sequences.

    Comes before consumer sequences are given out, so that dead letters leave no hole in them.
    """
    assert reader.output_topic is not None and reader.letters is not None
    refused = find_refused(reader.output_topic, piece, rows, now)
    if not refused.size:
        return rows, sequences
    letters = [give_up(sequence) for sequence in sequences[refused].tolist()]
    pressed = press_letters(reader.letters, piece, rows[refused], letters, task.source[1], now)
    outcome.batches += ((reader.id, outgoing) for outgoing in pressed)
    outcome.buried[reader.id] += refused.size
    return np.delete(rows, refused), np.delete(sequences, refused)


def _count_pending(rows: Ints, wanted: Ints, sight: Sight | None) -> Ints | None:
    """Return num_pending after each of `rows`, int64, one per row; None if it is not exactly known.

    `wanted`: the rows of the reader's subjects in the slice, among which `rows` are.
    """
    if sight is None or not sight.is_exact:
        return None
    last = sight.count + wanted.size - 1
    if rows.size == wanted.size:
        return np.arange(last, last - rows.size, -1)
    pending: Ints = last - np.searchsorted(wanted, rows)
    return pending


def _narrow(task: Task, piece: Addressed, selection: Selection) -> dict[int, Ints]:
    """Return the rows that each reader may be given, by its subjects, its snapshot and its
    floor."""
    wanted = {i: selection.of(i) for i in selection.wanting()}
    for i, rows in wanted.items():
        if task.only is not None:
            rows = rows[np.isin(piece.records.offset[rows], task.only, assume_unique=True)]
        floor = task.floors.get(task.readers[i].id)
        if floor is not None:
            rows = rows[piece.records.offset[rows] >= floor]
        wanted[i] = rows
    return {i: rows for i, rows in wanted.items() if rows.size}
