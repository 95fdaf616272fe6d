"""The overlay's own topics besides state and index: control, replies and events. They are created
if they are missing."""

from __future__ import annotations

from overlay.dispatch.event_topic import events_topic
from overlay.dispatch.reply_address import reply_topic
from overlay.kafka.admin import Admin, new_topic

from .records import control_topic

HOUR_MS = 3_600_000
CONTROL_CONFIG = {
    "cleanup.policy": "compact",
    # one clock decides whether a request has expired, not those of all clients
    "message.timestamp.type": "LogAppendTime",
    # answered requests are tombstones; compaction takes whole segments, so they must not grow old
    "segment.ms": str(HOUR_MS),
    "delete.retention.ms": str(HOUR_MS),
    "min.cleanable.dirty.ratio": "0.1",
}
REPLY_CONFIG = {"cleanup.policy": "delete", "retention.ms": str(HOUR_MS), "segment.ms": str(HOUR_MS // 2)}
EVENTS_CONFIG = {"cleanup.policy": "delete", "retention.ms": str(7 * 24 * HOUR_MS)}


def list_topics(prefix: str) -> dict[str, dict[str, str]]:
    """Return the properties of these topics, by name. Each has one partition."""
    return {
        control_topic(prefix): CONTROL_CONFIG,
        reply_topic(prefix): REPLY_CONFIG,
        events_topic(prefix): EVENTS_CONFIG,
    }


async def ensure_own_topics(admin: Admin, prefix: str, replication: int) -> dict[str, str]:
    """Create the missing topics. Return the reason for each that is missing and cannot be created.
    Raises SourceUnavailable."""
    wanted = list_topics(prefix)
    refused: dict[str, str] = {}
    present = await admin.find_topics(wanted, with_config=False, denied=refused)
    missing = {name: config for name, config in wanted.items() if name not in present and name not in refused}
    topics = [new_topic(name, 1, replication, config) for name, config in missing.items()]
    return refused | await admin.create_topics(topics)
