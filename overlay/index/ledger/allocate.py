"""The sequencer's decision for a stream of several partitions: which sequences the new offsets get.
Pure.

Each ledger entry takes, of each partition, the offsets that are new since the entry before, and
gives them sequences: partitions in the order of topic and partition, offsets of each in a row. The
same state and the same offsets always give the same entry, in whatever order the partitions are
passed.

How offsets are cut into entries does not change these facts: every offset gets exactly one
sequence; within a partition sequences follow the offsets; no sequence is left out; and, while only
one partition has new records, which record gets which sequence. An entry may even be cut between
two partitions. The cutting does change how partitions interleave: of two records of different
partitions the one in the earlier entry comes first. So sequences cannot be computed again from the
logs. The ledger defines them, and no sequence may be told to a client before its entry is
committed.

After a crash, entries that were not committed do not exist, and no client has seen their sequences.
The sequencer reads the ledger to its end and continues after the last run of each partition. The
lost sequences are given out anew, perhaps to other records. Offsets that it reads a second time get
no second sequence: `allocate` skips offsets that have one.

From one partition to several (docs/exactly-once.md#several-partitions): while a stream has one
partition, a record's sequence is its offset + 1, and no ledger is written. `extend` makes the first
entry of its ledger: one run from offset 0 to the cut with exactly these sequences. From then on
only the ledger defines sequences, those of the past included.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from overlay.kafka.log_position import LogPosition, TopicPartition

from .entries import LedgerEntry, LedgerRun


@dataclass(frozen=True, slots=True)
class Standing:
    """The end of a ledger, where the sequencer continues: the next sequence, and for each partition
    the offset from which on none has one.
    """

    next_sequence: int = 1
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The first offset of each partition without a sequence; a partition that is not named begins
    at 0.
    """

    def after(self, round: LedgerEntry) -> Standing:
        """Return what the ledger's end would be after one more entry, which need not be committed
        yet. `self` stays as it is.
        """
        return Standing(round.next_sequence, {**self.ends, **{run.source: run.next_offset for run in round.runs}})


def allocate(standing: Standing, taken: Mapping[TopicPartition, tuple[int, LogPosition]]) -> LedgerEntry | None:
    """Return a ledger entry that gives the next sequences to new offsets, one run a partition, in
    the order of topic and partition; None if there are no new offsets. Writes nothing.

    `taken`: for each partition that was read, the first offset of the reading, and the log position
    where it ended. Offsets that have a sequence already are left out.
    """
    runs = []
    sequence = standing.next_sequence
    for source in sorted(taken):
        first, log_position = taken[source]
        first = max(first, standing.ends.get(source, 0))
        if log_position.position > first:
            run = LedgerRun(
                *source, first, log_position.position - first, sequence, log_position.epoch, log_position.crc
            )
            runs.append(run)
            sequence = run.next_sequence
    return LedgerEntry(tuple(runs)) if runs else None


def extend(source: TopicPartition, cut: LogPosition) -> LedgerEntry:
    """Return the first ledger entry of a stream that had one partition so far: one run that gives
    each offset of `source` below the cut the sequence offset + 1.

    `source` must be the only partition whose records had sequences, and no record from the cut on
    may have been delivered. With a cut at 0 the entry has no offsets: it only makes the ledger
    exist, and uses up sequence 1.
    """
    return LedgerEntry((LedgerRun(*source, 0, cut.position, 1, cut.epoch, cut.crc),))


def restart(standing: Standing, log_positions: Mapping[TopicPartition, LogPosition]) -> LedgerEntry:
    """Return a ledger entry after which these partitions (at least one) continue at these log
    positions. It has no records and uses up one sequence.

    Sequences of offsets from there on become void. With the positions at which the partitions end
    already, nothing becomes void: the entry only repeats them, so that retention cannot remove
    them.
    """
    sequence = standing.next_sequence
    return LedgerEntry(
        tuple(
            LedgerRun(
                *source,
                log_positions[source].position,
                0,
                sequence,
                log_positions[source].epoch,
                log_positions[source].crc,
            )
            for source in sorted(log_positions)
        )
    )
