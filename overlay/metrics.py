"""All metrics of the overlay (names and labels: docs/operations.md#metrics). Base units, prefix
`overlay_`.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from overlay import __version__

_COMMIT_BUCKETS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2, 0.5, 1, 2, 5, 15)
_LATENCY_BUCKETS = (0.005, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.2, 0.5, 1, 5, 30, 300)


class Metrics:
    """The Prometheus metrics of one worker, Spark job or index build, in a registry of their own."""

    def __init__(self) -> None:
        """Make all metrics. Long because it is the list of them, one statement each."""
        self.registry = registry = CollectorRegistry()
        self.others: list[Collector] = [ProcessCollector(registry=registry)]
        """What is known of the process and of the program."""

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, namespace="overlay", registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(name, text, labels, namespace="overlay", registry=registry)

        self.ready = gauge("ready", "1 while every shard that this worker owns is served")
        self.shards_owned = gauge("shards_owned", "Shards that the group of workers has assigned to this worker")
        self.shards = gauge("shards", "Shards that there are, owned by any worker or none; 0 until Kafka has told")
        self.bytes_fetched = counter("bytes_fetched", "Bytes of record batches fetched from source topics")
        self.records_fetched = counter("records_fetched", "Records in the batches fetched, by stream", "stream")
        self.records_decoded = counter(
            "records_decoded", "Records decoded and given a subject for the first time, by stream", "stream"
        )
        self.records_read_again = counter(
            "records_read_again", "Records read once more, for consumers that catch up or after an error", "stream"
        )
        self.records_unaddressed = counter(
            "records_unaddressed", "Records left out because they have no subject in the stream", "stream", "reason"
        )
        self.records_delivered = counter(
            "records_delivered", "Records delivered to a consumer and committed", "stream", "consumer"
        )
        self.records_evaluated = counter(
            "records_evaluated", "Records on which a consumer's filter was evaluated", "stream", "consumer"
        )
        self.filter_results = counter(
            "filter_results", "What a consumer's filter said of records", "stream", "consumer", "result"
        )
        self.filter_nulls = counter(
            "filter_nulls", "Values that a filter names and that could not be read", "stream", "consumer", "reason"
        )
        self.chunks = counter(
            "chunks",
            "Chunks that the index let consumers behind the tail leave out (no) or read (maybe)",
            "stream",
            "answer",
        )
        self.chunks_sealed = counter("chunks_sealed", "Chunk headers written to a stream's index", "stream")
        self.index_lag_records = gauge(
            "index_lag_records", "Offsets at the end of a stream's topics that no chunk header covers yet", "stream"
        )
        self.index_stopped = gauge(
            "index_stopped",
            "1 while a stream has no index, since its index topic cannot be made or written to",
            "stream",
        )
        self.schemas_asked = counter(
            "schemas_asked", "Ids of schemas that the schema registry was asked for", "stream", "outcome"
        )
        self.partitions_awaiting_schemas = gauge(
            "partitions_awaiting_schemas",
            "Partitions whose records wait for an answer of the schema registry",
            "stream",
        )
        self.ledger_next_sequence = gauge(
            "ledger_next_sequence", "The sequence that the next record of a stream of several partitions gets", "stream"
        )
        self.ledger_runs = gauge("ledger_runs", "Runs of a stream's ledger in memory", "stream")
        self.records_lost = counter(
            "records_lost",
            "Offsets that retention removed before they were read, and records without a sequence that cannot be acked",
            "stream",
        )
        self.corrupt_batches = counter("corrupt_batches", "Batches that could not be read", "stream", "action")
        self.control_records_unreadable = counter(
            "control_records_unreadable",
            "Records and batches of the control topic and the requests topic that were passed over",
            "topic",
            "reason",
        )
        self.index_records_unreadable = counter(
            "index_records_unreadable",
            "Records and batches of a stream's index topic that were passed over",
            "stream",
            "reason",
        )
        self.replies_refused = counter(
            "replies_refused",
            "Answers and pull requests that go nowhere: their reply topic is not allowed (name), missing, or refuses (refused)",
            "reason",
        )
        self.fenced = counter("fenced", "Times that another worker took a shard over")
        self.shard_restarts = counter(
            "shard_restarts", "Times that a shard began again from what is committed, by cause", "cause"
        )
        self.unforeseen_errors = counter(
            "unforeseen_errors", "Errors that the overlay does not know, by the task that tries again", "task"
        )
        self.consumer_lag_records = gauge(
            "consumer_lag_records",
            "Offsets between the first record that a consumer has not been given and the end of its topics",
            "stream",
            "consumer",
        )
        self.consumer_lag_seconds = gauge(
            "consumer_lag_seconds",
            "Age of the oldest record that a consumer has not been given, at most the time since it had all",
            "stream",
            "consumer",
        )
        self.consumer_position = gauge(
            "consumer_position",
            "The next offset of a partition that a Spark job reads for a consumer",
            "stream",
            "consumer",
            "topic",
            "partition",
        )
        self.spark_job_info = gauge(
            "spark_job_info", "1 for the Spark application that runs a job", "stream", "spark_job", "application"
        )
        self.spark_silent_seconds = gauge(
            "spark_silent_seconds",
            "Time for which a consumer has had records to read and its Spark job has neither begun nor ended a batch",
            "stream",
            "consumer",
        )
        self.redeliveries = counter("redeliveries", "Deliveries of records beyond the first", "stream", "consumer")
        self.acks = counter("acks", "Acks read from a stream's ack topic, by what they say", "stream", "kind")
        self.acks_refused = counter("acks_refused", "Records of ack topics that change nothing, by reason", "reason")
        self.acks_unnamed = counter(
            "acks_unnamed", "Acks whose token or range names no incarnation (deprecated)", "part"
        )
        self.acks_lost = counter("acks_lost", "Offsets of ack topics that retention removed unread", "stream")
        self.ack_logs_lost = counter(
            "ack_logs_lost", "Ack topics found created again, and their partitions found without their end", "stream"
        )
        self.ack_pending = gauge("ack_pending", "Deliveries that wait for their ack", "stream", "consumer")
        self.dead_letters = counter("dead_letters", "Messages that were given up", "stream", "consumer")
        self.redelivery_suspended = gauge(
            "redelivery_suspended", "1 while deadlines wait for acks behind an open transaction", "stream"
        )
        self.clock_ahead_seconds = gauge(
            "clock_ahead_seconds",
            "By how much this machine's clock was ahead of the brokers' when requests had it compared",
        )
        self.fleet_statuses = counter("fleet_statuses", "Statuses of this worker for the fleet, by result", "result")
        self.consumer_stalled = gauge("consumer_stalled", "1 while a consumer cannot go on", "stream", "consumer")
        self.stream_stopped = gauge("stream_stopped", "1 while a stream, or a partition of it, is not read", "stream")
        self.commit_seconds = Histogram(
            "commit_seconds", "Time from the begin of a transaction to its commit",
            namespace="overlay", registry=registry, buckets=_COMMIT_BUCKETS,
        )  # fmt: skip
        self.delivery_latency_seconds = Histogram(
            "delivery_latency_seconds", "Age of the oldest record of a consumer's share of a round, at its commit",
            ("stream", "consumer"), namespace="overlay", registry=registry, buckets=_LATENCY_BUCKETS,
        )  # fmt: skip
        build = Info("build", "Versions", namespace="overlay", registry=registry)
        build.info({"version": __version__, "python": platform.python_version()})
        self.others.append(build)

    def list_collectors(self) -> Iterator[Collector]:
        """Yield every metric, and the collector of what the system knows of the process."""
        yield from self.others
        yield from (metric for metric in vars(self).values() if isinstance(metric, Counter | Gauge | Histogram))
