"""A kernel that writes output records directly from the bytes of the source records.

A delivery keeps key, value and headers of its source record and gets `Nats-Subject` and
`Nats-Reply-To` (docs/client.md#what-a-message-says). With `headers: full` the parts of the token
also get headers of their own. So most of an output record is one copy of the source record, from
its key to its last header. Headers are copied one by one only if the source already has a header
with a name that the envelope writes; those are left out. With `headers_only` the value is null and
`Nats-Msg-Size` has its size.

The kernel fills a buffer with the records of one batch, with offsets numbered from 0. It stops
before the first record that does not fit. The caller then enlarges the buffer or closes the batch,
and calls again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from overlay.arrays import Bool, Bytes, Int, Ints
from overlay.consumer.acks import write_head
from overlay.kafka.header_names import FULL, SUBJECT, TOKEN, VALUE_SIZE
from overlay.kernels import kernel
from overlay.scan.decode import Records
from overlay.scan.varint import read_varint, skip, varint_size, write_varint
from overlay.subject.dictionary import Codes, Texts

from .record import encode_headers

_TOKEN_ROOM = 5 * 21  # five decimals with their dots
_RECORD_ROOM = 64  # varints and fixed bytes around what is copied


def _join(texts: Sequence[bytes]) -> Texts:
    # read-only, as np.frombuffer makes it: the kernel is compiled for read-only texts
    return Texts(np.frombuffer(b"".join(texts), np.uint8), np.cumsum([0, *map(len, texts)]))


@dataclass(frozen=True, slots=True, eq=False)
class Envelope:
    """What is the same in every delivery of a consumer, in the form that kernels take. Consumers of
    one stream whose deliveries differ in nothing but the name may share an envelope, and so have
    their deliveries in the same batches. They are its recipients, numbered from 0.

    `prefixes`: how the tokens of each recipient begin. `consumers`: the names of the recipients.
    `names`: of the overlay's headers. `source_time`: records keep the source's timestamp.
    `headers_only`: values are left out. `more_count`: number of headers in `more`.
    """

    prefixes: Texts  # of tokens, up to the dot before the number of deliveries
    stream: Bytes
    consumers: Texts
    names: Texts
    source_time: bool
    headers_only: bool
    more: Bytes  # further headers, encoded as in a record
    more_count: int
    longest_prefix: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "longest_prefix", self.prefixes.longest)

    @property
    def form(self) -> tuple[object, ...]:
        """What two envelopes must have in common to be joined: everything but the recipients."""
        texts = self.stream.tobytes(), self.names.text.tobytes(), self.more.tobytes()
        return *texts, self.source_time, self.headers_only, self.more_count

    @property
    def constant_size(self) -> int:
        """The most bytes that the texts of the envelope take together in one delivery: token prefix,
        stream, consumer, header names and `more`. The varints with their lengths are not included.
        """
        parts = self.longest_prefix + self.stream.size + self.consumers.longest + self.names.text.size
        return int(parts + self.more.size)


def join_envelopes(envelopes: Sequence[Envelope]) -> Envelope:
    """Return one envelope for the recipients of several (at least one), in their order. All must
    have the same `form`, which is not checked.
    """
    prefixes = [text for each in envelopes for text in each.prefixes.split()]
    consumers = [text for each in envelopes for text in each.consumers.split()]
    return replace(envelopes[0], prefixes=_join(prefixes), consumers=_join(consumers))


def make_envelope(
    stream: str,
    consumer: str,
    *,
    full: bool,
    source_time: bool,
    headers_only: bool = False,
    more: Sequence[tuple[str, bytes]] = (),
    incarnation: str = "",
) -> Envelope:
    """Return the envelope of a consumer's deliveries.

    `full`: with the headers of `headers: full`. `source_time`: records keep the source's timestamp
    instead of the batch's. `headers_only`: without values. `more`: headers added to every record.
    `incarnation`: the one in the tokens; empty for tokens of version 1.
    """
    names = (SUBJECT, TOKEN, *(FULL if full else ()), *((VALUE_SIZE,) if headers_only else ()))
    prefix = _write_prefix(stream, consumer, incarnation)
    return Envelope(
        _join([prefix]),
        np.frombuffer(stream.encode(), np.uint8),
        _join([consumer.encode()]),
        _join([name.encode() for name in names]),
        source_time,
        headers_only,
        np.frombuffer(encode_headers(more), np.uint8),
        len(more),
    )


def name_incarnation(envelope: Envelope, incarnation: str) -> Envelope:
    """Return a copy of an envelope whose tokens name this incarnation, that is, this ownership of
    the consumer. The envelope must have one recipient.
    """
    stream, consumer = (text.decode() for text in (envelope.stream.tobytes(), envelope.consumers.split()[0]))
    return replace(envelope, prefixes=_join([_write_prefix(stream, consumer, incarnation)]))


def _write_prefix(stream: str, consumer: str, incarnation: str) -> bytes:
    return f"{write_head(stream, consumer, incarnation)}.".encode()


def without_value(envelope: Envelope) -> Envelope:
    """Return the envelope for deliveries whose value is null and whose size is in `Nats-Msg-Size`;
    the same object if it has that already.
    """
    if envelope.headers_only:
        return envelope
    return replace(envelope, names=_join([*envelope.names.split(), VALUE_SIZE.encode()]), headers_only=True)


Columns = tuple[Ints, Ints, Ints, Ints, Ints]
"""The columns of `Numbers`, complete."""


@dataclass(frozen=True, slots=True, eq=False)
class Numbers:
    """The numbers in the tokens of some deliveries (int64, one per row).

    `stream` and `consumer`: sequences. `deliveries`: how often each message was delivered, this
    time included; None if each is the first time. `pending`: num_pending after each, None if
    unknown, which is written as 0. `recipients`: which of the envelope's recipients each is for;
    None if all are for its first.
    """

    stream: Ints
    consumer: Ints
    deliveries: Ints | None = None
    pending: Ints | None = None
    recipients: Ints | None = None

    def complete(self) -> Columns:
        """Return the columns stream, consumer, deliveries, pending and recipients, with 1, 0 and 0
        for the last three if they are None.
        """
        deliveries = np.ones(self.stream.size, np.int64) if self.deliveries is None else self.deliveries
        pending = np.zeros(self.stream.size, np.int64) if self.pending is None else self.pending
        recipients = np.zeros(self.stream.size, np.int64) if self.recipients is None else self.recipients
        return self.stream, self.consumer, deliveries, pending, recipients


@dataclass(slots=True)
class Body:
    """The records of a batch under construction: out[:size] has `count` of them, uncompressed, with
    offsets from 0.

    Timestamps are ms since 1970.
    """

    out: Bytes
    size: int = 0
    count: int = 0
    base_timestamp: int = 0
    max_timestamp: int = 0
    last_offset: int = -1
    """Source offset of the last record, -1 if there are none."""
    consumer_seqs: tuple[int, int] = (0, -1)
    """Consumer sequences of the first and the last record."""
    last_recipient: int = 0
    """Of the last record."""

    @property
    def records(self) -> Bytes:
        """The bytes of the records."""
        return self.out[: self.size]


def assemble(
    body: Body,
    source: Records,
    rows: Ints,
    codes: Codes,
    subjects: Texts,
    envelope: Envelope,
    numbers: Columns,
    now: int,
) -> int:
    """Append deliveries of source records to `body`, in the order of `rows` (at least one), until
    one does not fit into its buffer. Return how many were appended, which may be 0.

    `rows`: indices of records of `source`. `codes`: of all records of `source`, the index of each
    one's subject in `subjects`. `numbers`: of each of `rows`, as `Numbers.complete` returns them.
    `now`: ms since 1970. If `body` is empty, it becomes the time of all records of the batch, unless
    they keep the source's time.
    """
    if not body.count:
        body.base_timestamp = int(source.timestamp[rows[0]]) if envelope.source_time else now
        body.max_timestamp = body.base_timestamp
    done, size, latest = _assemble(
        source.buf, source.body, source.end, source.timestamp, rows, codes, subjects.text, subjects.bounds,
        envelope.prefixes.text, envelope.prefixes.bounds, envelope.longest_prefix, envelope.stream,
        envelope.consumers.text, envelope.consumers.bounds, envelope.names.text, envelope.names.bounds,
        envelope.more, envelope.more_count, envelope.source_time, envelope.headers_only,
        *numbers, body.base_timestamp, body.out, body.size, body.count,
    )  # fmt: skip
    body.count, body.size = body.count + done, int(size)
    if done:
        body.last_offset = int(source.offset[rows[done - 1]])
        first = body.consumer_seqs[0] or int(numbers[1][0])
        body.consumer_seqs = first, int(numbers[1][done - 1])
        body.last_recipient = int(numbers[4][done - 1])
    body.max_timestamp = max(body.max_timestamp, int(latest))
    return done


def room_for(source: Records, rows: Ints, subjects: Ints, envelope: Envelope) -> Ints:
    """Return an upper bound of the uncompressed bytes that each of `rows` of `source` takes as a
    delivery (int64, one per row).

    `subjects`: the size of each row's subject in bytes.
    """
    own: Ints = source.end[rows] - source.body[rows]
    return own + subjects + (envelope.constant_size + 3 * _TOKEN_ROOM + 3 * _RECORD_ROOM)


@kernel
def _copy(out: Bytes, pos: Int, text: Bytes, first: Int, last: Int) -> Int:
    # a loop over views: numba's slice assignment takes ten times as long for a record's few hundred
    # bytes, and with indices that might be negative a plain loop does not become a block copy
    size = last - first
    target, source = out[pos : pos + size], text[first:last]
    for i in range(size):
        target[i] = source[i]
    return pos + size


@kernel(inline="always")
def _nanoseconds(milliseconds: Int) -> Int:
    """Return a timestamp (ms) in ns.

    A time that int64 cannot hold, about 290 years from 1970, becomes the nearest possible one.
    """
    limit = 9_223_372_036_854
    return max(-limit, min(limit, milliseconds)) * 1_000_000


@kernel
def _put_decimal(out: Bytes, pos: Int, value: Int) -> Int:
    """Write an integer in decimal to `out` from `pos` on, and return the position after it."""
    if value < 0:
        out[pos] = 45
        pos += 1
        value = -value
    # unsigned, and with the digits counted by multiplication: tokens have five of these
    rest = np.uint64(value)
    digits, limit = 1, np.uint64(10)
    while digits < 19 and rest >= limit:
        digits += 1
        limit *= np.uint64(10)
    for at in range(pos + digits - 1, pos - 1, -1):
        left = rest // np.uint64(10)
        out[at] = np.uint8(48) + np.uint8(rest - left * np.uint64(10))
        rest = left
    return pos + digits


@kernel
def _is_ours(buf: Bytes, at: Int, size: Int, names: Bytes, bounds: Ints) -> Bool:
    """Return whether the header name in `size` bytes of `buf` from `at` on is one that the envelope
    writes. `names`, `bounds`: as in Envelope.
    """
    if size < 11 or buf[at] != 0x4E:  # the shortest is Nats-Stream; N
        return False
    for k in range(bounds.size - 1):
        if bounds[k + 1] - bounds[k] == size:
            i = 0
            while i < size and buf[at + i] == names[bounds[k] + i]:
                i += 1
            if i == size:
                return True
    return False


@kernel
def _foreign(buf: Bytes, pos: Int, end: Int, count: Int, names: Bytes, bounds: Ints) -> tuple[Int, Int]:
    """Return how many of a record's headers have names that the envelope does not write, and how many bytes these
    headers take. `pos`: where the first of the `count` headers begins; `end`: the end of the record.
    """
    kept, size = 0, np.int64(0)
    for _ in range(count):
        start = pos
        name_size, name_at = read_varint(buf, pos, end)
        value_size, value_at = read_varint(buf, name_at + name_size, end)
        pos = skip(value_at, value_size)
        if not _is_ours(buf, name_at, name_size, names, bounds):
            kept += 1
            size += pos - start
    return kept, size


@kernel
def _copy_foreign(buf: Bytes, pos: Int, end: Int, count: Int, names: Bytes, bounds: Ints, out: Bytes, at: Int) -> Int:
    for _ in range(count):
        start = pos
        name_size, name_at = read_varint(buf, pos, end)
        value_size, value_at = read_varint(buf, name_at + name_size, end)
        pos = skip(value_at, value_size)
        if not _is_ours(buf, name_at, name_size, names, bounds):
            at = _copy(out, at, buf, start, pos)
    return at


@kernel
def _put_header(out: Bytes, pos: Int, names: Bytes, bounds: Ints, k: Int, text: Bytes, first: Int, last: Int) -> Int:
    """Write the envelope's header number k with the value text[first:last] to `out` from `pos` on,
    and return the position after it.
    """
    pos = write_varint(out, pos, bounds[k + 1] - bounds[k])
    pos = _copy(out, pos, names, bounds[k], bounds[k + 1])
    return _copy(out, write_varint(out, pos, last - first), text, first, last)


@kernel
def _header_size(bounds: Ints, k: Int, size: Int) -> Int:
    name: int = bounds[k + 1] - bounds[k]
    return varint_size(name) + name + varint_size(size) + size


@kernel
def _put_part(token: Bytes, pos: Int, value: Int) -> Int:
    """Write a number of the token and the dot after it from `pos` on, and return the position after
    the dot.
    """
    pos = _put_decimal(token, pos, value)
    token[pos] = 46
    return pos + 1


@kernel
def _assemble(
    buf: Bytes, body: Ints, end_of: Ints, timestamp: Ints, rows: Ints, codes: Codes, text: Bytes, text_bounds: Ints,
    prefixes: Bytes, prefix_bounds: Ints, longest_prefix: int, stream: Bytes, consumers: Bytes, consumer_bounds: Ints,
    names: Bytes, bounds: Ints, more: Bytes, more_count: int, source_time: bool, headers_only: bool,
    stream_sequence: Ints, consumer_sequence: Ints, deliveries: Ints, pending: Ints, recipients: Ints,
    base: int, out: Bytes, at: Int, count_before: int,
) -> tuple[int, Int, Int]:  # fmt: skip
    """Write records from `out[at]` on until one does not fit. Return (how many, where they end in
    `out`, the latest of `base` and, with `source_time`, their times).

    `body`, `end_of`, `timestamp`: of all records of the source; `rows`: those to write. `names`,
    `bounds`: our header names. `more`: further headers, encoded. `base`: time of the batch (ms since
    1970). `count_before`: records in it already.

    Long because it is one loop over the records: functions for its parts would be given the same
    dozen arrays for each record, and numba counts references to each of them (scan/borrow.py).
    """
    token = np.empty(longest_prefix + 105, np.uint8)
    length = np.empty(21, np.uint8)
    own = bounds.size - 1
    full = own > 3
    marks = np.empty(6, np.int64)  # where the token's decimals begin
    recipient, name_at, name_end = np.int64(-1), np.int64(0), np.int64(0)
    latest = np.int64(base)
    for i in range(rows.size):
        if recipients[i] != recipient:
            recipient = recipients[i]
            marks[0] = _copy(token, 0, prefixes, prefix_bounds[recipient], prefix_bounds[recipient + 1])
            name_at, name_end = consumer_bounds[recipient], consumer_bounds[recipient + 1]
        # where the parts of the source record are, and how many of its headers are kept
        row = rows[i]
        end = end_of[row]
        key_size, pos = read_varint(buf, body[row], end)
        value_at = skip(pos, key_size)
        value_size, pos = read_varint(buf, value_at, end)
        headers_at = skip(pos, value_size)
        count, first = read_varint(buf, headers_at, end)
        kept, kept_size = _foreign(buf, first, end, count, names, bounds)

        marks[1] = _put_part(token, marks[0], deliveries[i])
        marks[2] = _put_part(token, marks[1], stream_sequence[i])
        marks[3] = _put_part(token, marks[2], consumer_sequence[i])
        marks[4] = _put_part(token, marks[3], _nanoseconds(timestamp[row]))
        marks[5] = _put_part(token, marks[4], pending[i])
        token_size = marks[5] - 1
        length_size = _put_decimal(length, 0, max(value_size, 0)) if headers_only else 0

        # the size of the record; stop if it does not fit
        code = codes[row]
        delta = timestamp[row] - base if source_time else 0
        size = 1 + varint_size(delta) + varint_size(count_before + i)
        size += value_at + 1 - body[row] if headers_only else headers_at - body[row]
        size += varint_size(kept + own + more_count) + kept_size + more.size
        size += _header_size(bounds, 0, text_bounds[code + 1] - text_bounds[code]) + _header_size(bounds, 1, token_size)
        if full:
            size += _header_size(bounds, 2, stream.size) + _header_size(bounds, 3, name_end - name_at)
            for k in range(5):
                size += _header_size(bounds, 4 + k, marks[k + 1] - 1 - marks[k])
        if headers_only:
            size += _header_size(bounds, own - 1, length_size)
        if at + size + 10 > out.size:
            return i, at, latest

        # the record: attributes, deltas, key and value, then its own headers and ours
        at = write_varint(out, at, size)
        out[at] = 0
        at = write_varint(out, write_varint(out, at + 1, delta), count_before + i)
        if headers_only:
            at = write_varint(out, _copy(out, at, buf, body[row], value_at), -1)
        else:
            at = _copy(out, at, buf, body[row], headers_at)
        at = write_varint(out, at, kept + own + more_count)
        if kept == count:  # noqa: SIM108 - one call a line
            at = _copy(out, at, buf, first, end)
        else:
            at = _copy_foreign(buf, first, end, count, names, bounds, out, at)
        at = _put_header(out, at, names, bounds, 0, text, text_bounds[code], text_bounds[code + 1])
        at = _put_header(out, at, names, bounds, 1, token, 0, token_size)
        if full:
            at = _put_header(out, at, names, bounds, 2, stream, 0, stream.size)
            at = _put_header(out, at, names, bounds, 3, consumers, name_at, name_end)
            for k in range(5):
                at = _put_header(out, at, names, bounds, 4 + k, token, marks[k], marks[k + 1] - 1)
        if headers_only:
            at = _put_header(out, at, names, bounds, own - 1, length, 0, length_size)
        if more_count:
            at = _copy(out, at, more, 0, more.size)
        if source_time:
            latest = max(latest, timestamp[row])
    return rows.size, at, latest
