"""Deliveries of consumers without machines: a slice's rows into the batches of their output topics.
No IO.

Consumers may share an output topic and an envelope (`share_outputs`). Then one call of the kernel
writes the rows of all of them, and their deliveries are in the same batches: five thousand
consumers that want eight records each of a slice cost about as much as one that wants forty
thousand. Each consumer's deliveries are in the order of the log; those of different consumers are
not.

Sharing is decided once for a session. If it changed from slice to slice, two batches under
construction would hold deliveries of one consumer to one partition, and their order would be lost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np

from overlay.arrays import Ints
from overlay.consumer.endings import give_up
from overlay.match import Addressed
from overlay.output.assemble import Numbers, join_envelopes
from overlay.output.batch_builder import BatchBuilder, OutputBatch, OutputTopic
from overlay.output.dead_letters import encode_dead_letters
from overlay.output.undeliverable import find_refused
from overlay.state.shard_state import ConsumerId

from .pending_estimate import Sight
from .sequencing import Sequencing
from .task import Gathering, Reader, Task

_SETTINGS = tuple(each.name for each in fields(OutputTopic) if each.name != "envelope")


def share_outputs(readers: Mapping[ConsumerId, Reader]) -> dict[ConsumerId, Reader]:
    """Return the readers with the same output topic, and the same envelope but for their names, as
    recipients of one envelope. All others are returned as they are.

    A reader with a machine keeps its own, since its machine delivers. So does one with dead
    letters: what its output can never take depends on the size of its own tokens.
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


@dataclass(frozen=True, slots=True)
class Share:
    """What one reader gets of a slice: `rows`, ascending, at least one. `wanted`: the rows of its
    subjects, among which `rows` are. `sight`: what lies ahead of it after the slice, None if that is
    unknown."""

    reader: Reader
    rows: Ints
    wanted: Ints
    sight: Sight | None


@dataclass(slots=True)
class Deliveries:
    """Writes deliveries into batches, and gives them their consumer sequences. Not thread-safe.

    `sequences`: by consumer, the last consumer sequence given out.
    """

    sequences: dict[ConsumerId, int]
    sequencing: Sequencing
    _builder: BatchBuilder = field(default_factory=BatchBuilder)
    _recipients: dict[OutputTopic, dict[int, ConsumerId]] = field(default_factory=dict)
    """By output topic, the recipients that have deliveries in the batches under construction."""

    def add(self, task: Task, piece: Addressed, shares: Sequence[Share], now: int, gathered: Gathering) -> None:
        """Write the deliveries of a slice. `now`: ms since 1970. Adds dead letters and counts to
        `gathered`."""
        by_output: dict[OutputTopic, list[Share]] = {}
        for share in shares:
            reader = share.reader
            if reader.output_topic is None:
                continue
            if reader.first_sequence or reader.dead_letter_topic is not None:
                share = replace(share, rows=self._admit(task, piece, share, now, gathered))
                if not share.rows.size:
                    continue
            by_output.setdefault(reader.output_topic, []).append(share)
        for output_topic, together in by_output.items():
            self._write(task, piece, output_topic, together, now, gathered)

    def flush(self) -> Iterator[tuple[tuple[ConsumerId, ...], OutputBatch]]:
        """Close all batches. Yield them, each with the consumers whose deliveries it may hold; for
        a record that is too large for its topic, that is one consumer."""
        for output_topic, outgoing in self._builder.flush():
            there = self._recipients[output_topic]
            is_oversized = outgoing.oversized_offset >= 0
            yield (there[outgoing.recipient],) if is_oversized else tuple(there.values()), outgoing
        self._recipients.clear()

    def _admit(self, task: Task, piece: Addressed, share: Share, now: int, gathered: Gathering) -> Ints:
        """Return the rows that get a consumer sequence: those from the reader's first stream
        sequence on that its output can take. Adds dead letters for the others that have a topic for
        these. `now`: ms since 1970."""
        reader, rows = share.reader, share.rows
        sequences = self.sequencing.find_sequences(task.stream, task.source, piece.records.offset[rows])
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
        gathered.dead_letters[reader.id] += refused.size
        return np.delete(rows, refused)

    def _write(
        self, task: Task, piece: Addressed, output_topic: OutputTopic, shares: Sequence[Share], now: int,
        gathered: Gathering,
    ) -> None:  # fmt: skip
        """Write the deliveries of readers that share an output topic; one after the other, each
        reader's in the order of the log. `now`: ms since 1970."""
        counts = np.array([share.rows.size for share in shares], np.int64)
        rows = shares[0].rows if len(shares) == 1 else np.concatenate([share.rows for share in shares])
        ends = np.cumsum(counts)
        # of each row, its place among those of its reader
        places = np.arange(rows.size) - np.repeat(ends - counts, counts)
        last = np.array([self.sequences.get(share.reader.id, 0) for share in shares], np.int64)
        numbers = Numbers(
            self.sequencing.find_sequences(task.stream, task.source, piece.records.offset[rows]),
            places + np.repeat(last + 1, counts),
            pending=_count_pending(shares, counts, places),
            recipients=np.repeat(np.array([share.reader.recipient for share in shares], np.int64), counts),
        )
        self._builder.add(output_topic, piece, rows, task.source[1], numbers, now)
        times = piece.records.timestamp
        figures = (last + counts, counts, times[rows[ends - 1]], times[rows[ends - counts]])
        there = self._recipients.setdefault(output_topic, {})
        for share, sequence, count, newest, oldest in zip(shares, *(f.tolist() for f in figures), strict=True):
            consumer = share.reader.id
            there[share.reader.recipient] = consumer
            self.sequences[consumer] = sequence
            gathered.delivered[consumer] += count
            gathered.newest[consumer] = newest
            gathered.oldest.setdefault(consumer, oldest)


def _count_pending(shares: Sequence[Share], counts: Ints, places: Ints) -> Ints | None:
    """Return num_pending after each delivery, int64; 0 where it is not exactly known, and None if it
    is known nowhere. `counts`: of each share's rows; `places`: of each row among those of its
    share."""
    is_known = [share.sight is not None and share.sight.is_exact for share in shares]
    if not any(is_known):
        return None
    ahead = [0 if share.sight is None else share.sight.count + share.wanted.size - 1 for share in shares]
    if any(share.rows.size < share.wanted.size for share in shares):
        # records that a filter left out count as pending until the reader has passed them
        places = np.concatenate([np.searchsorted(share.wanted, share.rows) for share in shares])
    pending: Ints = (np.repeat(ahead, counts) - places) * np.repeat(is_known, counts)
    return pending
