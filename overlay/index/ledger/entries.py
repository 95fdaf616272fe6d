"""Ledger records: which offsets of which partitions got which stream sequences, as key and value of
a Kafka record.

A run gives `count` offsets of a partition, from `first_offset` on, as many sequences, from
`first_sequence` on. What the sequencer gives out at one time is one record (a ledger entry) with a
run for each partition; its runs follow each other in sequence without a gap. An offset that no
reader ever sees (a control record, an aborted one, one that compaction removed) has a sequence like
any other: to readers it is a deleted message.

A run of no records restarts its partition: the partition continues at `first_offset`, and the
sequences of offsets from there on are void. It is written if a log was cut or created again. It is
also written to keep the ends of partitions known when retention of the index topic may remove the
runs that tell them, and as the first run of a ledger if the stream's only partition was empty so
far.

The key is text for people, `run STREAM FIRST_SEQUENCE`. Unlike chunk headers, ledger records are
never replaced or merged, and their order in the log counts. In a compacted topic this needs keys
that never repeat, and these never do: every record takes up at least one sequence (one of restarts
alone takes up exactly one), and the sequencer continues above all committed ones. The key of an
aborted record may come again, but Kafka's cleaner removes aborted records without looking at their
keys.

The value, little-endian:

    at  0  uint8   version = 1
    at  1  uint8   kind = 2
    at  2  uint32  CRC-32C of everything after it
    at  6  int64   first sequence
    at 14  uint16  topics
    at 16  uint32  runs
    at 20          the topics: uint16 bytes of the name, the name; then the runs in the order of
                   their sequences

    run:  uint16 topic, its place among the topics; int32 partition; int64 first offset;
          int64 count, 0 restarts; int32 leader epoch of the batch that ends at first offset + count;
          int64 its CRC, -1 not known

The last two make the end of a partition's last run a log position: it can detect that the log below
it is not the one that was sequenced (overlay/kafka/log_position.py,
docs/exactly-once.md#log-identity).

For any other value `decode` returns a `Foreign`, as with chunk headers
(overlay/index/skip/encode.py). Values are read many at a time (`parse`), which gives such a value a
Flaw.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from overlay.arrays import Bytes, Int32s, Ints, Structs, UInt16s, Words
from overlay.index.skip.encode import RUNS, Flaw, Foreign, check, lay_out, look, wrap
from overlay.index.skip.murmur import hash128
from overlay.kafka.log_position import TopicPartition
from overlay.kernels import kernel

HEAD = np.dtype(
    [
        ("version", "u1"),
        ("kind", "u1"),
        ("crc_of_value", "<u4"),
        ("first_sequence", "<i8"),
        ("topics", "<u2"),
        ("runs", "<u4"),
    ]
)
RUN = np.dtype(
    [
        ("topic", "<u2"),
        ("partition", "<i4"),
        ("first_offset", "<i8"),
        ("count", "<i8"),
        ("epoch", "<i4"),
        ("crc", "<i8"),
    ]
)
_PAYLOAD = 6
_HEAD, _RUN = HEAD.itemsize, RUN.itemsize
_BEYOND = 1 << 62
MOST_SEQUENCE = 1 << 61
"""A ledger that ends above this was written by a stranger: no stream gets there. Entries are read up to twice as much,
so the ledger could not be continued for long."""
MOST_NAME = 249
"""Bytes that the name of a Kafka topic may have. A longer one in an entry is a stranger's."""
_KEY = re.compile(r"run (\S+) (\d{1,19})", re.ASCII)


