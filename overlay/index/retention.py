"""Retention of index topics: longer than the sources keep the records to which a ledger gave
sequences.

Brokers delete whole segments, and a segment only when its newest record is too old. So a source
keeps a record for its retention plus the time its segments take to fill. An index topic has other
segments, and keeps a ledger entry no longer than its own retention. With compaction alone there is
no retention at all, even though the topic has a `retention.ms`.

An index topic therefore keeps entries for the sum of four times: the source's retention, the
longest life of a segment there, the time by which timestamps may be ahead (MOST_AHEAD_MS at most),
and SLACK_MS. With several sources, the largest sum counts; if one of them does not delete by age,
entries are kept for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from overlay.kafka.topics import TopicFacts

LEAST_RETENTION_MS = 86_400_000
"""Shortest retention of an index topic, however short that of its sources. Ledgers are renewed far
more often (RENEW_MS of overlay/worker/round/sequencing.py)."""
SLACK_MS = 86_400_000
"""Allowance for clocks that differ, and for brokers that check for old segments at different
times."""
MOST_AHEAD_MS = 7 * 86_400_000
"""The most by which timestamps count as ahead of the time, even in a topic that accepts any."""
FOR_EVER = -1
_SEGMENT_BYTES = 64 << 20
_SEGMENT_MS = 7 * 86_400_000
"""Kafka's default for a topic that does not say."""


def index_config(sources: Iterable[TopicFacts]) -> dict[str, str]:
    """Return the topic configuration, value by name, with which to create the index topic of a
    stream that reads `sources`. It compacts. Unless `find_retention` returns FOR_EVER, it also
    deletes entries after that many ms.

    Compaction removes a chunk header once it was written again. All other records stay at least as
    long as the records of the sources may.
    """
    config = {"cleanup.policy": "compact", "segment.bytes": str(_SEGMENT_BYTES)}
    if (kept := find_retention(sources)) != FOR_EVER:
        config |= {"cleanup.policy": "compact,delete", "retention.ms": str(kept), "retention.bytes": "-1"}
    return config


def find_retention(sources: Iterable[TopicFacts]) -> int:
    """Return how long the index topic of these sources has to keep an entry, in ms; FOR_EVER if a
    source does not delete by age.

    It is also FOR_EVER if the configuration of a source cannot be read, and without sources.
    """
    kept = [_find_longest(facts.config) for facts in sources]
    if not kept or FOR_EVER in kept:
        return FOR_EVER
    return max(max(kept) + SLACK_MS, LEAST_RETENTION_MS)


def _find_longest(config: Mapping[str, str]) -> int:
    """Return how long a topic with this configuration may keep a record after it was produced, in
    ms; FOR_EVER if it does not delete by age. Timestamps count as ahead by at most MOST_AHEAD_MS,
    even if the topic accepts more.
    """
    retention = int(config.get("retention.ms", FOR_EVER))
    if retention < 0 or "delete" not in config.get("cleanup.policy", "delete"):
        return FOR_EVER
    ahead = int(config.get("message.timestamp.after.max.ms", MOST_AHEAD_MS))
    if config.get("message.timestamp.type") == "LogAppendTime":
        ahead = 0
    return retention + int(config.get("segment.ms", _SEGMENT_MS)) + min(ahead, MOST_AHEAD_MS)


def find_changes(index: TopicFacts, sources: Iterable[TopicFacts]) -> dict[str, str]:
    """Return the configuration to change at an existing index topic, new value by name, so that its
    entries outlive the records of `sources`. Empty if nothing has to change.

    Also empty if the index topic does not delete at all, or if its configuration cannot be read.
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
