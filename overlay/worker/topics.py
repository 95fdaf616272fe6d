"""The topics that machines need beside their outputs: for acks, events and dead letters."""

from __future__ import annotations

from collections.abc import Iterable

from overlay.admin import Admin, TopicFacts, new_topic
from overlay.config import ConsumerConfig, Loaded
from overlay.consumer.acks import acks_topic
from overlay.deliver.notices import events_topic


def list_topics(prefix: str, config: ConsumerConfig) -> set[str]:
    """Those that one consumer needs."""
    letters = {config.dead_letter} if config.dead_letter else set()
    return {acks_topic(prefix, config.stream), events_topic(prefix)} | letters


async def ensure_machine_topics(
    admin: Admin, loaded: Loaded, machines: Iterable[ConsumerConfig]
) -> tuple[dict[str, TopicFacts], dict[str, str]]:
    """These topics as they stand, missing ones created with one partition; and why for each that cannot be had."""
    topics = loaded.service.topics
    names = {name for config in machines for name in list_topics(topics.prefix, config)}
    refused: dict[str, str] = {}
    present = await admin.find_topics(names, denied=refused)
    missing = sorted(names - present.keys() - refused.keys())
    refused |= await admin.create_topics(new_topic(name, 1, topics.replication, {}) for name in missing)
    return present | await admin.find_topics(name for name in missing if name not in refused), refused