@dataclass(frozen=True, slots=True)
class LedgerRun:
    """Consecutive offsets of a partition with consecutive sequences: offset first_offset + i has
    sequence first_sequence + i, for 0 <= i < count. A count of 0 is a restart: the partition
    continues at first_offset.
    """

    topic: str
    partition: int
    first_offset: int
    count: int
    first_sequence: int
    epoch: int = -1
    """Leader epoch of the batch that ends at next_offset; -1 if unknown."""
    crc: int = -1
    """CRC of that batch; -1 if unknown."""

    @property
    def source(self) -> TopicPartition:
        return self.topic, self.partition

    @property
    def next_offset(self) -> int:
        return self.first_offset + self.count

    @property
    def next_sequence(self) -> int:
        return self.first_sequence + self.count


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """The runs of one ledger record, at least one. Each run has as its first_sequence the
    next_sequence of the run before. Raises ValueError for other runs.
    """

    runs: tuple[LedgerRun, ...]

    def __post_init__(self) -> None:
        if not self.runs or any(one.next_sequence != two.first_sequence for one, two in pairwise(self.runs)):
            raise ValueError(f"no round of one run after the other: {self.runs}")

    @property
    def first_sequence(self) -> int:
        return self.runs[0].first_sequence

    @property
    def next_sequence(self) -> int:
        """Return the lowest sequence that the next entry may begin with. An entry of restarts alone
        uses up one sequence.
        """
        return max(self.runs[-1].next_sequence, self.first_sequence + 1)


@dataclass(frozen=True, slots=True, eq=False)
class LedgerEntries:
    """Ledger entries (values of records) that were read together, as columns. `flaws`: a Flaw per
    value, 0 if it could be read. Value i has the runs starts[i] to starts[i + 1] - 1; none if it
    has a flaw.
    """

    first_sequence: Ints
    """One per value, like `flaws`."""
    flaws: Bytes
    starts: Ints
    sources: tuple[TopicPartition, ...]
    source: Ints
    """Index in `sources` of each run's partition. The arrays below have one item per run too."""
    first_offset: Ints
    count: Ints
    epoch: Ints
    crc: Ints

    def find_gap(self, next_sequence: int) -> int | None:
        """Return the first sequence after a gap in the sequences of these entries, None if there is no gap.

        `next_sequence`: the one that the first entry should begin with; 1 if that is unknown, since retention may have
        removed the entries before it. If any value has a flaw, None is returned: that value may be what fills a gap.
        """
        if self.flaws.any() or not self.first_sequence.size:
            return None
        sums = np.concatenate(([0], np.cumsum(self.count)))[self.starts]
        ends = self.first_sequence + np.maximum(np.diff(sums), 1)
        first = next_sequence if next_sequence > 1 else int(self.first_sequence[0])
        gaps = np.flatnonzero(self.first_sequence > np.concatenate(([first], ends[:-1])))
        return int(self.first_sequence[gaps[0]]) if gaps.size else None


def encode_key(stream: str, first_sequence: int) -> bytes:
    """Return the key of the ledger record of an entry that begins with sequence `first_sequence`."""
    return f"run {stream} {first_sequence}".encode()


def decode_key(key: bytes) -> tuple[str, int] | None:
    """Return stream and first sequence of a ledger record's key; None for any other key."""
    found = _KEY.fullmatch(key.decode(errors="replace"))
    return (found[1], int(found[2])) if found else None


def encode(stream: str, round: LedgerEntry) -> tuple[bytes, bytes]:
    """Return key and value of the record of a ledger entry. Raises ValueError for numbers and names that no record can
    hold.
    """
    try:
        value = _encode_value(round)
    except OverflowError as error:
        raise ValueError(f"no record can hold {round}: {error}") from error
    return encode_key(stream, round.first_sequence), value


def _encode_value(round: LedgerEntry) -> bytes:
    names = sorted({run.topic for run in round.runs})
    place = {name: i for i, name in enumerate(names)}
    head = np.zeros(1, HEAD)
    head["first_sequence"], head["topics"], head["runs"] = round.first_sequence, len(names), len(round.runs)
    rows = [(place[run.topic], run.partition, run.first_offset, run.count, run.epoch, run.crc) for run in round.runs]
    texts = [name.encode() for name in names]
    payload = b"".join(
        [
            head.tobytes()[_PAYLOAD:],
            *(len(text).to_bytes(2, "little") + text for text in texts),
            np.array(rows, RUN).tobytes(),
        ]
    )
    return wrap(RUNS, payload)


