"""What a partition remembers of its idempotent and transactional producers, and which of its transactions are open.

A producer's entry keeps its epoch, its last five batches (a batch that is sent again gets the answer that it had), and the
first offset of its open transaction. The rules are those of Kafka's ProducerStateManager and ProducerAppendInfo.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from .batches import COMMIT, LAST_SEQUENCE, Batch
from .codes import Code

CACHED = 5


@dataclass(slots=True)
class Cached:
    """A batch that was appended: the first and the last sequence, the first and the last offset."""

    first: int
    last: int
    base: int
    end: int
    timestamp: int


class Producer:
    """A producer's entry in one partition. An epoch of -1 has written nothing yet."""

    __slots__ = ("batches", "epoch", "open_at", "seen_ms")

    def __init__(self, epoch: int, now_ms: float) -> None:
        self.epoch = epoch
        self.batches: deque[Cached] = deque(maxlen=CACHED)
        self.open_at: int | None = None
        """The first offset of the open transaction."""
        self.seen_ms = now_ms

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last if self.batches else -1


@dataclass(frozen=True, slots=True)
class Aborted:
    """An aborted transaction: `last` is its marker's offset, `stable` the last stable offset when it ended."""

    producer: int
    first: int
    last: int
    stable: int


class Producers:
    """The producers of one partition."""

    def __init__(self) -> None:
        self.known: dict[int, Producer] = {}
        self.open: dict[int, int] = {}
        """First offset of each open transaction, by producer; in the order of offsets."""
        self._unverified: dict[int, tuple[int, int]] = {}
        """(epoch, lowest sequence) of producers that want to begin a transaction here."""
        self.aborted: list[Aborted] = []
        """In the order of their markers."""

    def expect(self, batch: Batch) -> None:
        """Remember the lowest sequence that a producer begins a transaction with: no higher one may come first."""
        epoch, lowest = self._unverified.get(batch.producer, (-1, 0))
        if epoch < batch.producer_epoch:
            self._unverified[batch.producer] = batch.producer_epoch, batch.sequence
        elif epoch == batch.producer_epoch and batch.sequence < lowest:
            self._unverified[batch.producer] = epoch, batch.sequence

    def find_duplicate(self, batch: Batch) -> Cached | None:
        """Return what is known of a batch if it was appended already."""
        known = self.known.get(batch.producer)
        if known is None or known.epoch != batch.producer_epoch:
            return None
        last = batch.last_sequence
        return next((one for one in known.batches if one.first == batch.sequence and one.last == last), None)

    def refuse(self, batch: Batch) -> Code | None:
        """Return why a batch with sequences cannot be appended, None if it can."""
        known = self.known.get(batch.producer)
        if known is not None and batch.producer_epoch < known.epoch:
            return Code.INVALID_PRODUCER_EPOCH
        epoch, lowest = self._unverified.get(batch.producer, (-1, 0))
        if epoch == batch.producer_epoch and batch.sequence > lowest:
            return Code.OUT_OF_ORDER_SEQUENCE_NUMBER
        if known is None:
            return None
        if batch.producer_epoch > known.epoch:
            if batch.sequence != 0 and known.epoch >= 0:
                return Code.OUT_OF_ORDER_SEQUENCE_NUMBER
        elif batch.sequence != (known.last_sequence + 1 & LAST_SEQUENCE):
            return Code.OUT_OF_ORDER_SEQUENCE_NUMBER
        if known.open_at is not None and not batch.is_transactional:
            return Code.INVALID_TXN_STATE
        return None

    def note(self, batch: Batch, now_ms: float) -> None:
        """Remember a batch that was appended. It has its offsets."""
        known = self.known.get(batch.producer)
        if known is None:
            known = self.known[batch.producer] = Producer(batch.producer_epoch, now_ms)
        elif known.epoch != batch.producer_epoch:
            known.epoch = batch.producer_epoch
            known.batches.clear()
        known.seen_ms = now_ms
        if batch.sequence >= 0:
            known.batches.append(
                Cached(batch.sequence, batch.last_sequence, batch.base, batch.last, batch.max_timestamp)
            )
        if batch.is_transactional:
            self._unverified.pop(batch.producer, None)
        if batch.is_transactional and known.open_at is None:
            known.open_at = self.open[batch.producer] = batch.base

    def end(self, marker: Batch, kind: int, now_ms: float) -> None:
        """End a producer's transaction with its marker, which has its offset."""
        known = self.known.get(marker.producer)
        if known is None:
            known = self.known[marker.producer] = Producer(marker.producer_epoch, now_ms)
        elif known.epoch != marker.producer_epoch:
            known.epoch = marker.producer_epoch
            known.batches.clear()
        known.seen_ms = now_ms
        self._unverified.pop(marker.producer, None)
        first, known.open_at = known.open_at, None
        self.open.pop(marker.producer, None)
        if kind != COMMIT and first is not None:
            stable = next(iter(self.open.values()), marker.last + 1)
            self.aborted.append(Aborted(marker.producer, first, marker.last, stable))

    def has_open(self, producer: int, epoch: int) -> bool:
        """Return whether a producer's transaction is open here."""
        known = self.known.get(producer)
        return known is not None and known.open_at is not None and known.epoch == epoch

    def expire(self, before_ms: float) -> None:
        """Forget producers that have written nothing since, and have no transaction open."""
        for id in [id for id, one in self.known.items() if one.seen_ms <= before_ms and one.open_at is None]:
            del self.known[id]

    def find_aborted(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return (producer, first offset) of the aborted transactions that reach into a range of offsets."""
        return [(one.producer, one.first) for one in self.aborted if one.last >= start and one.first < end]
