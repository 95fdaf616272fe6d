"""How long index topics keep their records: for longer than the sources keep the records that a ledger has numbered.

Brokers expire whole segments, and a segment once its newest record is too old. So a source keeps a record for its retention,
and for as long as its segments take to fill; an index topic, which has other segments, keeps a round no longer than its own
retention. Compaction has no retention at all, even though the topic has a `retention.ms`. An index topic therefore keeps
rounds for the retention of the source, the longest life of a segment there, the time by which timestamps may be ahead, and
SLACK_MS more.

A retention that was raised later is noticed while a session runs, and the index topic follows. It never follows downwards:
somebody may want to keep more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from overlay.errors import OverlayError
from overlay.kafka.admin import Admin, TopicFacts
from overlay.logs import get_logger
from overlay.worker.assignment import Assignment
from overlay.worker.round.sequencing import RENEW_MS

log = get_logger(__name__)

LEAST_RETENTION_MS = 24 * RENEW_MS
"""Of an index topic, however short its sources keep their records: ledgers are renewed far more often."""
SLACK_MS = 86_400_000
"""For clocks that differ, and for brokers that look for old segments at different moments."""
MOST_AHEAD_MS = 7 * 86_400_000
"""Timestamps count as ahead of the time by no more than this, even where a topic takes any."""
FOR_EVER = -1
EVERY_S = 300.0

_SEGMENT_BYTES = 64 << 20
_SEGMENT_MS = 7 * 86_400_000
"""Kafka's default for a topic that does not say."""


def index_config(sources: Iterable[TopicFacts]) -> dict[str, str]:
    """Return the properties with which an index topic is created.

    A chunk header that was written anew replaces the older one. The rest stays for as long as the records of the sources may.
    """
    config = {"cleanup.policy": "compact", "segment.bytes": str(_SEGMENT_BYTES)}
    if (kept := find_retention(sources)) != FOR_EVER:
        config |= {"cleanup.policy": "compact,delete", "retention.ms": str(kept), "retention.bytes": "-1"}
    return config


def find_retention(sources: Iterable[TopicFacts]) -> int:
    """Return for how long the index topic of these sources has to keep a round, in ms; FOR_EVER if any keeps records so long.

    A source whose configuration cannot be read counts as one that keeps them for ever, as does a stream without sources.
    """
    kept = [_find_longest(facts.config) for facts in sources]
    if not kept or FOR_EVER in kept:
        return FOR_EVER
    return max(max(kept) + SLACK_MS, LEAST_RETENTION_MS)


def _find_longest(config: Mapping[str, str]) -> int:
    """Return how long a topic may keep a record after it was produced, in ms."""
    retention = int(config.get("retention.ms", FOR_EVER))
    if retention < 0 or "delete" not in config.get("cleanup.policy", "delete"):
        return FOR_EVER
    ahead = int(config.get("message.timestamp.after.max.ms", MOST_AHEAD_MS))
    if config.get("message.timestamp.type") == "LogAppendTime":
        ahead = 0
    return retention + int(config.get("segment.ms", _SEGMENT_MS)) + min(ahead, MOST_AHEAD_MS)


def find_changes(index: TopicFacts, sources: Iterable[TopicFacts]) -> dict[str, str]:
    """Return the properties of an index topic that have to change for it to outlive the records; none if it does.

    None as well if its configuration cannot be read.
    """
    if "delete" not in index.config.get("cleanup.policy", ""):
        return {}
    wanted, changes = find_retention(sources), dict[str, str]()
    has = int(index.config.get("retention.ms", FOR_EVER))
    if has >= 0 and (wanted == FOR_EVER or has < wanted):
        changes["retention.ms"] = str(wanted)
    if int(index.config.get("retention.bytes", FOR_EVER)) >= 0:
        changes["retention.bytes"] = str(FOR_EVER)
    return changes


async def follow_retention(
    admin: Admin, assignment: Assignment, told: dict[str, str], every_s: float = EVERY_S
) -> None:
    """Let the index topics that are kept here outlive the records, as long as a session runs: it does not return.

    `told`: by topic, why it could not be altered when that was logged last. It is logged again when the reason is another one.
    """
    while True:
        for stream, topic in assignment.index_topics.items():
            try:
                await _extend(admin, assignment, stream, topic, told)
            except OverlayError as error:
                log.warning("the retention of an index topic is not known", stream=stream, reason=str(error))
        await asyncio.sleep(every_s)


async def _extend(admin: Admin, assignment: Assignment, stream: str, topic: str, told: dict[str, str]) -> None:
    """Raise the retention of one index topic if that is too short. Raises OverlayError."""
    names = assignment.streams[stream].topic_names
    found = await admin.find_topics([topic, *names])
    if topic not in found or not all(name in found for name in names):
        return  # the session is about to end for it
    changes = find_changes(found[topic], [found[name] for name in names])
    if not changes:
        told.pop(topic, None)
        return
    if refusal := await admin.alter_topic(topic, changes):
        cause = f"{refusal}: {changes}"
        if told.get(topic) == cause:
            return
        told[topic] = cause
        tell = log.error if stream in assignment.ledgers else log.info
        event = "the index topic forgets earlier than the stream's topics do, and may not be altered"
        tell(event, stream=stream, topic=topic, wanted=changes, reason=refusal)
        return
    told.pop(topic, None)
    log.info(
        "the index topic keeps longer now what its stream's topics keep", stream=stream, topic=topic, config=changes
    )
