"""Acks as records of the ack topic (interfaces, "Ack"): many acks become few ranges of consumer sequences.

An application that keeps up acks in runs, since consumer sequences have no holes: a thousand acks are one range, and one
record of fifty bytes. So acks are collected for some milliseconds, the sequences read out of their tokens by a kernel, sorted
and joined. Two policies say it otherwise: with `all` the token of the latest message stands for those before it, and with
`none` there is nothing to say.

All records of a consumer have its head as their key, also those that name one delivery by its token in a header: they go to
one partition, and so a `+WPI` is not overtaken by what was said after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from overlay.consumer.acks import Verb, write_ranges
from overlay.deliver.assemble import TOKEN
from overlay.deliver.record import Headers, Record
from overlay.kernels import kernel
from overlay.scan.columns import Ints

MAX_RANGES = 4_000
"""In one record: what is acked out of order then takes some 60 KB, and a topic takes records of a megabyte."""

_DIGITS = 19  # as many as an int64 has; one that is too large nevertheless becomes negative, which names nothing


@dataclass(frozen=True, slots=True)
class Head:
    """The consumer that acks are for."""

    stream: str
    consumer: str

    @property
    def text(self) -> bytes:
        """The key of its ack records."""
        return f"$JS.ACK.{self.stream}.{self.consumer}".encode()

    @property
    def prefix(self) -> bytes:
        """What all its tokens begin with."""
        return self.text + b"."


def write_acks(head: Head, tokens: Sequence[bytes]) -> list[Record]:
    """Acks of these deliveries. Each token has the head's prefix."""
    _, consumer_seqs = read_sequences(head, tokens)
    ranges = list(join(consumer_seqs))
    return [Record(head.text, write_ranges(ranges[at : at + MAX_RANGES])) for at in range(0, len(ranges), MAX_RANGES)]


def write_latest_ack(head: Head, tokens: Sequence[bytes]) -> list[Record]:
    """The ack that stands for all of these with `ack_policy: all`."""
    sequences, _ = read_sequences(head, tokens)
    return [write_word(head, tokens[int(np.argmax(sequences))], Verb.ACK)] if tokens else []


def write_word(head: Head, token: bytes, verb: Verb, text: str = "", more: Headers = ()) -> Record:
    """What is said of one delivery. `text`: the delay of a nak, the reason of a term; `more`: further headers."""
    body = verb.value + (b" " + text.encode() if text else b"")
    return Record(head.text, body, [(TOKEN, token), *more])


def join(numbers: Ints) -> Iterator[tuple[int, int]]:
    """Positive numbers as ranges, rising, both ends included; whatever is not positive names no delivery."""
    rising = np.unique(numbers[numbers > 0])
    if not rising.size:
        return
    breaks = np.flatnonzero(np.diff(rising) != 1)
    firsts, lasts = rising[np.append(0, breaks + 1)], rising[np.append(breaks, rising.size - 1)]
    yield from zip(firsts.tolist(), lasts.tolist(), strict=True)


def read_sequences(head: Head, tokens: Sequence[bytes]) -> tuple[Ints, Ints]:
    """Stream and consumer sequences of tokens; 0 where one cannot be read."""
    streams, consumers = np.zeros(len(tokens), np.int64), np.zeros(len(tokens), np.int64)
    text = np.frombuffer(b"\n".join(tokens), np.uint8)
    _read_sequences(text, len(head.prefix), streams, consumers)
    return streams, consumers


@kernel
def _read_sequences(text, skip, streams, consumers):  # type: ignore[no-untyped-def]
    pos, end = 0, text.size
    for row in range(streams.size):
        pos += skip
        part, number, digits = 0, np.int64(0), 0
        while pos < end and text[np.uintp(pos)] != 0x0A:
            byte = text[np.uintp(pos)]
            pos += 1
            if byte == 0x2E:
                if part == 1:
                    streams[row] = number
                elif part == 2:
                    consumers[row] = number
                part, number, digits = part + 1, np.int64(0), 0
            elif 0x30 <= byte <= 0x39 and digits < _DIGITS:
                number, digits = number * 10 + np.int64(byte) - 0x30, digits + 1
        pos += 1
