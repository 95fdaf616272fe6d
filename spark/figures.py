"""The metrics of the jobs of one process under the service's names (overlay/metrics.py): from Spark's report after each batch,
from the plans of the batches, and from a watch on how far the jobs are behind (watch.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, start_http_server
from pyspark.sql.streaming.listener import StreamingQueryListener

from overlay.errors import OverlayError
from overlay.kafka.log_position import TopicPartition
from overlay.logs import get_logger
from overlay.metrics import Metrics
from overlay.state.job_plan import BatchPlan
from overlay.state.lag import Lag

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import QueryProgressEvent

log = get_logger(__name__)

MS = 1000


class JobMetrics:
    """The metrics of all jobs of one process. `registry` has those of the service's metrics that jobs set. The others would
    stay 0 and say something wrong: `overlay_ready` that no shard is served, which wakes an operator.
    """

    def __init__(self) -> None:
        self.all = Metrics()
        self.registry = CollectorRegistry()
        of_jobs = (
            self.all.records_fetched,
            self.all.records_delivered,
            self.all.records_lost,
            self.all.dead_letters,
            self.all.commit_seconds,
            self.all.consumer_lag_records,
            self.all.consumer_lag_seconds,
            self.all.consumer_position,
            self.all.spark_job_info,
        )
        for collector in (*self.all.others, *of_jobs):
            self.registry.register(collector)

    @contextmanager
    def serve(self, host: str, port: int) -> Iterator[int]:
        """Serve /metrics at an address within the block, and yield the port. `host`: empty for every address of the
        machine. `port`: 0 takes a free one. Raises OverlayError if it cannot be opened, such as one in use.
        """
        try:
            server, thread = start_http_server(port, host or "0.0.0.0", self.registry)
        except OSError as error:
            raise OverlayError(f"{host}:{port}: metrics cannot be served there: {error.strerror or error}") from error
        taken = int(server.server_port)
        log.info("metrics are served", url=f"http://{f'[{host}]' if ':' in host else host}:{taken}/metrics")
        try:
            yield taken
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


class Figures(StreamingQueryListener):
    """The metrics of one job, and the listener that counts the batches of its query."""

    def __init__(self, stream: str, job: str, metrics: JobMetrics) -> None:
        """`stream`: of the job's consumers. `job`: its name."""
        self._metrics = metrics.all
        self._stream, self._job = stream, job
        self._owner = ""
        self._behind: dict[str, int] = {}
        """By consumer of the last batch, how many offsets it stands before that batch's end."""
        self._shown: dict[str, set[TopicPartition]] = {}
        """The partitions with a position in the metrics, by consumer."""
        self.query = ""
        """The run id of the query to count; other queries of the session are ignored."""

    def note(self, plan: BatchPlan) -> None:
        """Count the deliveries and dead letters that a batch has for each of its consumers, and the offsets lost to
        them for the stream, and note how far each stands behind the batch's end. Call it when the batch has ended.
        """
        for name, each in plan.consumers.items():
            self._metrics.records_delivered.labels(self._stream, name).inc(each.last - each.before)
            self._metrics.dead_letters.labels(self._stream, name).inc(each.letters)
            self._metrics.records_lost.labels(self._stream).inc(each.lost)
        for name in self._behind.keys() - plan.consumers.keys():
            self._hide(name)
        self._behind = dict.fromkeys(plan.consumers, 0) | plan.count_behind()

    def show(self, plan: BatchPlan, lags: dict[str, Lag]) -> None:
        """Set the gauges of the job: its application, and of each consumer of its last plan the position and, as far as
        known, the lag. Those of consumers that have left the job end. `lags`: by consumer. Also called while a batch is
        under way, so that the lag goes on growing.
        """
        metrics, stream = self._metrics, self._stream
        if plan.owner != self._owner:
            if self._owner:
                metrics.spark_job_info.remove(stream, self._job, self._owner)
            metrics.spark_job_info.labels(stream, self._job, plan.owner).set(1)
            self._owner = plan.owner
        for name in self._shown.keys() - plan.consumers.keys():
            self._hide(name)
        for name in plan.consumers:
            position, lag = plan.find_delivered(name), lags.get(name, Lag(None, None))
            assert position is not None  # the plan has the consumer
            for (topic, partition), offset in position.offsets.items():
                metrics.consumer_position.labels(stream, name, topic, partition).set(offset)
            self._shown[name] = self._shown.get(name, set()) | position.offsets.keys()
            if lag.records is not None:
                metrics.consumer_lag_records.labels(stream, name).set(lag.records)
            if lag.seconds is not None:
                metrics.consumer_lag_seconds.labels(stream, name).set(lag.seconds)

    def _hide(self, consumer: str) -> None:
        """Remove the gauges of a consumer."""
        for topic, partition in self._shown.pop(consumer, ()):
            self._metrics.consumer_position.remove(self._stream, consumer, topic, str(partition))
        # the library does not mind if they are not there
        self._metrics.consumer_lag_records.remove(self._stream, consumer)
        self._metrics.consumer_lag_seconds.remove(self._stream, consumer)

    def onQueryStarted(self, event: Any) -> None:
        """Do nothing: the code that starts the query sets `query`."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Note the duration of a finished batch, how many offsets it has read, and the lag of each consumer in offsets. Other
        queries than `query` are ignored.
        """
        progress = event.progress
        if str(progress.runId) != self.query:
            return
        self._metrics.commit_seconds.observe(progress.batchDuration / MS)
        starts, ends, latest = (
            sum(count_offsets(getattr(source, name)) for source in progress.sources)
            for name in ("startOffset", "endOffset", "latestOffset")
        )
        if any(source.startOffset for source in progress.sources):
            self._metrics.records_fetched.labels(self._stream).inc(max(0, ends - starts))
        for name, behind in self._behind.items():
            self._metrics.consumer_lag_records.labels(self._stream, name).set(max(0, latest - ends) + behind)

    def onQueryIdle(self, event: Any) -> None:
        """Do nothing."""

    def onQueryTerminated(self, event: Any) -> None:
        """Do nothing: the counts stay."""


def count_offsets(text: str | None) -> int:
    """Return the sum of the offsets of all partitions in Spark's text of a source's position,
    {"topic": {"0": 23}}; 0 if there is no text, or one of another form.

    Values that are no integers, such as the ids of topics, are not counted.
    """
    try:
        found = [offset for partitions in json.loads(text or "{}").values() for offset in partitions.values()]
        return sum(offset for offset in found if isinstance(offset, int))
    except (ValueError, TypeError, AttributeError):
        return 0
