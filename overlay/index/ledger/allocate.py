"""Giving out sequences: what the sequencer of a stream of several partitions decides, round after round. No IO.

A round takes, of each partition, the offsets that have come since the round before, and gives them sequences: the partitions in
the order of topic and partition, the offsets of each in a row. From the same standing and the same offsets the same round
comes, whoever asks and in whatever order he names them.

How the offsets were cut into rounds has no say in the following: which offsets get sequences (all, and none twice); that
sequences follow the offsets within a partition; that none is left out; and, as long as only one partition has anything new,
which sequence is whose. A round may also be cut between two partitions. It does have a say in how the partitions interleave: of
two records of different partitions the one in the earlier round comes first. So sequences cannot be worked out again
from the logs. The ledger is what they are, and no one may tell of a sequence before its round is committed.

After a crash. Rounds that were not committed have never been; nobody has seen their sequences. The sequencer reads the
ledger up to its end, goes on behind the last run of each partition, and the sequences that were lost are given out
anew, perhaps to others. What it has read twice of a partition gets nothing twice, since `allocate` passes over what has a
sequence.

From one partition to several (design 11.7). While a stream has one partition, a record's sequence is its offset + 1, and
no ledger is written. `extend` makes the first round of its ledger: one run from offset 0 to the cut with exactly these
sequences. From then on the ledger alone says what sequences are, those of the past included.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from overlay.kafka.log_position import LogPosition, TopicPartition

from .entries import LedgerEntry, LedgerRun


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a ledger has come."""

    next_sequence: int = 1
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The first offset of each partition that has no sequence; 0 where a partition is not named."""

    def after(self, round: LedgerEntry) -> Standing:
        """How far it is with a round more, which may still be on its way."""
        return Standing(round.next_sequence, {**self.ends, **{run.source: run.next_offset for run in round.runs}})


def allocate(standing: Standing, taken: Mapping[TopicPartition, tuple[int, LogPosition]]) -> LedgerEntry | None:
    """Give sequences to what was taken: of each partition the offsets from the first up to the log position. None if
    nothing is new."""
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
    """The first round of the ledger of a stream that had one partition: up to the cut, sequence = offset + 1.

    The partition must be the only one whose records had sequences, and no record from the cut on may have been delivered.
    With a cut at 0 it is a restart, so that the ledger is there to be seen.
    """
    return LedgerEntry((LedgerRun(*source, 0, cut.position, 1, cut.epoch, cut.crc),))


def restart(standing: Standing, log_positions: Mapping[TopicPartition, LogPosition]) -> LedgerEntry:
    """Have partitions, at least one, go on at these log positions, and void what was sequenced from there on. Takes
    up one sequence.

    With the log positions where the partitions stand anyway, it voids nothing and keeps the knowledge of where that is.
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
