"""A consumer as one would write it down: a dict of messages, walked from end to end for every question.

It knows explicit acks, naks, terms, progress, ack_wait, max_deliver and max_ack_pending, with one reader that takes what it is
given; that is what the machine's columns, queue and heap have to agree with.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Entry:
    """A pending message. `queued`: its place in the redelivery queue, None while it waits for `deadline`."""

    consumer_seq: int
    deliveries: int
    deadline: int
    queued: int | None = None


@dataclass
class Consumer:
    """`max_deliver` and `max_ack_pending` -1 are no limit. Times are any integers."""

    ack_wait: int
    max_deliver: int
    max_ack_pending: int
    offered: list[int] = field(default_factory=list)
    pending: dict[int, Entry] = field(default_factory=dict)
    used_up: dict[int, int] = field(default_factory=dict)
    sent: list[tuple[int, int, int]] = field(default_factory=list)
    delivered: tuple[int, int] = (0, 0)
    floor: tuple[int, int] = (0, 0)
    place: int = 0

    def offer(self, sequences: list[int], now: int) -> None:
        self.offered += sequences
        self._deliver(now)

    def ack(self, sequence: int, now: int) -> None:
        self.used_up.pop(sequence, None)
        entry = self.pending.pop(sequence, None)
        if entry is not None:
            self._move_floor(entry.consumer_seq)
        self._deliver(now)

    def nak(self, sequence: int, consumer_seq: int, delay: int | None, now: int) -> None:
        entry = self.pending.get(sequence)
        if entry is not None and consumer_seq > self.floor[0]:
            if delay is not None:
                entry.queued, entry.deadline = None, now + delay
            elif entry.queued is None:
                self._queue(entry)
        self._deliver(now)

    def progress(self, sequence: int, now: int) -> None:
        entry = self.pending.get(sequence)
        if entry is not None and entry.queued is None:
            entry.deadline = now + self.ack_wait
        self._deliver(now)

    def tick(self, now: int) -> None:
        for sequence, entry in sorted(self.pending.items()):
            if entry.queued is None and entry.deadline <= now:
                if self.max_deliver == 1:
                    self.used_up[sequence] = entry.deliveries
                    del self.pending[sequence]
                else:
                    self._queue(entry)
        self._deliver(now)

    def remove(self, sequence: int, now: int) -> None:
        if sequence in self.offered:
            self.offered.remove(sequence)
        self.ack(sequence, now)

    @property
    def num_redelivered(self) -> int:
        if self.max_deliver == 1:
            return 0
        deliveries = [*(entry.deliveries for entry in self.pending.values()), *self.used_up.values()]
        return sum(count > 1 for count in deliveries)

    def _queue(self, entry: Entry) -> None:
        entry.queued, self.place = self.place, self.place + 1

    def _deliver(self, now: int) -> None:
        while True:
            queued = sorted((entry.queued, s) for s, entry in self.pending.items() if entry.queued is not None)
            if queued:
                sequence = queued[0][1]
                entry = self.pending[sequence]
                if 0 < self.max_deliver <= entry.deliveries:
                    self.used_up[sequence] = entry.deliveries
                    del self.pending[sequence]
                    continue
                entry.queued, entry.deliveries = None, entry.deliveries + 1
            elif self.offered and not 0 < self.max_ack_pending <= len(self.pending):
                sequence = self.offered.pop(0)
                entry = self.pending[sequence] = Entry(self.delivered[0] + 1, 1, 0)
            else:
                return
            entry.deadline = now + self.ack_wait
            self.delivered = self.delivered[0] + 1, max(self.delivered[1], sequence)
            self.sent.append((sequence, self.delivered[0], entry.deliveries))

    def _move_floor(self, consumer_seq: int) -> None:
        if not self.pending:
            self.floor = self.delivered
        elif consumer_seq == self.floor[0] + 1:
            sequence = min(self.pending)
            self.floor = self.pending[sequence].consumer_seq - 1, sequence - 1
