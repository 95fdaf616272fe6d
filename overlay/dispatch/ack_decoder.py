"""The decoder of an ack topic: from fetched batches to ack batches and events for the machines of
one stream.

Nearly all acks look alike: a token of one of our consumers, in the header `Nats-Reply-To` or as the
key, and a body that is only a verb. A kernel reads these into columns. Consecutive acks of one
consumer with the same verb become one `AckBatch`. The tokens of a consumer name few incarnations,
so the kernel numbers them, and their texts are made once per slice of a fetch. All other records go
through `parse_ack` row by row: ranges, delays, reasons, tokens of other domains, and acks that want
an answer.

The order of one consumer's acks is kept. Acks of the stream's consumers that have no machine in
this session are skipped. Records that are no acks are counted by reason and change nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from overlay.arrays import Bool, Bytes, Flags, Int, Ints
from overlay.consumer.acks import Ack, Flaw, Garbage, RangeAck, Verb, parse_ack
from overlay.consumer.events import Event, FlowAnswered, read_ack
from overlay.field import Field, FieldKind
from overlay.kafka.header_names import CORRELATION, REPLY_PARTITION, REPLY_TOPIC, TOKEN
from overlay.kernels import kernel
from overlay.replies.reply_address import ReplyRule, read_address
from overlay.scan import Decoder, Fault, Malformed, Records, make_plan
from overlay.scan.codec import Arena
from overlay.scan.commit import Aborted
from overlay.scan.kernel import open_bodies

from .ack_offsets import EVERYTHING, AckOffsets

_TOKEN = Field(FieldKind.HEADER, TOKEN)
_REPLY = tuple(Field(FieldKind.HEADER, name) for name in (REPLY_TOPIC, REPLY_PARTITION, CORRELATION))
_KEY = Field(FieldKind.KEY)

_ODD, _ELSEWHERE, _ACK, _NAK, _PROGRESS, _TERM = range(6)
"""Kinds of rows: to be parsed row by row, to be skipped, and of one verb each."""
_VERBS = {_ACK: Verb.ACK, _NAK: Verb.NAK, _PROGRESS: Verb.PROGRESS, _TERM: Verb.TERM}
_MOST_INCARNATIONS = 8
"""Most incarnations of one consumer that the kernel numbers in a slice; tokens of further ones are
parsed row by row. Each token is compared with those of its consumer, one after the other.
"""
_NEW, _TOO_MANY = -1, -2
"""What stands for the number of an incarnation that has none yet, or gets none."""
FLOW = "$JS.FC."
HEAD_2 = np.frombuffer(b"$JS.ACK._.", np.uint8)
MOST_BYTES = 32 << 20
"""Most bytes that one batch of acks may decompress to. Any client may write one, and each of its
records is looked at.
"""
MOST_RECORDS = 100_000
"""Most records of one batch of acks. A megabyte that is compressed has room for more than a million tiny
records, of which each would be parsed by itself. Of acks that differ it has room for some 150,000, and
producers end their batches far below that.
"""


@dataclass(frozen=True, slots=True, eq=False)
class AckBatch:
    """Acks with the same verb for deliveries of one consumer, in the order of the topic. Each
    column is int64 with one entry per ack.

    `sequences`, `consumer_seqs` and `deliveries` are the numbers in the token: stream sequence,
    consumer sequence, and how often the message was delivered. `incarnations`: for each ack the
    index in `names` of the incarnation that its token names, that is, of the ownership of the
    consumer that made the delivery. Tokens of version 1 name none: their index is -1, and the last
    name is empty. `incarnations` is None only if all tokens are of version 1.
    """

    verb: Verb
    sequences: Ints
    consumer_seqs: Ints
    deliveries: Ints
    incarnations: Ints | None = None
    names: tuple[str, ...] = field(default=("",), kw_only=True)

    def keep(self, kept: Ints) -> AckBatch:
        """Return a new batch with the acks at these indices, in this order."""
        by = None if self.incarnations is None else self.incarnations[kept]
        columns = self.sequences[kept], self.consumer_seqs[kept], self.deliveries[kept]
        return AckBatch(self.verb, *columns, by, names=self.names)

    def split(self) -> Iterator[tuple[str, Ints]]:
        """Yield each incarnation that tokens name ("" for tokens without one), with the indices of
        its acks in this batch.
        """
        if self.incarnations is None:
            yield "", np.arange(self.sequences.size)
            return
        for place in np.unique(self.incarnations).tolist():
            yield self.names[place], np.flatnonzero(self.incarnations == place)


@dataclass(slots=True)
class DecodedAcks:
    """The acks of one fetch. `said`: ack batches and events by consumer name, each consumer's in the
    order of the topic. `kinds`: number of acks by verb in lower case, `range` for range acks.
    `refused`: number of records that are no valid acks, and of batches that cannot be read, by
    reason.
    """

    said: dict[str, list[AckBatch | Event]] = field(default_factory=dict)
    kinds: Counter[str] = field(default_factory=Counter)
    refused: Counter[Flaw] = field(default_factory=Counter)
    firsts: dict[Flaw, tuple[int, str]] = field(default_factory=dict)
    """By reason the offset of the first record or batch that was refused, and what is wrong with a batch."""
    unanswered: int = 0
    """Number of acks that name a reply topic that is not allowed. These acks count all the same."""
    since: AckOffsets = EVERYTHING
    """Records below these offsets were processed before and are ignored."""

    def refuse(self, flaw: Flaw, offset: int, text: str = "") -> None:
        """Count a record, or a batch that cannot be read, as refused."""
        self.refused[flaw] += 1
        self.firsts.setdefault(flaw, (offset, text))

    def add(self, consumer: str, *said: AckBatch | Event) -> None:
        """Append ack batches or events for a consumer."""
        self.said.setdefault(consumer, []).extend(said)


class AckDecoder:
    """The decoder of one stream's acks. Not thread-safe.

    `mine`: names of the consumers whose acks this session processes. `others`: names of the
    stream's other consumers, whose acks are skipped. `rule`: which topics an ack may name for its
    answer.
    """

    def __init__(self, stream: str, mine: Iterable[str], others: Iterable[str], rule: ReplyRule) -> None:
        self._stream, self._rule = stream, rule
        self.know(mine, others)
        self._head = np.frombuffer(f"$JS.ACK.{stream}.".encode(), np.uint8)
        self._stream_text = np.frombuffer(f"{stream}.".encode(), np.uint8)
        arena = Arena(limit=MOST_BYTES)
        self._decoder = Decoder(make_plan((_TOKEN, _KEY, *_REPLY)), arena=arena, most_records=MOST_RECORDS)

    def know(self, mine: Iterable[str], others: Iterable[str]) -> None:
        """Process the acks of the consumers in `mine` from now on, and skip those of `others`."""
        self._mine = set(mine)
        self._names = sorted({*self._mine, *others}, key=lambda name: name.encode())
        texts = [name.encode() for name in self._names]
        self._text = np.frombuffer(b"".join(texts), np.uint8)
        self._bounds = np.cumsum([0, *(len(text) for text in texts)])
        self._is_mine = np.array([name in self._mine for name in self._names], np.bool_)

    def read(self, data: Bytes, position: int, aborted: Aborted, since: AckOffsets = EVERYTHING) -> DecodedAcks:
        """Decode fetched record batches from the offset `position` on, and return the acks that
        their consumers have not processed yet.

        A batch that cannot be read, or a record that is no valid ack, is skipped and counted as
        refused; a record that was processed before is not counted. Acks of the stream's other
        consumers are skipped. `aborted`: the aborted transactions of the fetch, whose records are
        left out. `since`: from which offset on each consumer still has to process the records.
        """
        heard = DecodedAcks(since=since)
        for piece in self._decoder.decode(data, position, aborted=aborted):
            if isinstance(piece, Malformed):
                flaw = Flaw.RECORDS if piece.fault == Fault.TOO_MANY else Flaw.PAYLOAD
                heard.refuse(flaw, piece.base_offset, piece.fault.text)
            elif len(piece):
                self._read_slice(piece, heard)
        return heard

    def _read_slice(self, piece: Records, heard: DecodedAcks) -> None:
        value = self._open(piece)
        at = np.where(piece.size[0] >= 0, piece.at[0], piece.at[1])
        size = np.where(piece.size[0] >= 0, piece.size[0], piece.size[1])
        rows = len(piece)
        kind, consumer = np.empty(rows, np.int64), np.empty(rows, np.int64)
        numbers = np.empty((4, rows), np.int64)
        known, newest = np.empty((3, rows), np.int64), np.full(len(self._names), _NEW)
        count = _read(
            piece.buf, at, size, *value, piece.size[2] >= 0, self._head, HEAD_2, self._stream_text, self._text,
            self._bounds, self._is_mine, kind, consumer, numbers, known, newest,
        )  # fmt: skip
        self._drop_heard(piece, kind, consumer, heard.since)
        names = *(_cut_text(piece.buf, *known[:2, each].tolist()) for each in range(count)), ""
        for name, rows_of in self._deal(kind, consumer):
            for run in _split(kind[rows_of]):
                mine = rows_of[run]
                if kind[mine[0]] == _ODD:
                    self._read_odd(piece, mine, (at, size), value, heard)
                else:
                    verb = _VERBS[int(kind[mine[0]])]
                    heard.kinds[verb.name.lower()] += mine.size
                    sequences, consumer_seqs, deliveries, by = (column[mine] for column in numbers)
                    said = AckBatch(verb, sequences, consumer_seqs, deliveries, by if count else None, names=names)
                    heard.add(name, said)

    def _drop_heard(self, piece: Records, kind: Ints, consumer: Ints, since: AckOffsets) -> None:
        """Set `kind` to _ELSEWHERE, so that the row is skipped, where the row's consumer has
        processed it before.

        `consumer`: the number of each row's consumer, -1 if unknown. Rows with -1 are not changed
        here; `_tell` checks those that are parsed row by row.
        """
        if since.last > piece.offset[0]:
            first = np.array([since.of(name) for name in self._names], np.int64)
            kind[(consumer >= 0) & (piece.offset < first[consumer])] = _ELSEWHERE

    def _deal(self, kind: Ints, consumer: Ints) -> Iterable[tuple[str, Ints]]:
        """Yield a consumer's name with rising row numbers, for all rows that are not to be skipped.

        Without rows of kind _ODD there is one pair for each consumer. An odd row may belong to any
        consumer, so with them all rows are yielded in the order of the topic, cut wherever the
        consumer changes. The name is empty for a run of odd rows.
        """
        ours = np.flatnonzero(kind != _ELSEWHERE)
        if not (kind == _ODD).any():
            for number in np.flatnonzero(np.bincount(consumer[ours])).tolist():
                yield self._names[number], ours[consumer[ours] == number]
            return
        owner = np.where(kind[ours] == _ODD, -1, consumer[ours])
        for run in _split(owner):
            number = int(owner[run][0])
            yield "" if number < 0 else self._names[number], ours[run]

    @staticmethod
    def _open(piece: Records) -> tuple[Ints, Ints]:
        """Return where the value of each record begins in the buffer, and its size in bytes (-1 for
        null).
        """
        columns = [np.empty(len(piece), np.int64) for _ in range(5)]
        open_bodies(piece.buf, piece.body, piece.end, *columns)
        return columns[2], columns[3]

    def _read_odd(
        self, piece: Records, rows: Ints, token: tuple[Ints, Ints], value: tuple[Ints, Ints], heard: DecodedAcks
    ) -> None:
        for row in rows.tolist():
            text, body = (_cut(piece.buf, at[row], size[row]) for at, size in (token, value))
            self._tell(text or b"", body or b"", _find_header(piece, row), int(piece.offset[row]), heard)

    def _tell(
        self, text: bytes, body: bytes, find_header: Callable[[str], bytes | None], offset: int, heard: DecodedAcks
    ) -> None:
        """Parse one record by itself, and add its events to `heard` or count it as refused.

        A record that its consumer has processed before, or whose consumer is one of the stream's
        others, is skipped. `text`: the token, or the subject of a flow control request. `body`: the
        value. `find_header`: returns a reply header's value or None. `offset`: of the record in the
        ack topic.
        """
        # an answer to flow control, or no ack at all
        if text.startswith(FLOW.encode()):
            return self._tell_flow(text, body, offset, heard)
        found = parse_ack(text, body)
        if isinstance(found, Garbage):
            if offset >= heard.since.shared:
                heard.refuse(found.flaw, offset)
            return
        stream, name = _name(found)
        if offset < heard.since.of(name):
            return
        if stream != self._stream or name not in self._names:
            heard.refuse(Flaw.UNKNOWN, offset)
        elif name not in self._mine:
            return  # the worker that has the consumer counts it
        elif isinstance(found, Ack) and found.is_flawed:
            heard.refuse(Flaw.PAYLOAD, offset)
        else:
            heard.kinds["range" if isinstance(found, RangeAck) else found.verb.name.lower()] += 1
            # the record's offset serves as the id that a pinned client gets
            reply = read_address(find_header, self._rule)
            heard.unanswered += not reply and find_header(REPLY_TOPIC) is not None
            heard.add(name, read_ack(found, reply, str(offset)))

    def _tell_flow(self, text: bytes, body: bytes, offset: int, heard: DecodedAcks) -> None:
        """Add a FlowAnswered event for an answer to a flow control request of a consumer.

        An answer that was processed before, or whose consumer is one of the stream's others, is
        skipped. One that names no consumer of the stream is counted as refused.

        `text`: the subject of that request, which the answer repeats. `body`: may list ranges of
        consumer sequences, as a range ack does. The highest of them becomes the event's `up_to`,
        which is 0 without valid ranges. `offset`: of the answer in the ack topic.
        """
        parts = text.decode(errors="replace").split(".")
        if offset < heard.since.of(parts[-2]):
            return
        if len(parts) not in (5, 7) or parts[-3] != self._stream or parts[-2] not in self._names:
            heard.refuse(Flaw.UNKNOWN, offset)
        elif parts[-2] in self._mine:
            taken = parse_ack(f"$JS.ACK.{parts[-3]}.{parts[-2]}".encode(), body)
            up_to = max(last for _, last in taken.ranges) if isinstance(taken, RangeAck) else 0
            heard.add(parts[-2], FlowAnswered(".".join(parts), up_to))


def _name(ack: Ack | RangeAck) -> tuple[str, str]:
    named = ack if isinstance(ack, RangeAck) else ack.token
    return named.stream, named.consumer


def _find_header(piece: Records, row: int) -> Callable[[str], bytes | None]:
    names = [field.name for field in _REPLY]

    def find(name: str) -> bytes | None:
        slot = 2 + names.index(name)
        return _cut(piece.buf, piece.at[slot, row], piece.size[slot, row])

    return find


def _cut(buf: Bytes, at: int, size: int) -> bytes | None:
    return buf[at : at + size].tobytes() if size >= 0 else None


def _cut_text(buf: Bytes, at: int, size: int) -> str:
    # a text that is not UTF-8 names no incarnation of ours, nor does its replacement
    return buf[at : at + size].tobytes().decode(errors="replace")


def _split(values: Ints) -> Sequence[slice]:
    """Return the runs of equal neighbours in an array, in order, each as a slice of indices."""
    if not values.size:
        return []
    cuts = np.flatnonzero(np.diff(values)) + 1
    bounds = [0, *cuts.tolist(), values.size]
    return [slice(first, end) for first, end in pairwise(bounds)]


@kernel
def _starts_with(buf: Bytes, at: Int, end: Int, text: Bytes) -> Bool:
    if end - at < text.size:
        return False
    for i in range(text.size):  # noqa: SIM110 - numba has no all()
        if buf[at + i] != text[i]:
            return False
    return True


@kernel
def _compare(buf: Bytes, at: Int, size: Int, text: Bytes, first: Int, end: Int) -> Int:
    """Compare `size` bytes of `buf` from `at` on with `text[first:end]`, in the order of bytes.
    Return a negative number if the first come before the second, 0 if they are equal, else a
    positive one.
    """
    for i in range(min(size, end - first)):
        if buf[at + i] != text[first + i]:
            return np.int64(buf[at + i]) - np.int64(text[first + i])
    return size - (end - first)


@kernel
def _find_name(buf: Bytes, at: Int, size: Int, text: Bytes, bounds: Ints, guess: int) -> int:
    """Return the number of the name in `size` bytes of `buf` from `at` on, or -1 if it is unknown.

    `text`: all known names, sorted and joined; name i is `text[bounds[i]:bounds[i + 1]]`. `guess`:
    a number to try first, negative for none.
    """
    if guess >= 0 and _compare(buf, at, size, text, bounds[guess], bounds[guess + 1]) == 0:
        return guess
    low, high = 0, bounds.size - 1
    while low < high:
        middle = (low + high) // 2
        order = _compare(buf, at, size, text, bounds[middle], bounds[middle + 1])
        if order == 0:
            return middle
        if order < 0:
            high = middle
        else:
            low = middle + 1
    return -1


@kernel
def _read_numbers(buf: Bytes, at: Int, end: Int, out: Ints) -> Bool:
    """Read a token's five decimal numbers, with dots between them, from `buf[at:end]` into `out`
    (int64): deliveries, stream sequence, consumer sequence, time in ns, num_pending.

    Return True if there are exactly five without a sign, each fits int64, and the first three are
    above 0. Otherwise return False, and `out` may be filled in part.
    """
    for k in range(5):
        digits, value = 0, np.uint64(0)
        while at < end and 48 <= buf[at] <= 57:
            value = value * np.uint64(10) + np.uint64(buf[at] - 48)
            digits += 1
            at += 1
        if (
            digits == 0 or digits > 19 or value > np.uint64(0x7FFFFFFFFFFFFFFF)
        ):  # 19 digits fit into 64 bits without a sign
            return False
        out[k] = np.int64(value)
        if k < 4:
            if at >= end or buf[at] != 46:
                return False
            at += 1
    return at == end and out[0] > 0 and out[1] > 0 and out[2] > 0


@kernel
def _find_dot(buf: Bytes, at: Int, end: Int) -> Int:
    while at < end and buf[at] != 46:
        at += 1
    return at


@kernel
def _number(buf: Bytes, at: Int, size: Int, known: Ints, newest: Int) -> Int:
    """Return the number of an incarnation of a consumer. If it has none yet, return _NEW, or
    _TOO_MANY if _MOST_INCARNATIONS others of this consumer have one.

    Its text is `size` bytes of `buf` from `at` on. `known`: by number, the start and size of an
    incarnation's text, and the number of the same consumer's incarnation before it or _NEW (3 rows);
    nothing is added here. `newest`: the number of this consumer's incarnation that was numbered
    last, _NEW if there is none.
    """
    each, passed = newest, 0
    while each >= 0:
        if known[1, each] == size:
            i = 0
            while i < size and buf[known[0, each] + i] == buf[at + i]:
                i += 1
            if i == size:
                return each
        each = known[2, each]
        passed += 1
    return np.int64(_NEW if passed < _MOST_INCARNATIONS else _TOO_MANY)


@kernel
def _read_verb(buf: Bytes, at: Int, size: Int) -> Int:
    """Return _ACK, _NAK, _PROGRESS or _TERM if a body is only that verb, _ODD for any other body.
    An empty or null body and `+OK` are _ACK. The body is `size` bytes of `buf` from `at` on.
    """
    if size <= 0:
        return _ACK
    if size == 3 and buf[at] == 43 and buf[at + 1] == 79 and buf[at + 2] == 75:  # +OK
        return _ACK
    if size == 4:
        first, a, b, c = buf[at], buf[at + 1], buf[at + 2], buf[at + 3]
        if first == 43 and a == 65 and b == 67 and c == 75:  # +ACK
            return _ACK
        if first == 45 and a == 78 and b == 65 and c == 75:  # -NAK
            return _NAK
        if first == 43 and a == 87 and b == 80 and c == 73:  # +WPI
            return _PROGRESS
    if (
        size == 5
        and buf[at] == 43
        and buf[at + 1] == 84
        and buf[at + 2] == 69
        and buf[at + 3] == 82
        and buf[at + 4] == 77
    ):
        return _TERM  # +TERM
    return _ODD


@kernel
def _pass_head(buf: Bytes, first: Int, end: Int, head: Bytes, head_2: Bytes, stream: Bytes) -> tuple[Int, Int]:
    """Return where the consumer's name begins in `buf`, for the token in `buf[first:end]`, and the
    size of the token's incarnation: 0 in version 1. If the token begins otherwise, or is of another
    stream, return (-1, 0).

    `head`: how tokens of version 1 begin, with the stream. `head_2`: how those of version 2 begin,
    up to the incarnation. `stream`: the stream's name and a dot. A stream or a consumer may be named
    `_`: after the incarnation version 2 has the stream's name, version 1 a number.
    """
    text = first + head_2.size
    if _starts_with(buf, first, end, head_2):
        dot = _find_dot(buf, text, end)
        if dot > text and _starts_with(buf, dot + 1, end, stream):
            return dot + 1 + stream.size, dot - text
    if _starts_with(buf, first, end, head):
        return first + head.size, 0
    return -1, 0


@kernel
def _read(
    buf: Bytes, at: Ints, size: Ints, value_at: Ints, value_size: Ints, has_reply: Flags, head: Bytes, head_2: Bytes,
    stream: Bytes, names: Bytes, bounds: Ints, is_mine: Flags, kind: Ints, consumer: Ints, numbers: Ints, known: Ints,
    newest: Ints,
) -> int:  # fmt: skip
    """Read each row's token and body. Return how many incarnations have got a number.

    `kind`: receives a row's verb, _ELSEWHERE if `is_mine` is False for the consumer, or _ODD if the
    row has to be parsed by itself. For rows with a verb, `consumer` receives the number of the
    consumer's name (else -1, or that number if only the body is odd), and the rows of `numbers`
    receive stream sequence, consumer sequence, deliveries, and number of the incarnation (-1 for
    version 1). `known` receives for each incarnation the start and size of its text, and the number
    of the consumer's incarnation before it or _NEW. `newest`, _NEW at first, receives the number of
    each consumer's last one. `has_reply`: rows that want an answer are _ODD. `head`, `head_2`,
    `stream`: as in `_pass_head`. `names`, `bounds`: as `text`, `bounds` in `_find_name`.
    """
    found = np.empty(5, np.int64)
    guess, count = -1, 0
    for row in range(at.size):
        kind[row], consumer[row] = _ODD, -1
        end = at[row] + size[row]
        first, length = _pass_head(buf, at[row], end, head, head_2, stream)
        if first < 0:
            continue
        # the consumer: unknown ones are parsed row by row, those of other workers are skipped
        dot = _find_dot(buf, first, end)
        name = _find_name(buf, first, dot - first, names, bounds, guess)
        if name < 0:
            continue
        guess = name
        if not is_mine[name]:
            kind[row] = _ELSEWHERE
            continue
        if has_reply[row] or not _read_numbers(buf, dot + 1, end, found):
            continue
        # the number of the incarnation
        by: Int = -1
        if length > 0:
            text = at[row] + head_2.size
            by = _number(buf, text, length, known, newest[name])
            if by == _TOO_MANY:
                continue
            if by == _NEW:
                by = count
                known[0, by], known[1, by], known[2, by] = text, length, newest[name]
                newest[name] = by
                count += 1
        # the verb, and the numbers of the delivery
        kind[row] = _read_verb(buf, value_at[row], value_size[row])
        consumer[row] = name
        numbers[3, row] = by
        numbers[0, row], numbers[1, row], numbers[2, row] = found[1], found[2], found[0]
    return count
