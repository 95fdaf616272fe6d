"""Sequences given out by the service: ledger entries made while records are read. No IO.

The shard that keeps a stream's index also gives its sequences out. In each partition of the stream,
one cursor is where the sequences end so far (worker/cursors/cursor.py, `sequenced`), and no cursor
is ahead of it. What such cursors read in a round gets sequences first
(overlay/index/ledger/allocate.py), in one ledger entry for all partitions of a stream. Only then is
it matched and delivered. The entry goes into the transaction of the deliveries that use its
sequences: either both are there or neither. So ledger entries are as frequent as rounds, which take
longer the more there is to do. Records wait for their sequences no longer than for their
transaction. If many records arrive in small portions, they wait a little, so that the ledger has
fewer and longer runs (`Linger`).

Consumers that deliver outside of transactions must not use a sequence before its entry is
committed. Other shards see the entry only then. Both follow behind the head
(worker/cursors/order.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from overlay.arrays import Bytes
from overlay.index.ledger.allocate import allocate, restart
from overlay.index.ledger.entries import MOST_NAME, LedgerEntry, encode
from overlay.index.ledger.ledger import Ledger
from overlay.kafka.fetched import Fetched
from overlay.kafka.log_position import LogPosition, TopicPartition
from overlay.output.batch_builder import OutputBatch
from overlay.output.encoded_batch import encode_records
from overlay.output.record import Record

Ints = npt.NDArray[np.int64]

Parts = Mapping[TopicPartition, tuple[int, LogPosition]]

RENEW_MS = 3_600_000
"""Interval in ms at which the positions of partitions without new records are written again: far
below any retention."""

LINGER_S = 0.005
"""Shortest time in seconds between two ledger entries of a busy stream."""
LINGER_RATE = 1_000
"""Records a second from which on a stream counts as busy."""


class Reading(Protocol):
    """What was read of a partition: the offsets from `position` to `stop` of `fetched`."""

    @property
    def stream(self) -> str: ...
    @property
    def source(self) -> TopicPartition: ...
    @property
    def fetched(self) -> Fetched: ...
    @property
    def position(self) -> int: ...
    @property
    def stop(self) -> int: ...
    @property
    def sequenced(self) -> bool: ...


@dataclass(slots=True)
class Sequencing:
    """Gives stream sequences to records, and looks them up. Not thread-safe.

    `ledgers`: of the streams that have one; `topics`: by stream whose chunk index is kept here, its index topic.
    Sequences are given out here for the streams that are in both.
    """

    ledgers: Mapping[str, Ledger]
    topics: Mapping[str, str]
    _renewed: dict[str, int] = field(default_factory=dict)
    """By stream, when idle partitions were last written again, ms since 1970."""

    def give_out(self, readings: Iterable[Reading], now: int) -> tuple[list[OutputBatch], dict[str, int]]:
        """Give sequences to what was read with `sequenced`. Return the ledger entries as batches,
        which have to be committed, and the next sequence by stream that has such readings or
        entries. The ledgers in memory have the entries at once. `now`: ms since 1970.

        Ledgers whose partitions are idle are renewed in time, since retention may take their last
        entry.
        """
        taken: dict[str, dict[TopicPartition, tuple[int, LogPosition]]] = defaultdict(dict)
        for each in readings:
            if each.sequenced:
                end = min(each.stop, each.fetched.next_offset)
                taken[each.stream][each.source] = each.position, find_log_position(each.fetched, end)
        rounds: list[OutputBatch] = []
        given = set(taken)
        for stream in self.topics.keys() & self.ledgers.keys():
            ledger = self.ledgers[stream]
            for make in (self._renew, self._allocate):
                round = make(stream, taken.get(stream, {}), now)
                if round is not None:
                    refusal = ledger.append(round)
                    assert not refusal, (stream, round, refusal)
                    rounds.append(write_round(self.topics[stream], stream, round, now))
                    given.add(stream)  # each entry takes a sequence, also one that only repeats positions
        return rounds, {stream: self.ledgers[stream].next_sequence for stream in given}

    def _allocate(self, stream: str, parts: Parts, now: int) -> LedgerEntry | None:
        """Return the entry that gives sequences to `parts`: of each partition the first offset and
        the log position up to which it was read. None if all of these have sequences."""
        return allocate(self.ledgers[stream].standing, parts)

    def _renew(self, stream: str, parts: Parts, now: int) -> LedgerEntry | None:
        """Return an entry that repeats the positions of the partitions that are not in `parts`. None if no partition
        is idle. Looks only every RENEW_MS, for the first time so long after the first call for the stream; returns
        None in between. `now`: ms since 1970.
        """
        if now - self._renewed.setdefault(stream, now) < RENEW_MS:
            return None
        self._renewed[stream] = now
        standing = self.ledgers[stream].standing
        idle = {
            source: self.ledgers[stream].log_position_of(source)
            for source in standing.ends
            if source not in parts and len(source[0].encode()) <= MOST_NAME
        }
        return restart(standing, idle) if idle else None

    def find_sequences(self, stream: str, source: TopicPartition, offsets: Ints) -> Ints:
        """Return the stream sequence of each offset, int64: offset + 1 in a stream without a ledger.

        0 if the ledger has none for it. Such a record is delivered all the same to consumers without a machine,
        unless they begin at a start sequence.
        """
        ledger = self.ledgers.get(stream)
        return offsets + 1 if ledger is None else ledger.sequence_of(source, offsets)


@dataclass(slots=True)
class Linger:
    """Spaces the ledger entries of a busy stream: of three in a row, the third comes at least LINGER_S after the
    first. A stream is busy if it had more than LINGER_RATE records a second between the last two. Rounds of a backlog
    take longer than that anyway.
    """

    _last: dict[str, tuple[int, float]] = field(default_factory=dict)

    def find_pause(self, stream: str, next_sequence: int, now: float) -> float:
        """Return the seconds that the next entry of a stream has to wait, 0 if it need not.

        `next_sequence`: the one after the entry made at `now`, monotonic seconds.
        """
        before, then = self._last.get(stream, (next_sequence, now))
        self._last[stream] = next_sequence, now
        passed = now - then
        return max(0.0, LINGER_S - passed) if next_sequence - before > LINGER_RATE * passed else 0.0


def write_round(topic: str, stream: str, round: LedgerEntry, now: int) -> OutputBatch:
    """Return a ledger entry as a batch for partition 0 of the index topic. `now`: its timestamp, ms
    since 1970."""
    return OutputBatch(topic, 0, encode_records([Record(*encode(stream, round))], now))


def find_log_position(fetched: Fetched, position: int) -> LogPosition:
    """Return the log position of the offset `position` of a fetch. It has the epoch and checksum of
    the batch that ends right before it; neither if none does."""
    if position == fetched.next_offset:
        return fetched.log_position
    ending = fetched.batches[fetched.batches["last_offset"] == position - 1]
    if not ending.size:
        return LogPosition(position)
    return LogPosition(position, int(ending[-1]["leader_epoch"]), int(ending[-1]["crc"]))


def cut(fetched: Fetched, start: int, stop: int) -> Bytes:
    """Return the bytes of a fetch without the batches that lie entirely below offset `start`, or at
    and above `stop`.

    So the checksums of a batch are not computed again for every part of a fetch. If a transaction
    was aborted, all bytes are returned: the marker that ends it may lie before the part, and
    without the marker the part's records would count as aborted.
    """
    batches = fetched.batches
    is_whole = start <= fetched.position and stop >= fetched.next_offset
    if is_whole or fetched.aborted.size or not batches.size:
        return fetched.data
    within = np.flatnonzero((batches["last_offset"] >= start) & (batches["base_offset"] < stop))
    if not within.size:
        return fetched.data[:0]
    # bytes behind the last batch may be an unreadable batch, which the last part has to see
    end = int(batches["end"][within[-1]]) if stop < fetched.next_offset else fetched.data.size
    return fetched.data[int(batches["at"][within[0]]) : end]
