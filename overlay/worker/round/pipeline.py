"""The pipeline, steps 2 to 7 of docs/architecture.md for one round: decode, address, match,
assemble and compress. No IO; runs in a thread.

The pipeline keeps what outlives a round: dictionaries, the answers of the matchers, and the
consumer sequences given out so far. After a failed transaction those sequences are wrong. So the
pipeline is thrown away then, with everything else that the shard holds in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from overlay.config.stream import OnCorrupt, StreamConfig
from overlay.consumer.pending import are_among, distinct
from overlay.dispatch.dispatcher import Offer
from overlay.field import Field
from overlay.index.ledger.ledger import Ledger
from overlay.kafka.log_position import LogPosition
from overlay.match import Addressed, Audience, Masks, Selection, make_addressing
from overlay.match.audience import Piles
from overlay.match.record_slice import keep
from overlay.recent import Recent
from overlay.scan import Malformed
from overlay.state.shard_state import ConsumerId
from overlay.subject.dictionary import REASONS, Dictionary

from .deliveries import Deliveries, Passed, Plan
from .indexing import Indexing
from .pending_estimate import UNKNOWN, PendingEstimate, View
from .sequencing import Sequencing, cut, find_log_position
from .task import Corruption, Counts, Gathering, Progress, Reader, RoundResult, SliceRead, Task

Ints = npt.NDArray[np.int64]
MOST_SCREENS = 64
"""Sets of readers whose matchers and filters are kept."""


@dataclass(frozen=True, slots=True, eq=False)
class _Screen:
    """The subject matcher, the filters and the outputs of one set of readers, kept from round to
    round."""

    audience: Audience
    masks: Masks
    plan: Plan
    piles: Piles
    """One for each output of the plan's crowd."""


