"""Consumers run as Spark jobs: `python -m spark.pipeline --config DIR --checkpoint DIR`.

A job takes the same consumer files as the service and writes the same records, exactly once, for
consumers that need more than one machine: job/job.py says how. It runs the consumers whose files say
`engine: spark`, one job and one scan for each stream, and follows the folder while it runs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType

import click
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from overlay.config import Loaded, load
from overlay.config.service import split_address
from overlay.errors import OverlayError

from .errors import explain
from .figures import Figures, JobMetrics
from .job.folder import NotForSpark, choose_consumers, list_streams
from .job.start import start_job
from .jobs import Jobs, StreamWatch, await_sigterm, run_on, run_once
from .lease import PATIENCE_S
from .output import Config
from .session import LOOPBACK, overlay_session
from .watch import LagWatcher

NO_OPTIONS: Mapping[str, str] = MappingProxyType({})


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
    metrics: JobMetrics | None = None,
    options: Mapping[str, str] = NO_OPTIONS,
    index: bool = False,
    patience_s: float = PATIENCE_S,
) -> Iterator[StreamingQuery]:
    """Run consumers of one stream as a query, which is stopped at the end of the block.

    `names`: of the consumers, whose files have to say `engine: spark`; empty for all such consumers of the stream.
    `stream`: may be empty if the names, or the consumers with `engine: spark`, leave only one. While the query runs,
    it follows the config folder: the next batch takes up what has changed. `job`: the name under which the job keeps
    its state, by default the stream's. `once`: process what exists now, and end the query; otherwise it runs on.
    `checkpoint`: a folder that all of Spark can reach. `metrics_port`: serve /metrics there, at the loopback address.
    `metrics`: count in these, which the caller serves for several jobs. None for both: not at all. `options`: more options
    of format("overlay"), such as maxRecordsPerTrigger. `index`: also keep the stream's chunk index while no service does.
    `patience_s`: seconds to wait for another pipeline's lease. Raises OverlayError, such as UnknownConsumer, NotForSpark,
    NotOwner, TopicNotFound, and what `format("overlay")` raises at planning. Later errors come out of the query.
    """
    loaded = config if isinstance(config, Loaded) else load(Path(config))
    wanted = (names,) if isinstance(names, str) else tuple(names)
    chosen = choose_consumers(loaded, wanted, stream)
    chosen.outputs[0].check_topics(*chosen.stream.topic_names)
    name = job or chosen.stream.name
    with ExitStack() as stack:
        if metrics is None and metrics_port is not None:
            metrics = JobMetrics()
            stack.enter_context(metrics.serve(LOOPBACK, metrics_port))
        figures = Figures(chosen.stream.name, name, metrics or JobMetrics())
        query = stack.enter_context(
            start_job(
                spark, chosen, wanted, name, checkpoint,
                once=once, options=options, index=index, patience_s=patience_s, note=figures.note,
            )
        )  # fmt: skip
        figures.query = str(query.runId)
        spark.streams.addListener(figures)
        stack.callback(spark.streams.removeListener, figures)
        if metrics is not None:
            stack.enter_context(LagWatcher(chosen.kafka, chosen.prefix, name, figures.show).run())
        yield query


def read_address(context: click.Context, option: click.Parameter, text: str | None) -> tuple[str, int] | None:
    """Return the host and the port of an option, None if it was not given. Raises click.BadParameter."""
    try:
        return None if text is None else split_address(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--config", "folder", required=True, type=click.Path(path_type=Path), help="Config folder.")
@click.option(
    "--consumer",
    "consumers",
    multiple=True,
    help="Name of a consumer; may be repeated. All with `engine: spark` if left out.",
)
@click.option("--job", default="", help="Name under which the job keeps its state: the stream's, if not given.")
@click.option("--stream", default="", help="Only this stream; by default a job for each that has such consumers.")
@click.option("--checkpoint", required=True, help="Folder for the position, in any file system that Spark knows.")
@click.option("--once/--continuous", default=True, help="End with what is there now (the default), or go on.")
@click.option("--master", default=None, help="Spark's master; spark-submit's, else local[*].")
@click.option("--metrics-port", type=int, default=None, help="Serve /metrics there, at 127.0.0.1; 0 takes a free port.")
@click.option(
    "--metrics-listen",
    "metrics_address",
    callback=read_address,
    metavar="ADDRESS:PORT",
    help="Serve /metrics there, in place of --metrics-port, such as 10.1.2.3:9102.",
)
@click.option("--index", is_flag=True, help="Keep the chunk index as well, while no service does.")
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
    metrics_address: tuple[str, int] | None,
    index: bool,
    pairs: tuple[str, ...],
) -> None:
    """Run consumers whose files say `engine: spark` as Spark jobs: the named ones, of one stream, or all
    of them, with a job for each stream.
    """
    if metrics_port is not None and metrics_address is not None:
        raise click.UsageError("give --metrics-port or --metrics-listen, not both")
    address = metrics_address if metrics_port is None else (LOOPBACK, metrics_port)
    options = dict(pair.partition("=")[::2] for pair in pairs)
    try:
        # before Java is started: a wrong name should not take ten seconds to be reported
        places = find_checkpoints(load(folder), consumers, stream, checkpoint)
        if len(places) > 1 and job:
            raise NotForSpark(f"--job is for one stream. Add --stream: {', '.join(places)}")
        with _serve_metrics(address) as metrics, ExitStack() as stack:
            spark = overlay_session(f"overlay {job or ' '.join(places)}", master)

            def start(name: str) -> AbstractContextManager[StreamingQuery]:
                place = places.get(name, f"{checkpoint.rstrip('/')}/{name}")
                return start_pipeline(
                    spark, folder, consumers, place,
                    stream=name, job=job, once=once, metrics=metrics, options=options, index=index,
                )  # fmt: skip

            jobs = Jobs(start, stack)
            for name in places:
                jobs.add(name)
            enough = await_sigterm()
            if once:
                run_once(jobs, enough)
            else:
                run_on(jobs, enough, StreamWatch(folder, set(places)) if not (consumers or stream or job) else None)
    except OverlayError as error:
        click.echo(f"error: {explain(error)}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    for name, failed in jobs.errors.items():
        click.echo(f"error: {f'stream {name}: ' if len(places) > 1 else ''}{explain(failed)}", err=True)
    if jobs.errors:
        sys.exit(1)


def find_checkpoints(loaded: Loaded, consumers: Sequence[str], stream: str, checkpoint: str) -> dict[str, str]:
    """Return the checkpoint folder of each job, by stream. If consumers or a stream are named, there is one job, with
    `checkpoint` itself; else a job for each stream that has consumers with `engine: spark`, with `checkpoint`/STREAM.

    Raises UnknownConsumer, also if there is no such consumer, and NotForSpark.
    """
    if consumers or stream:
        return {choose_consumers(loaded, consumers, stream).stream.name: checkpoint}
    if streams := list_streams(loaded):
        return {name: f"{checkpoint.rstrip('/')}/{name}" for name in streams}
    return {choose_consumers(loaded).stream.name: checkpoint}  # raises UnknownConsumer


@contextmanager
def _serve_metrics(address: tuple[str, int] | None) -> Iterator[JobMetrics | None]:
    """Serve the metrics of all jobs at an address within the block, and yield them; None for None."""
    if address is None:
        yield None
        return
    metrics = JobMetrics()
    with metrics.serve(*address):
        yield metrics


if __name__ == "__main__":
    main()
