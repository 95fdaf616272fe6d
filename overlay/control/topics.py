"""The topics that all shards share, created if they are missing."""

from __future__ import annotations

from overlay.kafka.admin import Admin, new_topic
from overlay.kafka.own_topics import list_shared_topics


async def ensure_own_topics(admin: Admin, prefix: str, replication: int) -> dict[str, str]:
    """Create the missing topics. Return the reason for each that is missing and cannot be created.
    Raises SourceUnavailable."""
    wanted = list_shared_topics(prefix)
    refused: dict[str, str] = {}
    present = await admin.find_topics(wanted, with_config=False, denied=refused)
    missing = {name: config for name, config in wanted.items() if name not in present and name not in refused}
    topics = [new_topic(name, 1, replication, config) for name, config in missing.items()]
    return refused | await admin.create_topics(topics)
