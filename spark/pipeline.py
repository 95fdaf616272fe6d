"""A consumer run as a Spark job: `python -m spark.pipeline --config DIR --consumer NAME
--checkpoint DIR --once`.

    source topics ──► format("overlay") ──► number ──► Spark's Kafka sink ──► output topic
                      subjects, filters     1, 2, 3

The job takes the same consumer file and writes the same records as the service, for consumers that
need more than one machine. Spark's Kafka sink is at-least-once, so the consumer file has to say so.
A batch that is written again has the same records with the same sequences, by which readers can
drop them (read_stream_consumer does). Anything in the file that Spark cannot do is refused.

Scanning runs in as many tasks as there are cores. The records of a source partition keep their
order in the output. So each output partition is written by one task, from scan results in memory or
on disk.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import click
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from overlay.config import ConsumerConfig, DeliverPolicy, Loaded, load
from overlay.config.consumer import AckPolicy, Delivery, Interest, ReplayPolicy, Timestamps
from overlay.errors import OverlayError
from overlay.kafka.admin import Admin
from overlay.output.topics import ensure_topics
from overlay.units import format_time

from .connection import for_sink
from .delivery import NEEDED, make_records
from .figures import Figures
from .lease import PATIENCE_S, own, run_apart
from .output import Config, Output, find_output
from .sequences import BatchEnds, add_marks, number_rows
from .session import overlay_session

LOOK_S = 1
_STARTS = (DeliverPolicy.ALL, DeliverPolicy.NEW, DeliverPolicy.BY_START_SEQUENCE, DeliverPolicy.BY_START_TIME)


class NotForSpark(OverlayError):
    """A consumer file asks for something that a Spark job cannot do. The author of the file acts."""


@dataclass(frozen=True, slots=True)
class _Row:
    """A test whether a consumer file asks for something that a job cannot do, and what to write
    instead.
    """

    field: str
    asks: Callable[[ConsumerConfig], bool]
    instead: str


_TABLE = (
    _Row("ack_policy", lambda c: c.ack_policy is not AckPolicy.NONE, "acks are the service's. Write ack_policy: none"),
    _Row(
        "delivery",
        lambda c: c.delivery is Delivery.EXACTLY_ONCE,
        "Spark's Kafka sink has no transactions. Write delivery: at_least_once",
    ),
    _Row(
        "output.timestamps",
        lambda c: c.output.timestamps is Timestamps.SOURCE,
        "Spark's Kafka sink sets no timestamps. Write append",
    ),
    _Row(
        "deliver_policy",
        lambda c: c.deliver_policy not in _STARTS,
        f"has to be one of {', '.join(_STARTS)}",
    ),
    _Row("replay_policy", lambda c: c.replay_policy is ReplayPolicy.ORIGINAL, "write instant"),
    _Row("interest", lambda c: c.interest is Interest.ALWAYS, "has no meaning without acks. Leave it out"),
    *(
        _Row(name, lambda c, name=name: bool(getattr(c, name)), "is the service's. Leave it out")  # type: ignore[misc]
        for name in ("rate_limit_bps", "flow_control", "idle_heartbeat", "headers_only", "pause_until", "dead_letter")
    ),
)


def check_consumer(consumer: ConsumerConfig) -> None:
    """Raise NotForSpark, with a line for each thing that a job cannot do."""
    stream, name = consumer.id
    refused = [f"{row.field}: {row.instead}" for row in _TABLE if row.asks(consumer)]
    if refused:
        raise NotForSpark(f"consumer {name!r} of stream {stream!r} cannot run in Spark:\n" + "\n".join(refused))


@dataclass(slots=True)
class Pipeline:
    """The job of one consumer, started by `start_pipeline`."""

    output: Output
    partitions: int
    sequences: BatchEnds
    figures: Figures
    check_owner: Callable[[], None]

    def deliver(self, batch: DataFrame, number: int) -> None:
        """Write one batch. Raises NotOwner before anything is written."""
        self.check_owner()
        marked = add_marks(batch.select(*NEEDED)).persist()
        try:
            base = self.sequences.find_base(number)
            numbered, last = number_rows(marked, base)
            self.sequences.keep(number, last)
            if last > base:
                self._write(numbered)
                self.figures.note(last - base)
        finally:
            marked.unpersist()

    def _write(self, numbered: DataFrame) -> None:
        if self.partitions == 1:
            # the tasks are processed one after the other
            numbered = numbered.coalesce(1)
        records = make_records(numbered, self.output.consumer, self.partitions)
        if self.partitions > 1:
            records = records.repartition(self.partitions, "partition").sortWithinPartitions("consumer_sequence")
        records.write.format("kafka").options(**for_sink(self.output.kafka)).save()


@contextmanager
def start_pipeline(
    spark: SparkSession,
    config: Config,
    name: str,
    checkpoint: str,
    *,
    stream: str = "",
    once: bool = True,
    metrics_port: int | None = None,
    options: dict[str, str] | None = None,
    patience_s: float = PATIENCE_S,
) -> Iterator[StreamingQuery]:
    """Run a consumer's job as a query, which is stopped at the end of the block.

    `once`: process what exists now, and end the query. `checkpoint`: a folder that all of Spark can
    reach. `metrics_port`: serve /metrics there, None for not at all. `options`: more options of
    format("overlay"), such as maxRecordsPerTrigger. `patience_s`: seconds to wait for another
    pipeline's lease. Raises UnknownConsumer, NotForSpark, NotOwner, TopicNotFound and what
    `format("overlay")` raises at planning. Later errors come out of the query.
    """
    loaded = config if isinstance(config, Loaded) else load(Path(config))
    output = find_output(loaded, name, stream)
    check_consumer(output.consumer)
    output.check_topics(*output.stream.topic_names)
    figures = Figures(output.consumer)
    with ExitStack() as stack:
        if metrics_port is not None:
            stack.enter_context(figures.serve(metrics_port))
        partitions = run_apart(_ensure_output(loaded, output))
        lease, watch = stack.enter_context(own(output, patience_s))

        def check_owner() -> None:
            lease.check()
            watch.check()

        pipeline = Pipeline(output, partitions, BatchEnds(spark, f"{checkpoint}/sequences"), figures, check_owner)
        source = spark.readStream.format("overlay").options(**_choose_source(loaded, output, options or {})).load()
        writer = source.writeStream.foreachBatch(pipeline.deliver).option("checkpointLocation", f"{checkpoint}/query")
        query = (writer.trigger(availableNow=True) if once else writer).queryName(_title(output)).start()
        figures.query = str(query.runId)
        spark.streams.addListener(figures)
        stack.callback(spark.streams.removeListener, figures)
        stack.callback(query.stop)
        yield query


def _title(output: Output) -> str:
    return "/".join(output.consumer.id)


def _choose_source(loaded: Loaded, output: Output, options: dict[str, str]) -> dict[str, str]:
    """Return the options of format("overlay"): those from the consumer's file, and `options`."""
    consumer = output.consumer
    start = {
        DeliverPolicy.ALL: {"startingOffsets": "earliest"},
        DeliverPolicy.NEW: {"startingOffsets": "latest"},
        DeliverPolicy.BY_START_SEQUENCE: {"startingSequence": str(max(1, consumer.opt_start_seq))},
        DeliverPolicy.BY_START_TIME: {"startingTime": format_time(consumer.opt_start_time or 0)},
    }[consumer.deliver_policy]
    folder = str(Path(loaded.files[""].file).parent)
    of = {"config": folder, "stream": output.stream.name, "consumer": output.name}
    return {**start, "columns": ",".join(NEEDED), **options, **of}


