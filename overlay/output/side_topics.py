"""The topics that consumers need besides their outputs: for acks, events and dead letters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from overlay.config import ConsumerConfig, Loaded
from overlay.config.consumer import OnUndeliverable
from overlay.kafka.admin import Admin, TopicFacts, new_topic
from overlay.kafka.own_topics import ACKS_CONFIG, EVENTS_CONFIG, acks_topic, events_topic

from .batch_builder import MAX_MESSAGE_BYTES
from .topics import find_fault


def list_side_topics(prefix: str, config: ConsumerConfig) -> set[str]:
    """Return the names of the topics that a consumer needs besides its output: its stream's ack
    topic and the events topic if it needs a machine, and its dead letter topic. Empty if it needs
    none."""
    own = {acks_topic(prefix, config.stream), events_topic(prefix)} if config.needs_machine else set()
    return own | {config.dead_letter_topic} if config.dead_letter_topic else own


async def ensure_side_topics(
    admin: Admin, loaded: Loaded, configs: Iterable[ConsumerConfig], sources: Mapping[str, TopicFacts | None]
) -> tuple[dict[str, TopicFacts], dict[str, str]]:
    """Create the topics of `list_side_topics` that are missing, with one partition each. Return the
    facts of those that exist, and by topic the reason why it cannot be used.

    Reasons are: this user may not describe it, it was not created, or it is a dead letter topic
    that accepts no records now, which is in both results. Existing topics are not changed.
    `sources`: by source topic of the streams, its facts, None for a missing one. With
    `on_undeliverable: dead_letter` they decide how large the records of a new dead letter topic may
    be.
    """
    topics, consumers = loaded.service.topics, list(configs)
    own = {events_topic(topics.prefix): EVENTS_CONFIG}
    own |= {acks_topic(topics.prefix, config.stream): ACKS_CONFIG for config in consumers}
    names = {name for config in consumers for name in list_side_topics(topics.prefix, config)}
    wanted = {name: dict(own.get(name, {})) for name in names}
    dead_letter_topics = {name for config in consumers if (name := config.dead_letter_topic)}
    for config in consumers:
        if config.on_undeliverable is OnUndeliverable.DEAD_LETTER and (name := config.dead_letter_topic):
            _widen(wanted[name], [sources.get(topic) for topic in loaded.streams[config.stream].topic_names])
    refused: dict[str, str] = {}
    present = await admin.find_topics(wanted, denied=refused)
    missing = sorted(wanted.keys() - present.keys() - refused.keys())
    created, not_created = await admin.create_topics(
        new_topic(name, 1, topics.replication, wanted[name]) for name in missing
    )
    present, refused = present | created, refused | not_created
    faults = {name: fault for name in dead_letter_topics & present.keys() if (fault := find_fault(present[name]))}
    return present, {**refused, **{name: f"topic {name}: {fault}" for name, fault in faults.items()}}


def _widen(config: dict[str, str], sources: Iterable[TopicFacts | None]) -> None:
    """Set max.message.bytes in the `config` of a new dead letter topic to twice the largest limit
    of its source topics (at most 2 GiB), so that it accepts any of their records. These may be
    larger than the output accepts. A larger value in `config` stays. Without an existing source topic
    nothing is set."""
    given = [int(facts.config.get("max.message.bytes", MAX_MESSAGE_BYTES)) for facts in sources if facts is not None]
    # twice: the source's codec may compress better than ours, and our headers are added
    if given:
        most = max(int(config.get("max.message.bytes", 0)), *(min(2 * size, 2**31 - 1) for size in given))
        config["max.message.bytes"] = str(most)