def decode(value: bytes | None) -> LedgerEntry | Foreign:
    """Return the ledger entry that a record's value holds, or Foreign with the reason if it holds
    none (also for None, a record without a value).
    """
    rounds = parse_values([value])
    return Foreign.of(rounds.flaws[0]) if rounds.flaws[0] else read_round(rounds, 0)


def read_round(rounds: LedgerEntries, row: int) -> LedgerEntry:
    """Return value number `row` as a ledger entry. The value must not have a flaw."""
    runs = []
    sequence = int(rounds.first_sequence[row])
    for i in range(int(rounds.starts[row]), int(rounds.starts[row + 1])):
        topic, partition = rounds.sources[rounds.source[i]]
        first_offset, count, epoch, crc = (
            int(column[i]) for column in (rounds.first_offset, rounds.count, rounds.epoch, rounds.crc)
        )
        runs.append(LedgerRun(topic, partition, first_offset, count, sequence, epoch, crc))
        sequence += count
    return LedgerEntry(tuple(runs))


def parse_values(values: Sequence[bytes | None]) -> LedgerEntries:
    """Read ledger values that are Python bytes, None for a record without a value. A value that
    cannot be read gets a flaw, and nothing raises.
    """
    return parse(*lay_out(values))


def parse(buf: Bytes, at: Ints, size: Ints) -> LedgerEntries:
    """Read the ledger values buf[at[i] : at[i] + size[i]] into columns; a size of -1 means no
    value. A value that cannot be read, or whose numbers cannot be true, gets a flaw. Nothing
    raises.
    """
    heads = np.zeros(at.size, HEAD)
    flaws = np.zeros(at.size, np.uint8)
    look(buf, at, size, RUNS, heads.view(np.uint8).reshape(at.size, _HEAD), flaws)
    check(buf, at, size, heads["crc_of_value"], flaws)
    first_sequence = heads["first_sequence"].copy()
    topics, counts = (heads[name].astype(np.int64) for name in ("topics", "runs"))
    counts[flaws != 0] = 0
    runs_at = np.zeros(at.size, np.int64)
    _place(buf, at, size, topics, counts, runs_at, flaws)
    rows = _copy_rows(buf, runs_at, counts)
    figures = np.array([rows[name] for name in ("topic", "partition", "first_offset", "count")], np.int64)
    if _mark_false_figures(first_sequence, topics, counts, figures, flaws):
        rows = rows[np.repeat(flaws == 0, counts)]
        counts[flaws != 0] = 0
    sources, source = _find_sources(buf, at, topics, counts, rows)
    starts = np.zeros(at.size + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    first_offset, count, epoch, crc = (
        rows[name].astype(np.int64) for name in ("first_offset", "count", "epoch", "crc")
    )
    return LedgerEntries(first_sequence, flaws, starts, sources, source, first_offset, count, epoch, crc)


def _copy_rows(buf: Bytes, runs_at: Ints, counts: Ints) -> Structs:
    rows = np.empty(int(counts.sum()), RUN)
    _copy(buf, runs_at, counts, rows.view(np.uint8).reshape(rows.size, _RUN))
    return rows


def _find_sources(
    buf: Bytes, at: Ints, topics: Ints, counts: Ints, rows: Structs
) -> tuple[tuple[TopicPartition, ...], Ints]:
    """Return the distinct partitions (topic, number) of the runs, and for each run the index of its
    partition among them. `at`: where each ledger value begins in `buf`. `topics`, `counts`: numbers
    of topics and runs by value. `rows`: the runs of all values, of dtype RUN.
    """
    prints = np.empty(rows.size, np.uint64)
    names = np.empty((2, rows.size), np.int64)
    scratch = np.empty((3, int(topics.max(initial=0))), np.int64)
    _fingerprint(buf, at, topics, counts, rows["topic"].copy(), rows["partition"].copy(), scratch, prints, names)
    _, examples, source = np.unique(prints, return_index=True, return_inverse=True)
    return tuple(
        (
            buf[names[0, i] : names[0, i] + names[1, i]].tobytes().decode(errors="replace"),
            int(rows["partition"][i]),
        )
        for i in examples.tolist()
    ), source.astype(np.int64)


@kernel
def _place(buf: Bytes, at: Ints, size: Ints, topics: Ints, counts: Ints, runs_at: Ints, flaws: Bytes) -> None:
    """Write to `runs_at` where the runs of each value begin in `buf`. A value whose topics and runs
    do not fill it exactly gets the flaw SIZES and a count of 0. `topics`, `counts`: numbers of
    topics and runs by value. Values with a flaw are passed over.
    """
    for i in range(at.size):
        if flaws[i]:
            continue
        pos, end = at[i] + _HEAD, at[i] + size[i]
        for _ in range(topics[i]):
            if pos + 2 > end:
                break
            pos += 2 + (np.int64(buf[pos]) | np.int64(buf[pos + 1]) << 8)
        else:
            if pos + _RUN * counts[i] == end:
                runs_at[i] = pos
                continue
        flaws[i] = Flaw.SIZES
        counts[i] = 0


@kernel
def _copy(buf: Bytes, runs_at: Ints, counts: Ints, out: Bytes) -> None:
    put = 0
    for i in range(counts.size):
        pos = runs_at[i]
        for _ in range(counts[i]):
            for j in range(_RUN):
                out[put, j] = buf[pos + j]
            pos += _RUN
            put += 1


@kernel
def _mark_false_figures(first_sequence: Ints, topics: Ints, counts: Ints, figures: Ints, flaws: Bytes) -> bool:
    """Set Flaw.FIGURES for values that cannot be true: no runs, a topic number that the value does
    not have, a first sequence below 1, or a number that is negative or too large. Return True if a
    flaw was set. Values that have a flaw already are passed over.

    `topics`, `counts`: numbers of topics and runs by value. `figures`: topic, partition, first
    offset and count by run, [4, runs].
    """
    topic, partition, first_offset, count = figures
    found = False
    run = 0
    for i in range(counts.size):
        if flaws[i]:
            continue
        sequence = first_sequence[i]
        holds = counts[i] > 0 and 0 < sequence < _BEYOND
        for j in range(run, run + counts[i]):
            holds = (
                holds
                and topic[j] < topics[i]
                and partition[j] >= 0
                and 0 <= first_offset[j] < _BEYOND
                and 0 <= count[j] < _BEYOND - first_offset[j]
                and sequence + count[j] < _BEYOND
            )
            if not holds:
                break
            sequence += count[j]
        run += counts[i]
        if not holds:
            flaws[i] = Flaw.FIGURES
            found = True
    return found


@kernel
def _fingerprint(
    buf: Bytes, at: Ints, topics: Ints, counts: Ints, topic: UInt16s, partition: Int32s, scratch: Ints, prints: Words,
    names: Ints,
) -> None:  # fmt: skip
    """Write for each run a 64-bit hash of its topic and partition to `prints`, and to `names` where
    the topic's name begins in `buf` and how many bytes it has. `topics`, `counts`: numbers of
    topics and runs by value. `scratch`: working memory, [3, most topics of a value].
    """
    run = 0
    for i in range(counts.size):
        if not counts[i]:
            continue
        pos = at[i] + _HEAD
        for j in range(topics[i]):
            length = np.int64(buf[pos]) | np.int64(buf[pos + 1]) << 8
            low, _ = hash128(buf, pos + 2, length, np.uint64(0))
            scratch[0, j], scratch[1, j], scratch[2, j] = np.int64(low), pos + 2, length
            pos += 2 + length
        for j in range(run, run + counts[i]):
            name = topic[j]
            # an odd factor keeps the partitions of a topic apart; 64 bits keep topics apart
            prints[j] = np.uint64(scratch[0, name]) ^ np.uint64(partition[j]) * np.uint64(0x9E3779B97F4A7C15)
            names[0, j], names[1, j] = scratch[1, name], scratch[2, name]
        run += counts[i]