class Pipeline:
    """Turns the fetched data of a round into output batches, and into offers for consumers with
    machines. Without IO. Not thread-safe."""

    def __init__(
        self,
        streams: Mapping[str, StreamConfig],
        sequences: Mapping[ConsumerId, int],
        index_topics: Mapping[str, str] = MappingProxyType({}),
        ledgers: Mapping[str, Ledger] = MappingProxyType({}),
        pending_estimate: PendingEstimate | None = None,
    ) -> None:
        """Make a pipeline whose consumers go on after the consumer sequences in `sequences`.

        `index_topics`: by stream whose index is made here, its index topic. `ledgers`: of the
        streams that have one. `pending_estimate`: None leaves num_pending unknown.
        """
        self._streams = streams
        self._addressing = {name: make_addressing(s) for name, s in streams.items()}
        self._screens: Recent[tuple[object, ...], _Screen] = Recent()
        self._by_readers: Recent[tuple[Dictionary, int], tuple[tuple[Reader, ...], _Screen]] = Recent()
        """By dictionary and the id of a task's readers, which are mostly those of the last round."""
        self._pending_estimate = pending_estimate
        self._sequencing = Sequencing(ledgers, index_topics)
        self._deliveries = Deliveries(dict(sequences), self._sequencing)
        self._indexing = Indexing({name: streams[name] for name in index_topics}, index_topics)

    def run(self, tasks: Sequence[Task], now: int) -> RoundResult:
        """Process the tasks in order, and return the round's batches, offers and progress. Without
        tasks, only make the chunk headers that are due, and renew the ledgers of idle partitions.
        `now`: ms since 1970, also written on output records."""
        gathered = Gathering()
        if self._pending_estimate is not None:
            self._pending_estimate.begin_round()
        ledger, given_out = self._sequencing.give_out(tasks, now)
        for task in tasks:
            progress = _stay(task, gathered.progress) or self._run_task(task, now, gathered)
            gathered.progress.append(progress)
        self._deliveries.flush(gathered)
        sealed, index = self._indexing.finish(now)
        return gathered.finish(ledger, given_out, index, sealed)

    def renew(self, sequences: Mapping[ConsumerId, int]) -> None:
        """Have the next round find out anew what the readers want and where their records go, since some of them have
        changed. Call between two rounds. `sequences`: by consumer, the last consumer sequence given out."""
        self._screens.clear()
        self._by_readers.clear()
        self._deliveries = Deliveries(dict(sequences), self._sequencing)

    @property
    def has_growing_chunks(self) -> bool:
        """Whether a chunk has records that no header covers yet, so that its header comes due
        without a round. Not while a round runs."""
        return self._indexing.has_more

    def close(self, now: int) -> RoundResult:
        """Return the headers of all chunks that are still growing, even small ones, and count their
        topics; the rest of the result is empty. Call after the last `run`. A later pipeline goes on with chunks that are
        not full. `now`: ms since 1970."""
        sealed, index = self._indexing.finish(now, last=True)
        return RoundResult(index=index, sealed=sealed, counts=Counts(index_topics={each.topic for each in index}))

    def _run_task(self, task: Task, now: int, gathered: Gathering) -> Progress:
        """Process a task, and add its results to `gathered`. Return how far it has come. `now`: ms
        since 1970."""
        topic, partition = task.source
        screen = self._screen(task)
        at, stopped = LogPosition(task.position), False
        read_ms: int | None = None
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
                stopped = self._streams[task.stream].on_corrupt is OnCorrupt.STOP
                gathered.corruptions.append(Corruption(task.stream, task.source, piece, not stopped))
                at = LogPosition(max(at.position, piece.base_offset) if stopped else piece.next_offset)
                if stopped:
                    break
            else:
                at = LogPosition(piece.records.next_offset)
                read_ms = int(piece.records.timestamp[-1]) if len(piece.records) else read_ms
                self._deal(task, piece, screen, view, now, gathered)
            if seal is not None:
                seal.add(piece, now)
        if not stopped:
            # the rest of the task's range holds no records
            at = find_log_position(task.fetched, max(at.position, min(task.stop, task.fetched.next_offset)))
        if view is not None:
            gathered.beyond |= view.close(at.position)
        return Progress(task, at, stopped, read_ms=read_ms)

    def _deal(
        self, task: Task, piece: Addressed, screen: _Screen, view: View | None, now: int, gathered: Gathering
    ) -> None:
        """Match a decoded slice, and add its records to the output batches of the readers that want
        them, or to the offers of readers with machines. `now`: ms since 1970."""
        self._count(task, piece, gathered)
        selection, crowd = screen.audience.select(piece.codes), screen.plan.crowd
        ahead = UNKNOWN if view is None else view.look(piece.records)
        if ahead is None or task.only is not None or task.floors:
            wanted = _narrow(task, piece, selection)
        else:
            self._deliveries.add_crowd(task, piece, crowd, screen.piles.deal(selection), ahead, now)
            wanted = {i: selection.of(i) for i in selection.wanting(crowd.others)}
        sights = view.pass_by(piece.records, wanted, ahead) if view is not None else {}
        sifted = screen.masks.sift(piece, wanted, now)
        for i, tally in sifted.tallies.items():
            gathered.note(task.readers[i].id, tally)
        # consumers with machines are offered the rows; all others get them into their output here
        offered = {i: rows for i, rows in sifted.rows.items() if task.readers[i].has_machine}
        if offered:
            self._offer(task, piece, offered, gathered)
            if view is not None:
                beyond = {task.readers[i].id: sights[i].count if i in sights else 0 for i in offered}
                gathered.beyond |= view.tell(beyond)
        self._deliveries.add(task, piece, screen.plan, Passed(sifted.rows, wanted, sights), now, gathered)

    def _offer(self, task: Task, piece: Addressed, wanted: Mapping[int, Ints], gathered: Gathering) -> None:
        """Copy the rows that machines want out of the slice, once for all of them, and add an offer
        for each reader. `wanted`: rows by reader number. Rows without a stream sequence are counted
        and left out."""
        rows = distinct(np.concatenate(list(wanted.values())))
        sequences = self._sequencing.find_sequences(task.stream, task.source, piece.records.offset[rows])
        gathered.unsequenced[task.stream] += int((sequences == 0).sum())
        rows, sequences = rows[sequences > 0], sequences[sequences > 0]
        if not rows.size:
            return
        kept = keep(piece, rows, sequences)
        for i, own in wanted.items():
            (places,) = are_among(rows, own).nonzero()
            if first := task.readers[i].first_sequence:
                places = places[sequences[places] >= first]
            if places.size:
                gathered.offers.append((task.source, Offer(task.readers[i].id, kept, places)))

    @staticmethod
    def _count(task: Task, piece: Addressed, gathered: Gathering) -> None:
        """Count a slice's records: decoded, indexed, and without a subject."""
        gathered.decoded[task.stream] += len(piece.records)
        if task.indexed:
            gathered.indexed[task.stream] += len(piece.records)
        if len(piece.records):
            gathered.reads.append(_describe_read(task, piece))

    def _screen(self, task: Task) -> _Screen:
        """Return the subject matcher and filters for exactly the task's readers, made at the first
        call for them."""
        dictionary = self._addressing[task.stream].dictionary(*task.source)
        if (found := self._by_readers.get((dictionary, id(task.readers)))) is not None and found[0] is task.readers:
            return found[1]
        key = (dictionary, *(reader.id for reader in task.readers))
        # sets of readers change while consumers catch up; old screens would pile up
        screen = self._screens.get(key)
        if screen is None:
            screen = self._make_screen(dictionary, task)
            self._screens.put(key, screen, MOST_SCREENS)
        self._by_readers.put((dictionary, id(task.readers)), (task.readers, screen), MOST_SCREENS)
        return screen

    def _make_screen(self, dictionary: Dictionary, task: Task) -> _Screen:
        properties, values = self._streams[task.stream].properties, [reader.values for reader in task.readers]
        audience = Audience(dictionary, [reader.subjects for reader in task.readers], values)
        plan = self._deliveries.plan(task.readers)
        return _Screen(
            audience,
            Masks([reader.filter for reader in task.readers], properties, values),
            plan,
            Piles(audience, plan.crowd.numbers, plan.crowd.bounds),
        )


