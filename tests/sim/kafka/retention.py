"""What brokers delete by themselves: segments that are too old or too many, and forgotten producers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import compaction
from .settings import TOPIC_DEFAULTS
from .topics import Partition

if TYPE_CHECKING:
    from .cluster import Cluster


def begin(cluster: Cluster) -> None:
    """Look at all logs every `retention_check_s`, and at compacted ones every `cleaner_s`."""
    settings = cluster.settings

    def check() -> None:
        for topic in list(cluster.topics.values()):
            for partition in topic.partitions:
                expire(partition, cluster.wall_ms)
                before_ms = cluster.wall_ms - settings.producer_id_expiration_s * 1000
                partition.log.producers.expire(before_ms)
        if settings.retention_check_s:
            cluster.timers.at(cluster.now + settings.retention_check_s, check)

    def clean() -> None:
        for topic in list(cluster.topics.values()):
            if topic.config.is_compacted:
                name = "min.cleanable.dirty.ratio"
                ratio = float(topic.config.overrides.get(name, TOPIC_DEFAULTS[name]))
                for partition in topic.partitions:
                    if compaction.is_due(partition.log, topic.config, cluster.wall_ms, ratio):
                        compaction.compact(partition.log, topic.config, cluster.wall_ms)
        if settings.cleaner_s:
            cluster.timers.at(cluster.now + settings.cleaner_s, clean)

    if settings.retention_check_s:
        cluster.timers.at(settings.first_retention_check_s, check)
    if settings.cleaner_s:
        cluster.timers.at(settings.cleaner_s, clean)


def expire(partition: Partition, now_ms: float) -> None:
    """Delete the segments of a partition that are past retention.ms or retention.bytes.

    By time the active segment goes as well, after a new one was begun; by size it stays.
    """
    config, log = partition.topic.config, partition.log
    if not config.is_expiring:
        return
    gone = 0
    if config.retention_ms >= 0:
        for segment in log.segments:
            newest = segment.max_timestamp
            age_ms = now_ms - (newest if newest >= 0 else segment.modified_ms)
            is_last_empty = segment is log.segments[-1] and not segment.batches
            end = log.segments[gone + 1].base if gone + 1 < len(log.segments) else log.end
            if is_last_empty or age_ms <= config.retention_ms or end > log.high_watermark:
                break
            gone += 1
    if config.retention_bytes >= 0:
        excess = log.size - config.retention_bytes - sum(segment.size for segment in log.segments[:gone])
        for segment in log.segments[gone:]:
            end = log.segments[gone + 1].base if gone + 1 < len(log.segments) else log.end
            if excess < segment.size or not segment.batches or end > log.high_watermark:
                break
            excess -= segment.size
            gone += 1
    if not gone:
        return
    if gone == len(log.segments):
        log.roll(now_ms)
    log.advance_start(log.segments[gone].base)
    partition.wake()
