"""What is told of messages that end: advisories, dead letters, samples. Times are ns."""

from __future__ import annotations

from collections.abc import Iterator

from .effects import Advise, Advisory, DeadLetter, Effect, Sample
from .window import Settled

DELETED_REASON = "Unacknowledged message was deleted"


def exhaust(ended: Settled) -> Iterator[Effect]:
    """Messages whose deliveries are used up."""
    for sequence, deliveries in zip(ended.sequences.tolist(), ended.deliveries.tolist(), strict=True):
        yield Advise(Advisory.MAX_DELIVER, sequence, 0, deliveries)


def lose(ended: Settled) -> Iterator[Effect]:
    """Messages that left the stream before their ack."""
    columns = ended.sequences, ended.consumer_seqs, ended.deliveries
    for sequence, consumer_seq, deliveries in zip(*(column.tolist() for column in columns), strict=True):
        yield Advise(Advisory.TERMINATED, sequence, consumer_seq, deliveries, DELETED_REASON)


def bury(ended: Settled, reason: str) -> Iterator[Effect]:
    """Messages that are given up and can still be read, for the dead-letter topic."""
    columns = ended.sequences, ended.deliveries, ended.first, ended.last
    for sequence, deliveries, first, last in zip(*(column.tolist() for column in columns), strict=True):
        yield DeadLetter(sequence, reason, deliveries, first, last)


class Sampling:
    """Reports `share` percent of the acks, spread evenly. `rest` is what has added up towards the next one."""

    def __init__(self, sample_freq: str, rest: int = 0) -> None:
        self.share = min(max(int(sample_freq.removesuffix("%") or 0), 0), 100)
        self.rest = rest

    def pick(self, ended: Settled, now: int) -> Iterator[Effect]:
        """Those of these acks that are reported."""
        if not self.share:
            return
        columns = ended.sequences, ended.consumer_seqs, ended.deliveries, ended.last
        for sequence, consumer_seq, deliveries, last in zip(*(column.tolist() for column in columns), strict=True):
            self.rest += self.share
            if self.rest >= 100:
                self.rest -= 100
                yield Sample(sequence, consumer_seq, deliveries, now - last)
