"""The labelled metric series of what a worker serves: created at zero, and removed with their
stream or consumer.

Prometheus computes `increase` and `rate` from the second value of a series on. A counter that is
created at its first event has no earlier value, so the first lost record would raise no alert.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from prometheus_client import Counter, Gauge, Histogram

from overlay.consumer.acks import Flaw, Verb
from overlay.control.records import Misfit
from overlay.index.topic import MISREADINGS
from overlay.metrics import Metrics
from overlay.scan.states import REASONS as NULL_REASONS
from overlay.state.shard_state import ConsumerId
from overlay.subject.dictionary import REASONS

Labelled = Counter | Gauge | Histogram

CAUSES = (
    "Fenced",
    "DeliveryFailed",
    "SourceUnavailable",
    "StateCut",
    "SourceChanged",
    "CredentialsRefused",
    "StateUnreadable",
    "SnapshotUnreadable",
)
"""Errors after which a shard begins again; the label of `shard_restarts`."""
TASKS = ("control", "files", "shard")
"""Tasks that try again after an error that was not foreseen; the label of `unforeseen_errors`."""
ACTIONS = ("skip", "stop")
ANSWERS = ("no", "maybe")
OUTCOMES = ("fetched", "unknown", "unusable", "failed")
"""What a question to a schema registry comes to."""
RESULTS = ("true", "false", "unknown")
REFUSALS = ("name", "missing", "refused")
PARTS = ("token", "range")
"""Parts of an ack that may lack an incarnation; the label of `acks_unnamed`."""
FEW = 16
"""Amounts that are observed one by one: fewer are faster that way."""
TURN = 100
"""Consumers that are opened or closed in one go, before the event loop does other work."""
KINDS = (*(verb.name.lower() for verb in Verb), "range")


@dataclass(frozen=True, slots=True)
class Series:
    """Creates the labelled series of a service's Prometheus metrics, and removes them."""

    metrics: Metrics
    opened: set[ConsumerId] = field(default_factory=set)
    """Consumers that have series."""
    _filtered: set[ConsumerId] = field(default_factory=set)
    """Consumers that have the series of filters."""
    _delivered: dict[ConsumerId, Counter] = field(default_factory=dict)
    """The series of `records_delivered`, which a round of thousands of consumers needs at once: finding one by its labels takes
    longer than counting."""

    def open_service(self) -> None:
        """Create, at zero, the series of counters without a stream label."""
        for cause in CAUSES:
            self.metrics.shard_restarts.labels(cause)
        for task in TASKS:
            self.metrics.unforeseen_errors.labels(task)
        for flaw in Flaw:
            self.metrics.acks_refused.labels(flaw.value)
        for part in PARTS:
            self.metrics.acks_unnamed.labels(part)
        for result in ("written", "failed"):
            self.metrics.fleet_statuses.labels(result)
        for reason in REFUSALS:
            self.metrics.replies_refused.labels(reason)
        for topic, misfit in itertools.product(("control", "requests"), Misfit):
            self.metrics.control_records_unreadable.labels(topic, misfit.value)

    def open_streams(self, names: Iterable[str]) -> None:
        """Create, at zero, the series of counters of these streams. Existing series keep their
        values."""
        for name in names:
            for metric, rest in self._list_of_stream():
                metric.labels(name, *rest)

    def close_streams(self, names: Iterable[str]) -> None:
        """Remove all series of streams that are not served any more."""
        names = list(names)
        self.close_indexes(names)
        self.close_readings(names)
        for name in names:
            for metric, rest in self._list_of_stream():
                _remove(metric, name, *rest)
            _remove(self.metrics.delivery_latency_seconds, name, "")

    def close_indexes(self, names: Iterable[str]) -> None:
        """Remove the gauges of the chunk index and the ledger of these streams, whose index is not kept
        here any more. Counters stay, since they must not fall."""
        metrics = self.metrics
        for name in names:
            for metric in (
                metrics.index_lag_records,
                metrics.index_stopped,
                metrics.ledger_next_sequence,
                metrics.ledger_runs,
            ):
                _remove(metric, name)

    def close_readings(self, names: Iterable[str]) -> None:
        """Remove the gauges `stream_stopped`, `redelivery_suspended` and `partitions_awaiting_schemas` of these
        streams, which no shard of this worker reads any more."""
        for name in names:
            metrics = self.metrics
            for metric in (
                metrics.stream_stopped,
                metrics.redelivery_suspended,
                metrics.partitions_awaiting_schemas,
            ):
                _remove(metric, name)

    def close_silences(self, ids: Iterable[ConsumerId]) -> None:
        """Remove the gauges of consumers that are no more left to Spark jobs, or whose shard is not ours any more."""
        for id in ids:
            _remove(self.metrics.spark_silent_seconds, *id)

    def open_consumers(self, ids: Iterable[ConsumerId], filtered: Iterable[ConsumerId] = ()) -> None:
        """Create, at zero, the series of deliveries, redeliveries and dead letters of these consumers, and those of
        filters for the consumers in `filtered`, which have one. Series of consumers that have them keep their values.
        """
        metrics = self.metrics
        for id in (id for id in filtered if id not in self._filtered):
            self._filtered.add(id)
            for metric, rest in self._list_of_filter():
                metric.labels(*id, *rest)
        # a session opens those of all its consumers, and thousands of them are open already
        for id in (id for id in ids if id not in self.opened):
            self.opened.add(id)
            for metric in (metrics.records_delivered, metrics.redeliveries, metrics.dead_letters):
                metric.labels(*id)

    async def open_many(self, ids: Collection[ConsumerId], filtered: Container[ConsumerId] = frozenset()) -> None:
        """Do what `open_consumers` does, for those of `ids` that are in `filtered` with the series of filters. Let other
        tasks run after every TURN consumers.
        """
        left = iter(ids)
        while part := list(itertools.islice(left, TURN)):
            self.open_consumers(part, [id for id in part if id in filtered])
            await asyncio.sleep(0)

    def count_delivered(self, id: ConsumerId, records: int) -> None:
        """Count records that were delivered to a consumer."""
        series = self._delivered.get(id)
        if series is None:
            series = self._delivered[id] = self.metrics.records_delivered.labels(*id)
        series.inc(records)

    async def close_consumers(self, ids: Iterable[ConsumerId]) -> None:
        """Remove all series of those of these consumers that `open_consumers` has opened. Lets
        other tasks run after every TURN consumers."""
        for count, id in enumerate(self.opened.intersection(ids), 1):
            self.opened.discard(id)
            self._filtered.discard(id)
            self._close_consumer(id)
            if count % TURN == 0:
                await asyncio.sleep(0)

    def _close_consumer(self, id: ConsumerId) -> None:
        """Remove all series of one consumer."""
        metrics = self.metrics
        self._delivered.pop(id, None)
        plain: tuple[Labelled, ...] = (
            metrics.records_delivered,
            metrics.redeliveries,
            metrics.dead_letters,
            metrics.delivery_latency_seconds,
            metrics.consumer_lag_records,
            metrics.consumer_lag_seconds,
            metrics.consumer_stalled,
            metrics.ack_pending,
        )
        for metric in plain:
            _remove(metric, *id)
        for metric, rest in self._list_of_filter():
            _remove(metric, *id, *rest)

    def _list_of_filter(self) -> Iterator[tuple[Labelled, tuple[str, ...]]]:
        """Yield each counter of a consumer's filter with the label values that follow the consumer's name."""
        yield self.metrics.records_evaluated, ()
        for result in RESULTS:
            yield self.metrics.filter_results, (result,)
        for reason in NULL_REASONS.values():
            yield self.metrics.filter_nulls, (reason,)

    def _list_of_stream(self) -> Iterator[tuple[Labelled, tuple[str, ...]]]:
        """Yield each counter of a stream with the label values that follow the stream's name."""
        metrics = self.metrics
        for metric in (
            metrics.records_fetched,
            metrics.records_decoded,
            metrics.records_read_again,
            metrics.records_lost,
            metrics.chunks_sealed,
            metrics.acks_lost,
            metrics.ack_logs_lost,
        ):
            yield metric, ()
        for metric, values in (
            (metrics.corrupt_batches, ACTIONS),
            (metrics.chunks, ANSWERS),
            (metrics.schemas_asked, OUTCOMES),
            (metrics.acks, KINDS),
            (metrics.index_records_unreadable, MISREADINGS),
            (metrics.records_unaddressed, tuple(reason.value for reason in REASONS)),
        ):
            for value in values:
                yield metric, (value,)


def observe_all(histogram: Histogram, amounts: Sequence[float]) -> None:
    """Observe each of these amounts.

    The library observes one at a time. Of many, this adds the number in each bucket to its counter. The last
    bucket has no upper bound.
    """
    if len(amounts) < FEW:
        for amount in amounts:
            histogram.observe(amount)
        return
    buckets = np.searchsorted(histogram._upper_bounds, amounts)
    for bucket, count in enumerate(np.bincount(buckets).tolist()):
        if count:
            histogram._buckets[bucket].inc(count)
    histogram._sum.inc(sum(amounts))


def _remove(metric: Labelled, *labels: str) -> None:
    """Remove a series if it exists."""
    with contextlib.suppress(KeyError):
        metric.remove(*labels)
