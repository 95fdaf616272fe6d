"""Giving out sequences in the service: rounds of the ledgers that a shard keeps, made as their records are read. No IO.

The shard that keeps a stream's index gives its sequences out. One cursor in each partition of the stream is at the end
of what has sequences (worker/cursors/cursor.py, `sequenced`), and nobody is ahead of it. What such cursors read in a
round of the pipeline gets sequences first (overlay/index/ledger/allocate.py), one round of the ledger for all
partitions of a stream, and only then is it matched and delivered. The round's record goes into the transaction of the
deliveries that tell of it: either both are there or neither. So rounds of the ledger are as frequent as those of the
pipeline, which are slower the more there is to do, and records wait for their sequences no longer than for their
transaction. Where much comes in small pieces they wait somewhat, so that the ledger has fewer and longer runs
(`Linger`).

Who delivers outside of transactions must not tell of a sequence before its round is committed, and other shards hear of it
then. Both follow behind (worker/cursors/order.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from overlay.index.ledger.allocate import allocate, restart
from overlay.index.ledger.entries import LedgerEntry, encode
from overlay.index.ledger.ledger import Ledger
from overlay.kafka.fetcher import Fetched
from overlay.kafka.log_position import LogPosition, TopicPartition
from overlay.output.batch_builder import OutputBatch
from overlay.output.encoded_batch import encode_records
from overlay.output.record import Record
from overlay.scan.header import Bytes

Ints = npt.NDArray[np.int64]

Parts = Mapping[TopicPartition, tuple[int, LogPosition]]

RENEW_MS = 3_600_000
"""How often it is written anew where partitions stand that have nothing new: far more often than retention passes."""

LINGER_S = 0.005
LINGER_RATE = 1_000


class Reading(Protocol):
    """What has been read of a partition: from `position` on, all of `fetched`."""

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
    """`ledgers`: of the streams that have one; `topics`: where rounds are written, of those that are kept here. Not for two
    threads at once."""

    ledgers: Mapping[str, Ledger]
    topics: Mapping[str, str]
    _renewed: dict[str, int] = field(default_factory=dict)

    def give_out(self, readings: Iterable[Reading], now: int) -> tuple[list[OutputBatch], dict[str, int]]:
        """Sequences for what has been read, as records of the ledgers, and the next one of each. `now`: ms since 1970.

        Ledgers of which nothing has been read are renewed in time as well: retention may take their last round.
        """
        taken: dict[str, dict[TopicPartition, tuple[int, LogPosition]]] = defaultdict(dict)
        for each in readings:
            if each.sequenced:
                end = min(each.stop, each.fetched.next_offset)
                taken[each.stream][each.source] = each.position, find_log_position(each.fetched, end)
        rounds: list[OutputBatch] = []
        for stream in self.topics.keys() & self.ledgers.keys():
            ledger = self.ledgers[stream]
            for make in (self._renew, self._allocate):
                round = make(stream, taken.get(stream, {}), now)
                if round is not None:
                    refusal = ledger.append(round)
                    assert not refusal, (stream, round, refusal)
                    rounds.append(write_round(self.topics[stream], stream, round, now))
        return rounds, {stream: self.ledgers[stream].next_sequence for stream in taken}

    def _allocate(self, stream: str, parts: Parts, now: int) -> LedgerEntry | None:
        return allocate(self.ledgers[stream].standing, parts)

    def _renew(self, stream: str, parts: Parts, now: int) -> LedgerEntry | None:
        if now - self._renewed.setdefault(stream, now) < RENEW_MS:
            return None
        self._renewed[stream] = now
        standing = self.ledgers[stream].standing
        idle = {source: self.ledgers[stream].log_position_of(source) for source in standing.ends if source not in parts}
        return restart(standing, idle) if idle else None

    def find_sequences(self, stream: str, source: TopicPartition, offsets: Ints) -> Ints:
        """Of each offset its sequence. 0 where the record of its round is lost: it is delivered all the same."""
        ledger = self.ledgers.get(stream)
        return offsets + 1 if ledger is None else ledger.sequence_of(source, offsets)


@dataclass(slots=True)
class Linger:
    """Keeps rounds of a stream LINGER_S apart while it has LINGER_RATE records a second. Those of a backlog take longer."""

    _last: dict[str, tuple[int, float]] = field(default_factory=dict)

    def find_pause(self, stream: str, next_sequence: int, now: float) -> float:
        """How long the next round waits, in seconds. `next_sequence`: after the one that was given out at `now`."""
        before, then = self._last.get(stream, (next_sequence, now))
        self._last[stream] = next_sequence, now
        passed = now - then
        return max(0.0, LINGER_S - passed) if next_sequence - before > LINGER_RATE * passed else 0.0


def write_round(topic: str, stream: str, round: LedgerEntry, now: int) -> OutputBatch:
    """A round as a batch for the index topic. `now`: ms since 1970."""
    return OutputBatch(topic, 0, encode_records([Record(*encode(stream, round))], now))


def find_log_position(fetched: Fetched, position: int) -> LogPosition:
    """The log position at a position up to which something was read of a fetch."""
    if position == fetched.next_offset:
        return fetched.log_position
    ending = fetched.batches[fetched.batches["last_offset"] == position - 1]
    if not ending.size:
        return LogPosition(position)
    return LogPosition(position, int(ending[-1]["leader_epoch"]), int(ending[-1]["crc"]))


def cut(fetched: Fetched, start: int, stop: int) -> Bytes:
    """The bytes of a fetch that hold the offsets from start to stop, so that not all of it is checked for each of its parts.

    All of them where a transaction was aborted: the end of one may lie before the part.
    """
    batches = fetched.batches
    is_whole = start <= fetched.position and stop >= fetched.next_offset
    if is_whole or fetched.aborted.size or not batches.size:
        return fetched.data
    within = np.flatnonzero((batches["last_offset"] >= start) & (batches["base_offset"] < stop))
    if not within.size:
        return fetched.data[:0]
    # behind the last batch may be what cannot be read
    end = int(batches["end"][within[-1]]) if stop < fetched.next_offset else fetched.data.size
    return fetched.data[int(batches["at"][within[0]]) : end]
