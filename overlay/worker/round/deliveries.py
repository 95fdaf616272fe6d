"""Deliveries of consumers without machines: a slice's rows into the batches of their output topics.
No IO.

Consumers may share an output topic and an envelope (`share_outputs`). Then one call of the kernel
writes the rows of all of them, and their deliveries are in the same batches: five thousand
consumers that want eight records each of a slice cost about as much as one that wants forty
thousand. Each consumer's deliveries are in the order of the log; those of different consumers need
not be.

Most readers of a crowd of thousands have no filter (`Crowd`). Which rows they get is found in one
pass over the records of a slice, for all of them at once. The others are looked at one by one.

Sharing is decided when a session begins, and changes only between two rounds (worker/changes.py). If it
changed from slice to slice, two batches under construction would hold deliveries of one consumer to
one partition, and their order would be lost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain, pairwise

import numpy as np

from overlay.arrays import Ints
from overlay.consumer.endings import UNDELIVERABLE, give_up
from overlay.match import Addressed
from overlay.match.audience import Dealt
from overlay.output.assemble import Numbers, join_envelopes
from overlay.output.batch_builder import BatchBuilder, OutputTopic
from overlay.output.dead_letters import encode_dead_letters
from overlay.output.undeliverable import find_refused
from overlay.state.shard_state import ConsumerId

from .pending_estimate import Sight
from .sequencing import Sequencing
from .task import Gathering, Reader, Task

_SETTINGS = tuple(each.name for each in fields(OutputTopic) if each.name != "envelope")


def share_outputs(readers: Mapping[ConsumerId, Reader]) -> dict[ConsumerId, Reader]:
    """Return the readers whose output topics have equal settings, and the same envelope but for their names, as
    recipients of one envelope. All others are returned as they are.

    A reader with a machine keeps its own, since its machine delivers. So does one with dead letters: what its output
    can never take depends on the size of its own tokens.
    """
    alike: dict[tuple[object, ...], list[Reader]] = defaultdict(list)
    for reader in readers.values():
        output_topic = reader.output_topic
        if output_topic is not None and not reader.has_machine and reader.dead_letter_topic is None:
            settings = tuple(getattr(output_topic, name) for name in _SETTINGS)
            alike[*settings, output_topic.envelope.form].append(reader)
    shared = dict(readers)
    for group in alike.values():
        if len(group) > 1:
            topics = [reader.output_topic for reader in group if reader.output_topic is not None]
            joined = replace(topics[0], envelope=join_envelopes([topic.envelope for topic in topics]))
            for number, reader in enumerate(group):
                shared[reader.id] = replace(reader, output_topic=joined, recipient=number)
    return shared


def keep_output(before: Reader, after: Reader) -> Reader:
    """Return a consumer's reader `after` a change, with the output that it shares with others `before`, if its output is
    the same but for that sharing; else `after` as it is."""
    old, new = before.output_topic, after.output_topic
    if old is None or new is None or before.dead_letter_topic is not None or after.dead_letter_topic is not None:
        return after
    is_same = old.envelope.form == new.envelope.form and all(getattr(old, n) == getattr(new, n) for n in _SETTINGS)
    return replace(after, output_topic=old, recipient=before.recipient) if is_same else after


class _Output:
    """What the recipients of one output topic were given, in arrays by recipient."""

    def __init__(self, output_topic: OutputTopic) -> None:
        self.output_topic = output_topic
        recipients = output_topic.envelope.consumers.bounds.size - 1
        self.consumers: list[ConsumerId] = [("", "")] * recipients
        self.sequences = np.zeros(recipients, np.int64)
        """The last consumer sequence of each."""
        self.counts = np.zeros(recipients, np.int64)
        """Deliveries of this round."""
        self.newest = np.zeros(recipients, np.int64)
        """The source timestamp of its last delivery in this round, ms since 1970."""
        self.oldest = np.zeros(recipients, np.int64)
        """The same of the first delivery."""

    def note(self, recipients: Ints, counts: Ints, newest: Ints, oldest: Ints) -> None:
        """Count deliveries of a slice: how many each of `recipients` got, and the source timestamps
        of its last and its first, ms since 1970."""
        self.sequences[recipients] += counts
        self.newest[recipients] = newest
        self.oldest[recipients] = np.where(self.counts[recipients] > 0, self.oldest[recipients], oldest)
        self.counts[recipients] += counts

    def close_round(self, gathered: Gathering) -> tuple[ConsumerId, ...]:
        """Add the counts of the round to `gathered`, and begin another one. Return the consumers
        that have deliveries."""
        given = np.flatnonzero(self.counts)
        consumers = [self.consumers[recipient] for recipient in given.tolist()]
        gathered.delivered.update(dict(zip(consumers, self.counts[given].tolist(), strict=True)))
        gathered.newest.update(zip(consumers, self.newest[given].tolist(), strict=True))
        gathered.oldest.update(zip(consumers, self.oldest[given].tolist(), strict=True))
        gathered.sequences.update(zip(consumers, self.sequences[given].tolist(), strict=True))
        self.counts[:] = 0
        return tuple(consumers)


@dataclass(frozen=True, slots=True, eq=False)
class Lane:
    """The readers of a task that write to one output topic. `recipients`: of each, its number among
    the recipients of the topic's envelope."""

    output: _Output
    recipients: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Crowd:
    """The readers of a task that are given every record of their subjects, whatever else it holds. They are kept as
    arrays, so that thousands of them cost no Python object for each slice. Readers with machines and those of pull
    consumers are not among them.

    `numbers`: of the readers, those of one output after the other; the readers of outputs[i] are
    numbers[bounds[i]:bounds[i+1]]. `recipients`: of each, its number among the recipients of its envelope. `others`:
    the numbers of all other readers, ascending.
    """

    outputs: tuple[_Output, ...]
    bounds: Ints
    numbers: Ints
    recipients: Ints
    others: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """Where the deliveries of a task's readers go. `places`: by reader number, its lane (readers
    that write to the same output topic) and its index in the lane's `recipients`. Readers with
    machines, and those of pull consumers, are not in it. `picky`: the numbers of readers that may
    not get all that matches, for their first stream sequence or their dead letters. `crowd`: the
    readers whose deliveries are found all at once; they are in `places` as well, since a task may
    have to look at each by itself.
    """

    places: Mapping[int, tuple[Lane, int]]
    picky: tuple[int, ...]
    crowd: Crowd


