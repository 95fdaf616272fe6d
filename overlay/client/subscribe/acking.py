"""Acks as records of the ack topic: many acks become few ranges of consumer sequences.

The format is in docs/client.md#acks-from-any-other-client. An application that keeps up acks long
runs, because consumer sequences have no holes. A thousand acks are one range, in one record of
fifty bytes. So acks are collected for some milliseconds. A kernel reads the sequences from their
tokens, and they are sorted and joined. The other ack policies differ: with `all` the token of the
latest message stands for all before it, with `flow_control` the answers to flow control requests
are the acks, and with `none` there is nothing to send.

A consumer sequence is only valid together with the incarnation that gave it out
(overlay/consumer/lineage.py), which the token names. So each incarnation has records of its own,
with the incarnation in a header. As a rule there is only one, except for moments after the consumer
has moved to another worker. Tokens of version 1, from services of earlier versions, name no
incarnation. The ranges made of them say so in their body, so they settle nothing that a later
version delivered.

All ack records of a consumer have the same key, also those that name one delivery by its token in a
header. So they go to one partition, and a `+WPI` is never overtaken by a later ack.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from overlay.arrays import Bytes, Ints
from overlay.consumer.acks import Verb, write_ranges
from overlay.kafka.header_names import TOKEN
from overlay.kernels import kernel
from overlay.output.record import Headers, Record

MAX_RANGES = 4_000
"""Most ranges in one record. Acks out of order then take about 60 KB, and topics take records of a
megabyte.
"""

PREFIX_2 = b"$JS.ACK._."
"""What tokens of version 2 have before the incarnation."""

_DIGITS = 19  # as many as an int64 has; a number that is too large nevertheless becomes negative, which names nothing


@dataclass(frozen=True, slots=True)
class Head:
    """The consumer that acks are for."""

    stream: str
    consumer: str

    @property
    def text(self) -> bytes:
        """The key of all ack records of this consumer: `$JS.ACK.STREAM.CONSUMER`, as bytes."""
        return f"$JS.ACK.{self.stream}.{self.consumer}".encode()

    def tag(self, incarnation: bytes) -> bytes:
        """Return the text that stands in the token header of a range ack: it names this consumer
        and the incarnation (the ownership by one worker) whose deliveries are acked.
        """
        return b"$JS.ACK._.%b.%b.%b" % (incarnation, self.stream.encode(), self.consumer.encode())

    @property
    def prefix(self) -> bytes:
        """The text with which the consumer's tokens of version 1 begin, as bytes."""
        return self.text + b"."

    @property
    def middle(self) -> bytes:
        """The text between incarnation and numbers in the consumer's tokens of version 2, as bytes."""
        return b".%b.%b." % (self.stream.encode(), self.consumer.encode())

    def has(self, token: bytes) -> bool:
        """Return whether an ack token, of either version, names this consumer. Its numbers are not checked."""
        if token.startswith(self.prefix):
            return True
        dot = token.find(b".", len(PREFIX_2))
        return token.startswith(PREFIX_2) and dot > len(PREFIX_2) and token.startswith(self.middle, dot)


class TokenColumns(NamedTuple):
    """The contents of tokens, as columns (int64, one per token).

    `streams` and `consumers`: stream sequences and consumer sequences, 0 if a token ends before
    them, negative if too large for int64. `by`: index of the token's incarnation in `incarnations`,
    -1 for a token of version 1, which names none.
    """

    streams: Ints
    consumers: Ints
    by: Ints
    incarnations: list[bytes]

    def split(self) -> Iterator[tuple[bytes, Ints]]:
        """Yield pairs: each incarnation that tokens name, and the indexes of these tokens, rising; b""
        stands for tokens that name none, and comes first.
        """
        for number in np.unique(self.by).tolist():
            yield b"" if number < 0 else self.incarnations[number], np.flatnonzero(self.by == number)


def write_acks(head: Head, tokens: Sequence[bytes]) -> list[Record]:
    """Return records for the ack topic that ack these deliveries, as ranges of consumer sequences.
    `tokens`: of deliveries of the consumer `head`; one without a valid consumer sequence is left out.
    """
    read = read_sequences(head, tokens)
    records = []
    for incarnation, rows in read.split():
        ranges = list(join(read.consumers[rows]))
        headers: Headers = [(TOKEN, head.tag(incarnation))] if incarnation else ()
        for at in range(0, len(ranges), MAX_RANGES):
            body = write_ranges(ranges[at : at + MAX_RANGES], is_unnamed=not incarnation)
            records.append(Record(head.text, body, headers))
    return records


