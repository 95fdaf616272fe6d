"""Metrics and log lines about the results of rounds."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from prometheus_client import Counter

from overlay.clock import monotonic
from overlay.kafka.passed_over import OnPassedOver, PassedOver, ignore
from overlay.logs import get_logger
from overlay.metrics import Metrics
from overlay.state.shard_state import ConsumerId, StreamPartition
from overlay.worker.cursors.cursors import Cursors
from overlay.worker.round.indexing import Reach
from overlay.worker.round.task import Corruption, RoundResult

log = get_logger(__name__)


PROGRESS_S = 5.0
"""Seconds between two log lines about cursors that are catching up."""


@dataclass(slots=True)
class Counting:
    """Counts the results of rounds in the metrics. `reaches`: how far the chunk indexes that are
    made here reach; updated as chunks are sealed."""

    metrics: Metrics
    reaches: Mapping[StreamPartition, Reach]
    on_passed_over: OnPassedOver = ignore
    """Called for each batch that could not be read, whether the partition goes on behind it or stops there."""
    _corrupt: set[tuple[StreamPartition, int]] = field(default_factory=set)
    """Corrupt batches counted so far, by partition and offset: several cursors may pass the same
    one."""
    _results: dict[tuple[ConsumerId, str], tuple[Counter, Counter]] = field(default_factory=dict)
    """The series of each filter result of a consumer, found once for the session: hundreds of filters count in each round."""
    _told: float = field(default_factory=monotonic)

    def take(self, result: RoundResult) -> None:
        """Count the result of a round in the metrics, and move `reaches`. Log corrupt batches that
        were skipped, and records that cannot be delivered because they have no sequence."""
        for stream, records in result.unsequenced.items():
            if records:
                self.metrics.records_lost.labels(stream).inc(records)
                log.error("records have no sequence, and cannot be acked: not delivered", stream=stream, lost=records)
        for sealed in result.sealed:
            self.metrics.chunks_sealed.labels(sealed.stream).inc()
            self.reaches[sealed.stream, sealed.source].add(sealed)
        for key, records in result.results.items():
            for series in self._results.get(key) or self._find_series(*key):
                series.inc(records)
        for (consumer, reason), values in result.nulls.items():
            self.metrics.filter_nulls.labels(*consumer, reason).inc(values)
        for corruption in result.corruptions:
            self._note(corruption)

    def forget(self, consumers: Collection[ConsumerId]) -> None:
        """Look up the series of these consumers anew when they are counted next: those they had may be closed."""
        self._results = {key: found for key, found in self._results.items() if key[0] not in consumers}

    def _find_series(self, consumer: ConsumerId, value: str) -> tuple[Counter, Counter]:
        """Return what counts a filter result of a consumer: all records, and those with this result."""
        found = self.metrics.records_evaluated.labels(*consumer), self.metrics.filter_results.labels(*consumer, value)
        self._results[consumer, value] = found
        return found

    def tell_progress(self, cursors: Cursors, now: float) -> None:
        """Log, at most every PROGRESS_S, each cursor that is below the last stable offset of its partition, and by
        how many offsets. `now`: monotonic seconds.
        """
        if now - self._told < PROGRESS_S:
            return
        self._told = now
        for (stream, (topic, partition)), cursor in cursors.all():
            if (left := cursor.stable_end - cursor.position) > 0:
                names = sorted(name for _, name in cursor.members)[:3]
                log.info("catching up", stream=stream, partition=f"{topic}-{partition}", left=left, consumers=names)

    def _note(self, corruption: Corruption) -> None:
        """Count a corrupt batch, and log it if it was skipped. Does nothing if the batch was
        counted before."""
        (topic, partition), bad = corruption.source, corruption.malformed
        batch = (corruption.stream, corruption.source), bad.base_offset
        if batch in self._corrupt:
            return
        self._corrupt.add(batch)
        self.metrics.corrupt_batches.labels(corruption.stream, "skip" if corruption.skipped else "stop").inc()
        fault = bad.fault
        self.on_passed_over(PassedOver(topic, partition, bad.base_offset, fault.name.lower(), fault.text))
        if corruption.skipped:
            log.error("batch skipped", topic=topic, partition=partition, offset=bad.base_offset, why=fault.text)