@dataclass(frozen=True, slots=True, eq=False)
class Passed:
    """What a slice has for readers, by reader number: `rows` that passed the filter, ascending, at
    least one; `wanted`, the rows of its subjects, among which `rows` are; `sights`, what lies ahead
    of it after the slice, if that is known."""

    rows: dict[int, Ints]
    wanted: Mapping[int, Ints]
    sights: Mapping[int, Sight]


def _find_crowd(readers: Sequence[Reader], places: Mapping[int, tuple[Lane, int]], picky: Collection[int]) -> Crowd:
    """Return the crowd of a task's readers. `places`, `picky`: as in Plan."""
    members: dict[_Output, list[int]] = defaultdict(list)
    others = set(range(len(readers)))
    for number in places.keys() - set(picky):
        if readers[number].takes_all:
            members[places[number][0].output].append(number)
            others.remove(number)
    numbers = list(chain.from_iterable(members.values()))
    return Crowd(
        tuple(members),
        np.cumsum([0, *map(len, members.values())]),
        np.array(numbers, np.int64),
        np.array([readers[number].recipient for number in numbers], np.int64),
        np.array(sorted(others), np.int64),
    )


class Deliveries:
    """Writes deliveries into batches, and gives them their consumer sequences. Not thread-safe.

    `sequences`: by consumer, the last consumer sequence given out.
    """

    def __init__(self, sequences: Mapping[ConsumerId, int], sequencing: Sequencing) -> None:
        self._sequences, self._sequencing = sequences, sequencing
        self._builder = BatchBuilder()
        self._outputs: dict[OutputTopic, _Output] = {}
        self._filled: dict[OutputTopic, _Output] = {}
        """Those that have deliveries of this round."""

    def plan(self, readers: Sequence[Reader]) -> Plan:
        """Return where the deliveries of a task's readers go. Those with machines, and those of pull
        consumers, have none here."""
        by_output: dict[OutputTopic, list[int]] = {}
        for number, reader in enumerate(readers):
            if reader.output_topic is not None and not reader.has_machine:
                by_output.setdefault(reader.output_topic, []).append(number)
        places: dict[int, tuple[Lane, int]] = {}
        for output_topic, numbers in by_output.items():
            own = [readers[number] for number in numbers]
            lane = Lane(self._enlist(output_topic, own), np.array([each.recipient for each in own], np.int64))
            places |= {number: (lane, place) for place, number in enumerate(numbers)}
        picky = [
            number
            for number in places
            if readers[number].first_sequence or readers[number].dead_letter_topic is not None
        ]
        return Plan(places, tuple(picky), _find_crowd(readers, places, picky))

    def _enlist(self, output_topic: OutputTopic, readers: Iterable[Reader]) -> _Output:
        output = self._outputs.setdefault(output_topic, _Output(output_topic))
        for reader in readers:
            if output.consumers[reader.recipient] != reader.id:
                output.consumers[reader.recipient] = reader.id
                output.sequences[reader.recipient] = self._sequences.get(reader.id, 0)
        return output

    def add(self, task: Task, piece: Addressed, plan: Plan, passed: Passed, now: int, gathered: Gathering) -> None:
        """Write the deliveries of a slice, and give them their consumer sequences. Readers that are
        not in the plan are passed over. Adds dead letters to `gathered`; `flush` adds the rest.
        Removes from `passed.rows` the rows that their reader does not get after all (those below its
        first sequence, and dead letters). `now`: ms since 1970."""
        for number in plan.picky:
            if number in passed.rows:
                passed.rows[number] = self._admit(task, piece, number, passed.rows[number], now, gathered)
        # only what is wanted costs anything, however many readers there are
        there: dict[Lane, list[int]] = {}
        for number in passed.rows:
            if number in plan.places:
                there.setdefault(plan.places[number][0], []).append(number)
        for lane, numbers in there.items():
            self._write(task, piece, lane, numbers, plan, passed, now)

    def add_crowd(self, task: Task, piece: Addressed, crowd: Crowd, dealt: Dealt, ahead: Sight, now: int) -> None:
        """Write what a slice has for the readers of a crowd, and give the deliveries their consumer sequences. `dealt`: a
        pile for each output. `ahead`: what each reader has ahead of it after the slice. `now`: ms since 1970."""
        if not dealt.rows.size:
            return
        parts = [slice(int(first), int(end)) for first, end in pairwise(crowd.bounds)]
        last = np.concatenate(
            [o.sequences[crowd.recipients[part]] for o, part in zip(crowd.outputs, parts, strict=True)]
        )
        sequences = self._sequencing.find_sequences(task.stream, task.source, piece.records.offset[dealt.rows])
        numbers = dealt.places + last[dealt.members] + 1
        # in the slice; `ahead` is 0 where it is exact
        pending = dealt.counts[dealt.members] - dealt.places - 1 if ahead.is_exact else None
        recipients, times = crowd.recipients[dealt.members], piece.records.timestamp
        for output, part, (start, stop) in zip(crowd.outputs, parts, pairwise(dealt.bounds.tolist()), strict=True):
            if start == stop:
                continue
            columns = Numbers(
                sequences[start:stop],
                numbers[start:stop],
                pending=None if pending is None else pending[start:stop],
                recipients=recipients[start:stop],
            )
            self._filled[output.output_topic] = output
            self._builder.add(output.output_topic, piece, dealt.rows[start:stop], task.source[1], columns, now)
            some = np.flatnonzero(dealt.counts[part]) + part.start
            newest, oldest = times[dealt.last[some]], times[dealt.first[some]]
            output.note(crowd.recipients[some], dealt.counts[some], newest, oldest)

    def flush(self, gathered: Gathering) -> None:
        """Close all batches, and add them to `gathered`, each with the consumers whose deliveries it
        may hold; for a record that is too large for its topic, that is one consumer. Adds the
        counts of the round as well. Call once a round, after the last `add`."""
        owners = {topic: output.close_round(gathered) for topic, output in self._filled.items()}
        self._filled.clear()
        for output_topic, outgoing in self._builder.flush():
            is_oversized = outgoing.oversized_offset >= 0
            owner = self._outputs[output_topic].consumers[outgoing.recipient]
            gathered.batches.append(((owner,) if is_oversized else owners[output_topic], outgoing))

    def _admit(self, task: Task, piece: Addressed, number: int, rows: Ints, now: int, gathered: Gathering) -> Ints:
        """Return the rows that get a consumer sequence: those from the reader's first stream
        sequence on. If the reader has a dead letter topic, leave out those that its output can
        never take, and add a dead letter for each to `gathered`. Without one they are returned too.

        `number`: the reader's number. `rows`: the rows of `piece` that its filter accepts,
        ascending. `now`: ms since 1970.
        """
        reader = task.readers[number]
        sequences = self._sequencing.find_sequences(task.stream, task.source, piece.records.offset[rows])
        if reader.first_sequence:
            rows, sequences = rows[late := sequences >= reader.first_sequence], sequences[late]
        if reader.dead_letter_topic is None or not rows.size:
            return rows
        # before consumer sequences are given out, so that dead letters leave no hole in them
        assert reader.output_topic is not None
        refused = find_refused(reader.output_topic, piece, rows, now)
        if not refused.size:
            return rows
        dead_letters = [give_up(sequence) for sequence in sequences[refused].tolist()]
        pressed = encode_dead_letters(reader.dead_letter_topic, piece, rows[refused], dead_letters, task.source[1], now)
        gathered.batches += (((reader.id,), outgoing) for outgoing in pressed)
        gathered.dead_letters[reader.id, UNDELIVERABLE] += refused.size
        return np.delete(rows, refused)

    def _write(
        self, task: Task, piece: Addressed, lane: Lane, numbers: Sequence[int], plan: Plan, passed: Passed, now: int
    ) -> None:
        """Write the deliveries of the readers of a lane that have some, one reader after the other,
        each one's in the order of the log. `numbers`: of these readers. `now`: ms since 1970."""
        lists = [passed.rows[number] for number in numbers]
        counts = np.fromiter(map(len, lists), np.int64, len(lists))
        if not (total := int(counts.sum())):
            return
        rows = lists[0] if len(lists) == 1 else np.concatenate(lists)
        recipients = lane.recipients[[plan.places[number][1] for number in numbers]]
        ends = np.cumsum(counts)
        # of each row, its place among those of its reader
        places = np.arange(total) - np.repeat(ends - counts, counts)
        columns = Numbers(
            self._sequencing.find_sequences(task.stream, task.source, piece.records.offset[rows]),
            places + np.repeat(lane.output.sequences[recipients] + 1, counts),
            pending=_count_pending(numbers, passed, counts, places),
            recipients=np.repeat(recipients, counts),
        )
        self._filled[lane.output.output_topic] = lane.output
        self._builder.add(lane.output.output_topic, piece, rows, task.source[1], columns, now)
        some, ends = counts > 0, ends[counts > 0]
        times, counts = piece.records.timestamp, counts[some]
        lane.output.note(recipients[some], counts, times[rows[ends - 1]], times[rows[ends - counts]])


def _count_pending(numbers: Sequence[int], passed: Passed, counts: Ints, places: Ints) -> Ints | None:
    """Return num_pending after each delivery (int64, one per row); 0 where it is not exactly known, and
    None if it is known nowhere. `numbers`: of the readers; `counts`: of each one's rows; `places`: of each row
    among those of its reader."""
    sights = [passed.sights.get(number) for number in numbers] if passed.sights else []
    is_known = [sight is not None and sight.is_exact for sight in sights]
    if not any(is_known):
        return None
    wanted = [passed.wanted[number] for number in numbers]
    last = [0 if sight is None else sight.count + own.size - 1 for sight, own in zip(sights, wanted, strict=True)]
    if sum(own.size for own in wanted) > places.size:
        # records that a filter left out count as pending until the reader has passed them
        places = np.concatenate(
            [np.searchsorted(own, passed.rows[number]) for number, own in zip(numbers, wanted, strict=True)]
        )
    pending: Ints = (np.repeat(last, counts) - places) * np.repeat(is_known, counts)
    return pending
