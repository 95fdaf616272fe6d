"""Reply addresses: where an answer goes, as one string that a machine can carry without knowing what it means.

An address is `topic/partition/correlation`; the partition may be empty, which means the first, and the correlation is
percent-escaped. Whoever wants an answer names the topic, and the answer is written in the transaction of a shard. So a topic
that the overlay must not write to on a stranger's word is no address: Kafka's own, and those of the overlay but for its
reply topics.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import quote_from_bytes, unquote_to_bytes

from overlay.config.model import check_topic

REPLY_TOPIC = "Overlay-Reply-Topic"
REPLY_PARTITION = "Overlay-Reply-Partition"
CORRELATION = "Overlay-Correlation-Id"
"""Headers of an ack or a request whose sender wants an answer; the answer has the last one again."""

MAX_CORRELATION = 256
_MAX_PARTITION = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Address:
    """`partition`: None for the first."""

    topic: str
    correlation: bytes = b""
    partition: int | None = None

    def __str__(self) -> str:
        partition = "" if self.partition is None else self.partition
        return f"{self.topic}/{partition}/{quote_from_bytes(self.correlation, safe='')}"


def parse_address(text: str) -> Address:
    """An address from its text. Raises ValueError for a text that is none."""
    topic, partition, correlation = text.split("/")
    return Address(check_topic(topic), unquote_to_bytes(correlation), int(partition) if partition else None)


def reply_topic(prefix: str) -> str:
    """The reply topic that the overlay provides."""
    return f"{prefix}.replies"


def read_address(find_header: Callable[[str], bytes | None], prefix: str) -> str:
    """The address that a record's headers name; empty when no answer is wanted or the topic may not be written to.

    `find_header(name)`: the last header of that name. `prefix`: of the overlay's own topics.
    """
    wanted = find_header(REPLY_TOPIC)
    if not wanted:
        return ""
    correlation, partition = find_header(CORRELATION) or b"", find_header(REPLY_PARTITION) or b""
    try:
        topic = check_topic(wanted.decode())
        number = int(partition) if partition else None
    except ValueError:
        return ""
    sound = len(correlation) <= MAX_CORRELATION and (number is None or 0 <= number <= _MAX_PARTITION)
    return str(Address(topic, correlation, number)) if sound and may_answer(topic, prefix) else ""


def may_answer(topic: str, prefix: str) -> bool:
    """Whether a stranger may name this topic for answers."""
    if topic.startswith("__"):
        return False
    own = reply_topic(prefix)
    return not topic.startswith(f"{prefix}.") or topic == own or topic.startswith(own + ".")
