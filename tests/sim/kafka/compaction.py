"""The log cleaner: the last value of each key stays, and tombstones for delete.retention.ms after a cleaning saw them.

The rules are those of Kafka's Cleaner for batches of format 2. A cleaned batch keeps its first and its last offset. A batch
with tombstones gets a delete horizon, in its attributes and in the place of its base timestamp; a cleaning after that time
takes the tombstones out. Records of aborted transactions go at once, markers when nothing of their transaction is left and
their own horizon is over. The last batch of a producer stays, empty if need be: its sequence is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

from tests.oracle.batches import Record, parse_batch
from tests.support.batches import build

from .batches import DELETE_HORIZON, LOG_APPEND_TIME, Batch
from .log import Log, Segment
from .settings import TopicConfig


def find_uncleanable(log: Log, config: TopicConfig, now_ms: float) -> int:
    """Return the first offset that cannot be cleaned yet: of the active segment, of an open transaction, or too young."""
    bound = min(log.segments[-1].base, log.last_stable)
    if config.min_compaction_lag_ms:
        for segment in log.segments[:-1]:
            newest = max(segment.max_timestamp, -1)
            if newest > now_ms - config.min_compaction_lag_ms and segment.base >= log.cleaned_to:
                return min(bound, segment.base)
    return bound


def is_due(log: Log, config: TopicConfig, now_ms: float, ratio: float) -> bool:
    """Return whether enough of the log has never been cleaned."""
    if len(log.segments) < 2:
        return False
    bound = find_uncleanable(log, config, now_ms)
    clean = dirty = 0
    oldest = inf
    for segment in log.segments:
        if segment.base >= bound:
            break
        if segment.base < log.cleaned_to:
            clean += segment.size
        else:
            dirty += segment.size
            if segment.batches:
                oldest = min(oldest, segment.batches[0].max_timestamp)
    if not dirty:
        return False
    return dirty / (clean + dirty) > ratio or now_ms - oldest > config.max_compaction_lag_ms


@dataclass(slots=True)
class _Transactions:
    """Which producers' batches are aborted, as the cleaner goes through a log, and which transactions still have records."""

    log: Log
    has_records: set[int] = field(default_factory=set)
    """Producers with batches since their last marker."""

    def see(self, batch: Batch) -> bool:
        """Return whether a data batch belongs to an aborted transaction."""
        if not batch.is_transactional:
            return False
        is_aborted = any(
            one.producer == batch.producer and one.first <= batch.base <= one.last for one in self.log.producers.aborted
        )
        self.has_records.add(batch.producer)
        return is_aborted

    def see_marker(self, batch: Batch) -> bool:
        """Return whether nothing is left of the transaction that a marker ends. Then it is no aborted one any more: readers
        who are told of it and find no marker would pass over what its producer has written since."""
        is_empty = batch.producer not in self.has_records
        self.has_records.discard(batch.producer)
        if is_empty:
            producers = self.log.producers
            producers.aborted = [one for one in producers.aborted if one.last != batch.last]
        return is_empty


def compact(log: Log, config: TopicConfig, now_ms: float) -> None:
    """Clean what can be cleaned of a log."""
    bound = find_uncleanable(log, config, now_ms)
    latest = _map_latest(log, bound)
    transactions = _Transactions(log)

    def is_last(batch: Batch) -> bool:
        known = log.producers.known.get(batch.producer)
        if known is None:
            return False
        if known.batches:
            return bool(known.batches[-1].end == batch.last)
        return bool(batch.is_control and batch.producer_epoch == known.epoch)

    def is_kept(batch: Batch, record: Record) -> bool:
        if record.offset >= bound:
            return True
        if record.key is None:
            return False
        if record.offset < latest.get(record.key, -1):
            return False
        keeps_deletes = not batch.attributes & DELETE_HORIZON or now_ms < batch.base_timestamp
        return record.value is not None or keeps_deletes

    for segment in log.segments:
        if segment.base >= bound:
            break
        _clean_segment(segment, config, transactions, is_kept, is_last, now_ms)
    log.cleaned_to = bound
    _merge(log, bound, config)


def _map_latest(log: Log, bound: int) -> dict[bytes, int]:
    """Return the last offset of each key in what was never cleaned."""
    latest: dict[bytes, int] = {}
    transactions = _Transactions(log)
    for segment in log.segments:
        for batch in segment.batches:
            if batch.base >= bound:
                return latest
            if batch.last < log.cleaned_to or batch.is_control or transactions.see(batch):
                continue
            for record in parse_batch(batch.data).records:
                if record.key is not None and record.offset >= log.start:
                    latest[record.key] = record.offset
    return latest


def _clean_segment(
    segment: Segment,
    config: TopicConfig,
    transactions: _Transactions,
    is_kept: Callable[[Batch, Record], bool],
    is_last: Callable[[Batch], bool],
    now_ms: float,
) -> None:
    cleaned: list[Batch] = []
    for batch in segment.batches:
        has_horizon = bool(batch.attributes & DELETE_HORIZON)
        is_empty_end = False
        if batch.is_control:
            is_empty_end = transactions.see_marker(batch)
            is_dropped = is_empty_end and has_horizon and batch.base_timestamp <= now_ms
        else:
            is_dropped = transactions.see(batch)
        records = parse_batch(batch.data).records
        kept = [one for one in records if not is_dropped and (batch.is_control or is_kept(batch, one))]
        if not kept:
            if batch.producer >= 0 and is_last(batch):
                cleaned.append(_rebuild(batch, [], None))
            continue
        has_tombstones = any(one.value is None for one in kept) and not batch.is_control
        needs_horizon = not has_horizon and (has_tombstones or is_empty_end)
        if len(kept) == len(records) and not needs_horizon:
            cleaned.append(batch)
        else:
            cleaned.append(_rebuild(batch, kept, int(now_ms) + config.delete_retention_ms if needs_horizon else None))
    segment.replace(cleaned, config.index_interval)


def _rebuild(batch: Batch, kept: list[Record], horizon_ms: int | None) -> Batch:
    """Return a batch with some of its records, in the same range of offsets."""
    attributes, base_timestamp = batch.attributes, batch.base_timestamp
    if horizon_ms is not None:
        attributes |= DELETE_HORIZON
        base_timestamp = horizon_ms
    is_stamped = bool(attributes & LOG_APPEND_TIME)
    newest = max((record.timestamp for record in kept), default=-1)
    data = build(
        kept,
        base_offset=batch.base,
        codec=attributes & 7,
        section=None if kept else b"",
        leader_epoch=batch.epoch,
        attributes=attributes,
        last_offset_delta=batch.last - batch.base,
        base_timestamp=base_timestamp,
        max_timestamp=batch.max_timestamp if is_stamped or not kept else newest,
        producer_id=batch.producer,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.sequence,
        count=len(kept),
    )
    return Batch(data)


def _merge(log: Log, bound: int, config: TopicConfig) -> None:
    """Put the cleaned segments together, as far as segment.bytes allows."""
    merged: list[Segment] = []
    for segment in log.segments:
        last = merged[-1] if merged else None
        if segment.base < bound and last is not None and last.size + segment.size <= config.segment_bytes:
            last.modified_ms = segment.modified_ms
            last.replace(last.batches + segment.batches, config.index_interval)
        else:
            merged.append(segment)
    log.segments[:] = merged
