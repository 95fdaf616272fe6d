"""Reply addresses: where an answer goes, as one string that a machine carries without knowing its
meaning.

An address is `topic/partition/correlation`. The partition may be empty, which means partition 0.
The correlation id is percent-escaped. A client that wants an answer names the topic, and the
service writes there with its own rights. So only topics meant for answers are allowed: the
overlay's reply topics, and those listed in overlay.yaml.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import quote_from_bytes, unquote_to_bytes

from overlay.config.model import check_topic
from overlay.config.service import TopicsConfig
from overlay.kafka.header_names import CORRELATION, REPLY_PARTITION, REPLY_TOPIC
from overlay.kafka.own_topics import reply_topic

MAX_CORRELATION = 256
_MAX_PARTITION = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Address:
    """A parsed reply address. `partition`: None if it names none, which means partition 0."""

    topic: str
    correlation: bytes = b""
    partition: int | None = None

    def __str__(self) -> str:
        partition = "" if self.partition is None else self.partition
        return f"{self.topic}/{partition}/{quote_from_bytes(self.correlation, safe='')}"


def parse_address(text: str) -> Address:
    """Parse an address. Raises ValueError if the text is not one."""
    topic, partition, correlation = text.split("/")
    return Address(check_topic(topic), unquote_to_bytes(correlation), int(partition) if partition else None)


@dataclass(frozen=True, slots=True)
class ReplyRule:
    """The topics that a client may name for answers: the overlay's reply topics, and the listed ones.

    `prefix`: of the overlay's own topics. `listed`: names of topics (`topics.reply_to` in
    overlay.yaml). A name that ends in `.*` stands for all names that begin with the text before the
    star.
    """

    prefix: str
    listed: tuple[str, ...] = ()

    def allows(self, topic: str) -> bool:
        """Return whether a client may name this topic: the overlay's reply topic, one whose name
        goes on after that with a dot, or a listed one.

        Kafka's internal topics and the overlay's other topics are never allowed, even if listed.
        """
        own = reply_topic(self.prefix)
        if topic.startswith((f"{self.prefix}.", "__")):
            return topic == own or topic.startswith(f"{own}.")
        return any(_fits(topic, name) for name in self.listed)


def make_rule(topics: TopicsConfig) -> ReplyRule:
    """Return the rule that the service's config describes."""
    return ReplyRule(topics.prefix, topics.reply_to)


def _fits(topic: str, name: str) -> bool:
    return topic.startswith(name[:-1]) if name.endswith(".*") else topic == name


def read_address(find_header: Callable[[str], bytes | None], rule: ReplyRule, correlation: bytes = b"") -> str:
    """Return the address that a record's headers name; empty if no answer is wanted, or if the
    address is not valid or not allowed.

    `find_header(name)`: returns the last header of that name, None without one. `correlation`: the
    correlation id if the record names none.
    """
    wanted = find_header(REPLY_TOPIC)
    if not wanted:
        return ""
    named, partition = find_header(CORRELATION) or b"", find_header(REPLY_PARTITION) or b""
    try:
        topic = check_topic(wanted.decode())
        number = int(partition) if partition else None
    except ValueError:
        return ""
    sound = len(named) <= MAX_CORRELATION and (number is None or 0 <= number <= _MAX_PARTITION)
    return str(Address(topic, named or correlation, number)) if sound and rule.allows(topic) else ""
