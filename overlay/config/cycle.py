"""The search for output topics that lead back to a topic they were filtered from (10081).

A consumer reads its stream's topics and writes its output topic. Another stream may read that
output, and its consumers may write to a topic of the first stream again. Then every message would
circulate for ever. Kafka has no subjects that could break the cycle, so the topics alone decide,
whatever the filters are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping

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
        way = _find_way(
            _outputs(consumer), sources.get(who[0], frozenset()), lambda topic: readers.get(topic, ()), consumers
        )
        if way:
            found[who] = way
    return found


def find_cycle(
    streams: Mapping[str, StreamConfig], consumers: Mapping[ConsumerId, ConsumerConfig], consumer: ConsumerConfig
) -> tuple[str, ...]:
    """Return the path on which the output or dead-letter topic of one consumer leads back to a source
    topic of its stream, as `find_cycles` does; empty if there is none.

    `consumers`: those beside it, which are looked through only if a stream reads one of its topics.
    """
    sources = {name: frozenset(stream.topic_names) for name, stream in streams.items()}

    def list_readers(topic: str) -> list[ConsumerId]:
        if not any(topic in topics for topics in sources.values()):
            return []
        return [who for who in consumers if topic in sources.get(who[0], ())]

    return _find_way(_outputs(consumer), sources.get(consumer.stream, frozenset()), list_readers, consumers)


def _outputs(consumer: ConsumerConfig) -> list[str]:
    return [topic for topic in (consumer.deliver_subject, consumer.dead_letter) if topic]


def _find_way(
    starts: list[str],
    goals: Collection[str],
    list_readers: Callable[[str], Iterable[ConsumerId]],
    consumers: Mapping[ConsumerId, ConsumerConfig],
) -> tuple[str, ...]:
    """Return the shortest path from one of the topics `starts` to one of `goals`, in the form of `find_cycles`; empty
    if there is none. A start that is a goal is a path by itself. `list_readers`: returns the consumers that read a
    topic.
    """
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
        for who in list_readers(topic):
            ways.extend((*way, f"{who[0]}/{who[1]}", output) for output in _outputs(consumers[who]))
    return ()