async def _ensure_output(loaded: Loaded, output: Output) -> int:
    """Create the output topic if it is missing, as the service does; return its number of partitions.

    Raises OverlayError.
    """
    async with Admin(output.kafka) as admin:
        found, refused = await ensure_topics(admin, [output.consumer], loaded.service.topics.replication)
    if output.topic in refused:
        raise OverlayError(refused[output.topic])
    return found[output.topic].partitions


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--config", "folder", required=True, type=click.Path(path_type=Path), help="Config folder.")
@click.option("--consumer", required=True, help="Name of a consumer with ack_policy none.")
@click.option("--stream", default="", help="Its stream, where several have a consumer of that name.")
@click.option("--checkpoint", required=True, help="Folder for the position, in any file system that Spark knows.")
@click.option("--once/--continuous", default=True, help="End with what is there now (the default), or go on.")
@click.option("--master", default=None, help="Spark's master; spark-submit's, else local[*].")
@click.option("--metrics-port", type=int, default=None, help="Serve /metrics there; 0 picks a free port.")
@click.option("--option", "pairs", multiple=True, metavar="NAME=VALUE", help='More options of format("overlay").')
def main(
    folder: Path,
    consumer: str,
    stream: str,
    checkpoint: str,
    once: bool,
    master: str | None,
    metrics_port: int | None,
    pairs: tuple[str, ...],
) -> None:
    """Run a consumer as a Spark job."""
    options = dict(pair.partition("=")[::2] for pair in pairs)
    try:
        # before Java is started: a wrong name should not take ten seconds to be reported
        check_consumer(find_output(folder, consumer, stream).consumer)
        spark = overlay_session(f"overlay {consumer}", master)
        with start_pipeline(
            spark, folder, consumer, checkpoint,
            stream=stream, once=once, metrics_port=metrics_port, options=options,
        ) as query:  # fmt: skip
            # a signal handler may not call Java: it could run in the middle of another call
            enough = threading.Event()
            signal.signal(signal.SIGTERM, lambda *_: enough.set())
            while not query.awaitTermination(LOOK_S):
                if enough.is_set():
                    query.stop()
    except (OverlayError, StreamingQueryException) as error:
        click.echo(f"error: {explain(error)}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


def explain(error: Exception) -> str:
    """Return the text to show for an error.

    For one that came through Java, this is the overlay's own message if there is one.
    """
    text = str(error)
    for line in text.splitlines():
        kind, colon, words = line.partition(": ")
        if colon and kind.startswith(("overlay.", "spark.")):
            return words
    return text


if __name__ == "__main__":
    main()