def _describe_read(task: Task, piece: Addressed) -> SliceRead:
    """Return what was read in a slice that has records."""
    offsets, lost = piece.records.offset, np.flatnonzero(piece.codes < 0)
    example = None
    if lost.size:
        row = int(lost[0])
        example = int(offsets[row]), REASONS[-1 - int(piece.codes[row])].value
    partition = task.stream, task.source
    end = piece.records.next_offset
    return SliceRead(partition, int(offsets[0]), end, len(offsets), piece.count_unaddressed(), example)


def _stay(task: Task, done: Sequence[Progress]) -> Progress | None:
    """Return the progress of a task that must not be processed, since a corrupt batch is in its
    way; None if the task is to be processed. `done`: the progress of the tasks before it.

    The corrupt batch is in an earlier part of the task's fetch. Or it is in another partition of
    its cursor group, and the task has readers with machines, which need the order of sequences.
    """
    before = next(
        (each for each in done if (each.stopped or each.is_put_off) and each.task.fetched is task.fetched), None
    )
    if before is not None:
        return replace(before, task=task)
    is_ordered = task.cursor_group and any(reader.has_machine for reader in task.readers)
    group = (task.stream, task.cursor_group)
    if is_ordered and any(each.stopped and (each.task.stream, each.task.cursor_group) == group for each in done):
        return Progress(task, LogPosition(task.position), is_put_off=True)
    return None


def _unite(first: tuple[Field, ...], second: tuple[Field, ...]) -> tuple[Field, ...]:
    """Return the fields of both, each once, sorted by their text; `first` as it is if `second` is
    empty."""
    return first if not second else tuple(sorted({*first, *second}, key=str))


def _narrow(task: Task, piece: Addressed, selection: Selection) -> dict[int, Ints]:
    """Return, by reader number, the rows of a slice that match its subjects and that its cursor and
    floor let it have (before its filter). Readers without rows are left out."""
    wanted = {i: selection.of(i) for i in selection.wanting()}
    if task.only is None and not task.floors:
        return wanted
    for i, rows in wanted.items():
        if task.only is not None:
            rows = rows[np.isin(piece.records.offset[rows], task.only, assume_unique=True)]
        floor = task.floors.get(task.readers[i].id)
        if floor is not None:
            rows = rows[piece.records.offset[rows] >= floor]
        wanted[i] = rows
    return {i: rows for i, rows in wanted.items() if rows.size}
