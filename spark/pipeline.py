"""Consumers run as a Spark job: `python -m spark.pipeline --config DIR --consumer NAME
--checkpoint DIR --once`.

The job takes the same consumer files and writes the same records as the service, exactly once, for
consumers that need more than one machine: job/job.py says how. Anything in a file that Spark cannot
do is refused.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import click
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from overlay.config import ConsumerConfig, DeliverPolicy, Loaded, load
from overlay.config.consumer import AckPolicy, Interest, ReplayPolicy
from overlay.errors import OverlayError

from .figures import Figures
from .job.start import Chosen, ensure_outputs, start_job
from .lease import PATIENCE_S, own, run_apart
from .output import Config, find_output
from .session import overlay_session

LOOK_S = 1
_STARTS = tuple(policy for policy in DeliverPolicy if policy is not DeliverPolicy.LAST_PER_SUBJECT)
NO_OPTIONS: Mapping[str, str] = MappingProxyType({})


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
        "deliver_policy",
        lambda c: c.deliver_policy not in _STARTS,
        f"has to be one of {', '.join(_STARTS)}",
    ),
    _Row("replay_policy", lambda c: c.replay_policy is ReplayPolicy.ORIGINAL, "write instant"),
    _Row("interest", lambda c: c.interest is Interest.ALWAYS, "has no meaning without acks. Leave it out"),
    *(
        _Row(name, lambda c, name=name: bool(getattr(c, name)), "is the service's. Leave it out")  # type: ignore[misc]
        for name in ("rate_limit_bps", "flow_control", "idle_heartbeat", "pause_until", "dead_letter")
    ),
)


def check_consumer(consumer: ConsumerConfig) -> None:
    """Raise NotForSpark, with a line for each thing that a job cannot do."""
    stream, name = consumer.id
    refused = [f"{row.field}: {row.instead}" for row in _TABLE if row.asks(consumer)]
    if refused:
        raise NotForSpark(f"consumer {name!r} of stream {stream!r} cannot run in Spark:\n" + "\n".join(refused))


@contextmanager
def start_pipeline(
    spark: SparkSession,
    config: Config,
    names: str | Sequence[str],
    checkpoint: str,
    *,
    stream: str = "",
    job: str = "",
    once: bool = True,
    metrics_port: int | None = None,
    options: Mapping[str, str] = NO_OPTIONS,
    patience_s: float = PATIENCE_S,
) -> Iterator[StreamingQuery]:
    """Run consumers of one stream as a query, which is stopped at the end of the block.

    `names`: of the consumers. `job`: the name under which the job keeps its state, by default the
    stream's. `once`: process what exists now, and end the query. `checkpoint`: a folder that all of
    Spark can reach. `metrics_port`: serve /metrics there, None for not at all. `options`: more
    options of format("overlay"), such as maxRecordsPerTrigger. `patience_s`: seconds to wait for
    another pipeline's lease. Raises UnknownConsumer, NotForSpark, NotOwner, TopicNotFound and what
    `format("overlay")` raises at planning. Later errors come out of the query.
    """
    loaded = config if isinstance(config, Loaded) else load(Path(config))
    chosen = choose_consumers(loaded, [names] if isinstance(names, str) else names, stream)
    chosen.outputs[0].check_topics(*chosen.outputs[0].stream.topic_names)
    figures = Figures(chosen.configs)
    with ExitStack() as stack:
        if metrics_port is not None:
            stack.enter_context(figures.serve(metrics_port))
        run_apart(ensure_outputs(chosen))
        held = [stack.enter_context(own(output, patience_s)) for output in chosen.outputs]

        def check_owner() -> None:
            for lease, watch in held:
                lease.check()
                watch.check()

        query = stack.enter_context(
            start_job(
                spark, chosen, job or chosen.stream, checkpoint,
                once=once, options=options, check_owner=check_owner, note=figures.note,
            )
        )  # fmt: skip
        figures.query = str(query.runId)
        spark.streams.addListener(figures)
        stack.callback(spark.streams.removeListener, figures)
        yield query


def choose_consumers(loaded: Loaded, names: Sequence[str], stream: str = "") -> Chosen:
    """Return the consumers that a job runs. Raises UnknownConsumer, NotForSpark."""
    outputs = [find_output(loaded, name, stream) for name in sorted(set(names))]
    if len({output.stream.name for output in outputs}) != 1:
        raise NotForSpark("a job runs consumers of one stream. Start a job for each stream")
    for output in outputs:
        check_consumer(output.consumer)
    return Chosen(loaded, tuple(outputs))


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--config", "folder", required=True, type=click.Path(path_type=Path), help="Config folder.")
@click.option(
    "--consumer",
    "consumers",
    required=True,
    multiple=True,
    help="Name of a consumer with ack_policy none. May be repeated.",
)
@click.option("--job", default="", help="Name under which the job keeps its state: the stream's, if not given.")
@click.option("--stream", default="", help="Its stream, where several have a consumer of that name.")
@click.option("--checkpoint", required=True, help="Folder for the position, in any file system that Spark knows.")
@click.option("--once/--continuous", default=True, help="End with what is there now (the default), or go on.")
@click.option("--master", default=None, help="Spark's master; spark-submit's, else local[*].")
@click.option("--metrics-port", type=int, default=None, help="Serve /metrics there; 0 picks a free port.")
@click.option("--option", "pairs", multiple=True, metavar="NAME=VALUE", help='More options of format("overlay").')
def main(
    folder: Path,
    consumers: tuple[str, ...],
    job: str,
    stream: str,
    checkpoint: str,
    once: bool,
    master: str | None,
    metrics_port: int | None,
    pairs: tuple[str, ...],
) -> None:
    """Run consumers of one stream as a Spark job."""
    options = dict(pair.partition("=")[::2] for pair in pairs)
    try:
        # before Java is started: a wrong name should not take ten seconds to be reported
        chosen = choose_consumers(load(folder), consumers, stream)
        spark = overlay_session(f"overlay {job or chosen.stream}", master)
        with start_pipeline(
            spark, folder, consumers, checkpoint,
            stream=stream, job=job, once=once, metrics_port=metrics_port, options=options,
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
