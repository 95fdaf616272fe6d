"""Retention of index topics: longer than the sources keep the records to which a ledger gave
sequences.

Brokers delete whole segments, and a segment only when its newest record is too old. So a source
keeps a record for its retention plus the time its segments take to fill. An index topic has other
segments, and keeps a ledger entry no longer than its own retention. With compaction alone there is
no retention at all, even though the topic has a `retention.ms`.

An index topic therefore keeps entries for the sum of four times: the source's retention, the
longest life of a segment there, the time by which timestamps may be ahead, and SLACK_MS.

A session notices if a source's retention is raised while it runs, and raises that of the index
topic. It never lowers it: an operator may want to keep more.
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
"""Shortest retention of an index topic, however short that of its sources. Ledgers are renewed far
more often."""
SLACK_MS = 86_400_000
"""Allowance for clocks that differ, and for brokers that check for old segments at different
times."""
MOST_AHEAD_MS = 7 * 86_400_000
"""The most by which timestamps count as ahead of the time, even in a topic that accepts any."""
FOR_EVER = -1
EVERY_S = 300.0
"""Seconds between two looks at the sources' retention."""

_SEGMENT_BYTES = 64 << 20
_SEGMENT_MS = 7 * 86_400_000
"""Kafka's default for a topic that does not say."""


def index_config(sources: Iterable[TopicFacts]) -> dict[str, str]:
    """Return the properties with which an index topic is created.

    Compaction removes a chunk header once it was written again. All other records stay for as long
    as the records of the sources may.
    """
    config = {"cleanup.policy": "compact", "segment.bytes": str(_SEGMENT_BYTES)}
    if (kept := find_retention(sources)) != FOR_EVER:
        config |= {"cleanup.policy": "compact,delete", "retention.ms": str(kept), "retention.bytes": "-1"}
    return config


def find_retention(sources: Iterable[TopicFacts]) -> int:
    """Return how long the index topic of these sources has to keep an entry, in ms; FOR_EVER if a
    source keeps records forever.

    A source whose configuration cannot be read counts as one that keeps records forever, and so
    does a stream without sources.
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
    """Return the properties of an index topic that have to change for it to outlive the records,
    none if it does already.

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
