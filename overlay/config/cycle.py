"""The search for output topics that lead back to a topic they were filtered from (10081).

A consumer reads its stream's topics and writes its output topic. Another stream may read that
output, and its consumers may write to a topic of the first stream again. Then every message would
circulate for ever. Kafka has no subjects that could break the cycle, so the topics alone decide,
whatever the filters are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping

from .consumer import ConsumerConfig
from .stream import StreamConfig

ConsumerId = tuple[str, str]


def find_cycles(
    streams: Mapping[str, StreamConfig], consumers: Mapping[ConsumerId, ConsumerConfig]
) -> dict[ConsumerId, tuple[str, ...]]:
    """Return the consumers whose output topic or dead-letter topic leads back to a source topic of
    their own stream, each with its path. Empty if there are none.

    A path is topic, stream/consumer, topic, ... from such a topic of the consumer to a source topic
    of its stream.
    """
    sources = {name: frozenset(stream.topic_names) for name, stream in streams.items()}
    readers: dict[str, list[ConsumerId]] = {}
    for who in consumers:
        for topic in sources.get(who[0], ()):
            readers.setdefault(topic, []).append(who)
    found: dict[ConsumerId, tuple[str, ...]] = {}
    for who, consumer in consumers.items():
        way = _find_way(_outputs(consumer), sources.get(who[0], frozenset()), readers, consumers)
        if way:
            found[who] = way
    return found


def _outputs(consumer: ConsumerConfig) -> list[str]:
    return [topic for topic in (consumer.deliver_subject, consumer.dead_letter) if topic]


def _find_way(
    starts: list[str],
    goals: Collection[str],
    readers: Mapping[str, list[ConsumerId]],
    consumers: Mapping[ConsumerId, ConsumerConfig],
) -> tuple[str, ...]:
    ways: deque[tuple[str, ...]] = deque((topic,) for topic in starts)
    seen: set[str] = set()
    while ways:
        way = ways.popleft()
        topic = way[-1]
        if topic in goals:
            return way
        if topic in seen:
            continue
        seen.add(topic)
        for who in readers.get(topic, ()):
            ways.extend((*way, f"{who[0]}/{who[1]}", output) for output in _outputs(consumers[who]))
    return ()
