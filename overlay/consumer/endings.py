"""Effects of messages that end: advisories, dead letters and samples. Times are ns since 1970."""

from __future__ import annotations

from collections.abc import Iterator

from overlay.arrays import Ints

from .effects import Advise, Advisory, DeadLetter, Effect, Sample
from .window import Settled

DELETED_REASON = "Unacknowledged message was deleted"
UNDELIVERABLE = "undeliverable"
"""The reason for messages that their output can never take (output/undeliverable.py)."""
UNSET = -62_135_596_800_000_000_000
"""JetStream's time for never, in ns since 1970: 0001-01-01T00:00:00Z."""


def exhaust(ended: Settled) -> Iterator[Effect]:
    """Yield a MAX_DELIVER advisory for each of these messages, which have used up their deliveries.
    Their dead letters come from `make_dead_letters`.
    """
    for sequence, deliveries in zip(ended.sequences.tolist(), ended.deliveries.tolist(), strict=True):
        yield Advise(Advisory.MAX_DELIVER, sequence, 0, deliveries)


def lose(ended: Settled) -> Iterator[Effect]:
    """Yield a TERMINATED advisory for each of these messages, which left the stream before they were acked."""
    columns = ended.sequences, ended.consumer_seqs, ended.deliveries
    for sequence, consumer_seq, deliveries in zip(*(column.tolist() for column in columns), strict=True):
        yield Advise(Advisory.TERMINATED, sequence, consumer_seq, deliveries, DELETED_REASON)


def refuse(sequences: Ints, ended: Settled) -> Iterator[Effect]:
    """Yield a TERMINATED advisory and a dead letter for each message that the consumer's output can
    never take. `sequences`: the stream sequences of all of them.

    `ended`: those of them that were delivered before, when the output took more than now; they keep
    the history of their deliveries.
    """
    columns = ended.sequences, ended.consumer_seqs, ended.deliveries, ended.first, ended.last
    known = {
        sequence: (consumer_seq, DeadLetter(sequence, UNDELIVERABLE, *history))
        for sequence, consumer_seq, *history in zip(*(column.tolist() for column in columns), strict=True)
    }
    for sequence in sequences.tolist():
        consumer_seq, dead_letter = known.get(sequence) or (0, give_up(sequence))
        yield Advise(Advisory.TERMINATED, sequence, consumer_seq, dead_letter.deliveries, UNDELIVERABLE)
        yield dead_letter


def give_up(stream_seq: int) -> DeadLetter:
    """Return the dead letter of a message that was never delivered, because its output can never
    take it.
    """
    return DeadLetter(stream_seq, UNDELIVERABLE, 0, UNSET, UNSET)


def make_dead_letters(ended: Settled, reason: str) -> Iterator[Effect]:
    """Yield a dead letter for each of these messages, which are given up.

    `reason`: as in DeadLetter.
    """
    columns = ended.sequences, ended.deliveries, ended.first, ended.last
    for sequence, deliveries, first, last in zip(*(column.tolist() for column in columns), strict=True):
        yield DeadLetter(sequence, reason, deliveries, first, last)


class Sampling:
    """Chooses the acks that metric events report: `sample_freq` percent of them ("30" or "30%",
    empty for 0), spread evenly.

    `rest`: percent added up by acks and not yet used up by a chosen one, below 100; stored with the
    machine's state.
    """

    def __init__(self, sample_freq: str, rest: int = 0) -> None:
        self.share = min(max(int(sample_freq.removesuffix("%") or 0), 0), 100)
        self.rest = rest

    def pick(self, ended: Settled, now: int) -> Iterator[Effect]:
        """Yield a Sample for each acked message that is chosen to be reported, none if
        `sample_freq` is 0.

        `ended`: the messages that were acked. `now`: ns since 1970, when the acks were processed.
        """
        if not self.share:
            return
        columns = ended.sequences, ended.consumer_seqs, ended.deliveries, ended.last
        for sequence, consumer_seq, deliveries, last in zip(*(column.tolist() for column in columns), strict=True):
            self.rest += self.share
            if self.rest >= 100:
                self.rest -= 100
                yield Sample(sequence, consumer_seq, deliveries, now - last)
