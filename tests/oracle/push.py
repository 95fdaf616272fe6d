"""The slow, obvious twin of overlay/match and overlay/deliver: what a consumer's output must hold, record by record.

Written from docs/consumers.md and Kafka's documented partitioner, without a look at the kernels.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.oracle.batches import Header, Record
from tests.oracle.subjects import matches

SUBJECT, TOKEN, VALUE_SIZE = b"Nats-Subject", b"Nats-Reply-To", b"Nats-Msg-Size"
FULL_NAMES = (
    b"Nats-Stream",
    b"Nats-Consumer",
    b"Nats-Num-Delivered",
    b"Nats-Sequence",
    b"Nats-Consumer-Sequence",
    b"Nats-Time-Stamp",
    b"Nats-Num-Pending",
)


@dataclass(frozen=True, slots=True)
class Token:
    """`$JS.ACK.<stream>.<consumer>.<deliveries>.<stream_seq>.<consumer_seq>.<time ns>.<num_pending>`, or with `_` and the
    incarnation behind ACK."""

    stream: str
    consumer: str
    deliveries: int
    sequence: int
    consumer_sequence: int
    time: int
    pending: int
    incarnation: str = ""

    @property
    def owner(self) -> str:
        """Producer id and epoch of the owner of the shard: its incarnation without the secret."""
        return self.incarnation.partition("-")[0]

    def __str__(self) -> str:
        numbers = (self.deliveries, self.sequence, self.consumer_sequence, self.time, self.pending)
        more = ["_", self.incarnation] if self.incarnation else []
        return ".".join(["$JS", "ACK", *more, self.stream, self.consumer, *map(str, numbers)])


def parse_token(text: bytes) -> Token:
    """Raises ValueError when the text is no ack token."""
    js, ack, *parts = text.decode().split(".")
    incarnation = ""
    if len(parts) == 9:
        domain, incarnation, *parts = parts
        if domain != "_" or not incarnation:
            raise ValueError(f"not an ack token of the overlay: {text!r}")
    if (js, ack) != ("$JS", "ACK") or len(parts) != 7:
        raise ValueError(f"not an ack token: {text!r}")
    stream, consumer, *numbers = parts
    deliveries, sequence, consumer_sequence, time, pending = map(int, numbers)
    return Token(stream, consumer, deliveries, sequence, consumer_sequence, time, pending, incarnation)


def wants(filters: Sequence[str], subject: str) -> bool:
    """A consumer takes the union of its filters, and everything when it has none."""
    return not filters or any(matches(pattern, subject) for pattern in filters)


def deliver(
    record: Record, subject: str, token: Token, *, full: bool = False, headers_only: bool = False
) -> list[Header]:
    """The headers of a delivery: the source's, without those that bear a name of ours, and then ours."""
    ours: list[Header] = [(SUBJECT, subject.encode()), (TOKEN, str(token).encode())]
    if full:
        texts = str(token).split(".")[-len(FULL_NAMES) :]
        ours += [(name, text.encode()) for name, text in zip(FULL_NAMES, texts, strict=True)]
    if headers_only:
        ours.append((VALUE_SIZE, b"%d" % len(record.value or b"")))
    names = {name for name, _ in ours}
    return [header for header in record.headers if header[0] not in names] + ours


def murmur2(data: bytes) -> int:
    """Kafka's Utils.murmur2 as an unsigned number: little-endian words of four bytes, then the rest."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = 0x9747B28C ^ len(data)
    whole = len(data) // 4 * 4
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = h * m & mask ^ k
    if rest := data[whole:]:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15


def place(by: str, partitions: int, source_partition: int, key: bytes | None, subject: str) -> int:
    """The output partition of a record; `by` as the consumer's file says it. Without a key it goes by its subject."""
    if by == "source":
        return source_partition % partitions
    digest = murmur2(key if by == "key" and key is not None else subject.encode())
    return (digest & 0x7FFFFFFF) % partitions


def last_per_subject(subjects: Iterable[tuple[int, str]]) -> list[int]:
    """Offsets of the last of each subject, ascending."""
    lasts = {subject: offset for offset, subject in subjects}
    return sorted(lasts.values())
