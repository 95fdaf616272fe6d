"""The metrics of a pipeline under the service's names (overlay/metrics.py), from Spark's report
after each batch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from prometheus_client import start_http_server
from pyspark.sql.streaming.listener import StreamingQueryListener

from overlay.errors import OverlayError
from overlay.metrics import Metrics
from overlay.state.job_plan import BatchPlan

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import QueryProgressEvent

MS = 1000


class Figures(StreamingQueryListener):
    """A listener that counts one query's batches.

    `note` adds what a batch delivered, which Spark does not know.
    """

    def __init__(self, stream: str) -> None:
        """`stream`: of the job's consumers."""
        self.metrics = Metrics()
        self._stream = stream
        self._behind: dict[str, int] = {}
        """By consumer of the last batch, how many offsets it stands before that batch's end."""
        self.query = ""
        """The run id of the query to count; other queries of the session are ignored."""

    @contextmanager
    def serve(self, port: int) -> Iterator[None]:
        """Serve /metrics within the block. Raises OverlayError if the port cannot be opened, such as one in use."""
        try:
            server, thread = start_http_server(port, registry=self.metrics.registry)
        except OSError as error:
            raise OverlayError(f"port {port}: metrics cannot be served there: {error.strerror}") from error
        try:
            yield
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def note(self, plan: BatchPlan) -> None:
        """Count the deliveries and dead letters that a batch has for each of its consumers, and the offsets lost to
        them for the stream, and note how far each stands behind the batch's end. Call it when the batch has ended.
        """
        for name, each in plan.consumers.items():
            self.metrics.records_delivered.labels(self._stream, name).inc(each.last - each.before)
            self.metrics.dead_letters.labels(self._stream, name).inc(each.letters)
            self.metrics.records_lost.labels(self._stream).inc(each.lost)
        for name in self._behind.keys() - plan.consumers.keys():
            self.metrics.consumer_lag_records.remove(self._stream, name)
        self._behind = dict.fromkeys(plan.consumers, 0) | plan.count_behind()

    def onQueryStarted(self, event: Any) -> None:
        """Do nothing: the code that starts the query sets `query`."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Note the duration of a finished batch, how many offsets it has read, and the lag of each
        consumer. Other queries than `query` are ignored.
        """
        progress = event.progress
        if str(progress.runId) != self.query:
            return
        self.metrics.commit_seconds.observe(progress.batchDuration / MS)
        starts, ends, latest = (
            sum(count_offsets(getattr(source, name)) for source in progress.sources)
            for name in ("startOffset", "endOffset", "latestOffset")
        )
        if any(source.startOffset for source in progress.sources):
            self.metrics.records_fetched.labels(self._stream).inc(max(0, ends - starts))
        for name, behind in self._behind.items():
            self.metrics.consumer_lag_records.labels(self._stream, name).set(max(0, latest - ends) + behind)

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