def write_latest_ack(head: Head, tokens: Sequence[bytes]) -> list[Record]:
    """Return records for the ack topic that ack all these deliveries if the consumer has `ack_policy:
    all`: one for each incarnation that tokens name, with the token of the highest stream sequence.
    `tokens`: of deliveries of the consumer `head`.
    """
    read = read_sequences(head, tokens)
    latest = (int(rows[np.argmax(read.streams[rows])]) for _, rows in read.split())
    return [write_word(head, tokens[row], Verb.ACK) for row in latest]


def write_word(head: Head, token: bytes, verb: Verb, text: str = "", more: Headers = ()) -> Record:
    """Return a record for the ack topic with an ack, nak, term or progress report for one delivery,
    whose token is in a header.

    `text`: the delay of a nak (JSON, see `write_delay`), or the reason of a term; `more`: further
    headers.
    """
    body = verb.value + (b" " + text.encode() if text else b"")
    return Record(head.text, body, [(TOKEN, token), *more])


def join(numbers: Ints) -> Iterator[tuple[int, int]]:
    """Yield the ranges (first, last), both included, of consecutive numbers, rising and disjoint.
    `numbers` may have any order and repetitions.

    Numbers that are not positive name no delivery and are left out.
    """
    rising = np.unique(numbers[numbers > 0])
    if not rising.size:
        return
    breaks = np.flatnonzero(np.diff(rising) != 1)
    firsts, lasts = rising[np.append(0, breaks + 1)], rising[np.append(breaks, rising.size - 1)]
    yield from zip(firsts.tolist(), lasts.tolist(), strict=True)


def read_sequences(head: Head, tokens: Sequence[bytes]) -> TokenColumns:
    """Return the stream sequence, the consumer sequence and the incarnation of each token.

    All tokens must belong to the consumer of `head`. This is not checked: other tokens give
    meaningless numbers.
    """
    streams, consumers, by = (np.zeros(len(tokens), np.int64) for _ in range(3))
    known = np.zeros((2, len(tokens)), np.int64)
    text = np.frombuffer(b"\n".join(tokens), np.uint8)
    middle = np.frombuffer(head.middle, np.uint8)
    count = _read_sequences(text, len(head.prefix), len(PREFIX_2), middle, streams, consumers, by, known)
    places = known[:, :count].T.tolist()
    return TokenColumns(streams, consumers, by, [text[at : at + size].tobytes() for at, size in places])


@kernel
def _is_at(text: Bytes, at: int, piece: Bytes) -> bool:
    if text.size - at < piece.size:
        return False
    for i in range(piece.size):  # noqa: SIM110 - numba has no all()
        if text[at + i] != piece[i]:
            return False
    return True


@kernel
def _number(text: Bytes, at: int, size: int, known: Ints, count: int, guess: int) -> int:
    """Return the number of the incarnation whose name is text[at : at + size]. known[0] and known[1]
    have place and size in `text` of the names of `count` incarnations, by number; a new one is added
    there and gets the number `count`. `guess`: the number to try first.
    """
    for step in range(-1 if count else 0, count):
        each = guess if step < 0 else step
        if known[1, each] == size:
            i = 0
            while i < size and text[known[0, each] + i] == text[at + i]:
                i += 1
            if i == size:
                return each
    known[0, count], known[1, count] = at, size
    return count


@kernel
def _read_sequences(
    text: Bytes, skip: int, skip_2: int, middle: Bytes, streams: Ints, consumers: Ints, by: Ints, known: Ints
) -> int:
    """Parse tokens that are separated by newlines into `streams`, `consumers` and `by` (see
    TokenColumns). Return how many incarnations there are.

    `streams` and `consumers` must be zeros: a token that cannot be parsed may leave them unchanged.
    `known`: [2, tokens], receives place and size of each incarnation's text. `skip`: bytes before
    the numbers in version 1. `skip_2`: bytes before the incarnation in version 2. `middle`: the
    text between the incarnation and the numbers.
    """
    pos, end, count, latest = 0, text.size, 0, 0
    for row in range(streams.size):
        by[row] = -1
        dot = pos + skip_2
        while dot < end and text[np.uintp(dot)] != 0x2E and text[np.uintp(dot)] != 0x0A:
            dot += 1
        # the stream may be named `_`, as the domain is: then a token of version 1 has a number where `middle` is
        if text[np.uintp(pos + skip_2 - 2)] == 0x5F and dot > pos + skip_2 and _is_at(text, dot, middle):
            latest = _number(text, pos + skip_2, dot - pos - skip_2, known, count, latest)
            count = max(count, latest + 1)
            by[row] = latest
            pos = dot + middle.size
        else:
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
    return count
