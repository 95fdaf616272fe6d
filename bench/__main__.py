"""`python -m bench NAME [--json] [--quick]`: measure the overlay beside what a user would pick instead."""

from __future__ import annotations

import json
import logging
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from types import MappingProxyType

import click
from confluent_kafka import KafkaException

from bench import ack, consumers, push, scan, sizing, skip, spark, sql, workers
from bench import dataset as data
from bench import start as starts
from bench.dataset import CODECS, SELECTIVITIES, Dataset
from bench.figures import Case
from bench.machine import describe_machine
from bench.progress import Progress
from bench.settings import Settings
from bench.table import print_table
from overlay.errors import OverlayError
from overlay.local import start
from overlay.logs import set_up_logs

Measure = Callable[[Dataset, Settings, Progress], Iterator[Case]]

BENCHES: MappingProxyType[str, Measure] = MappingProxyType(
    {
        "scan": scan.measure,
        "push": push.measure,
        "sql": sql.measure,
        "skip": skip.measure,
        "ack": ack.measure,
        "consumers": consumers.measure,
        "spark": spark.measure,
        "start": starts.measure,
        "sizing": sizing.measure,
        "workers": workers.measure,
    }
)


@click.command(help="Measure the overlay and what a user would pick instead, in turns, on a broker of their own.")
@click.argument("name", type=click.Choice(sorted(BENCHES)))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object as the last line, and no table.")
@click.option("--quick", is_flag=True, help="Same cases, little data, one round: under two minutes, not for judging.")
@click.option(
    "--scale",
    type=click.FloatRange(min=0.01),
    help="Repeat the 336,776 flights this often (spark: three times as often); skip: three million records so often;"
    " ack: 100,000; consumers: 200,000, and below 1 a part of its thousands and millions; sizing: 1,000 consumers."
    " [default: 3]",
)
@click.option("--rounds", type=click.IntRange(min=1), help="Rounds of each case. [default: 3]")
@click.option("--only", multiple=True, metavar="PEER", help="Run this peer; may be given several times.")
@click.option("--codec", multiple=True, type=click.Choice(CODECS), help="scan, push: run cases of this codec only.")
@click.option(
    "--selectivity", multiple=True, type=click.Choice(list(SELECTIVITIES)), help="scan, push: run these cases only."
)
@click.option(
    "--case",
    multiple=True,
    metavar="CASE",
    help="skip, spark, consumers, start, sizing, workers: run this case; may be given several times.",
)
def main(
    name: str,
    as_json: bool,
    quick: bool,
    scale: float | None,
    rounds: int | None,
    only: Sequence[str],
    codec: Sequence[str],
    selectivity: Sequence[str],
    case: Sequence[str],
) -> None:
    # by default SIGTERM would leave the broker and the peers' processes behind
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    # the service under test logs as it does for a user; only trouble is of interest here
    set_up_logs(level=logging.WARNING)
    usual = Settings().shorten() if quick else Settings()
    settings = Settings(
        scale or usual.scale,
        rounds or usual.rounds,
        usual.faust_records,
        usual.latency_s,
        frozenset(only),
        frozenset(codec),
        frozenset(selectivity),
        frozenset(case),
    )
    try:
        cases = run(name, settings)
    except (OverlayError, KafkaException) as error:
        raise click.ClickException(str(error)) from error
    if strangers := settings.cases - {case.name for case in cases}:
        raise click.UsageError(
            f"{name} has no case {' '.join(sorted(strangers))}:"
            " of skip, spark, consumers, start, sizing and workers one can be chosen"
        )
    if as_json:
        print(json.dumps(report(name, settings, cases)))
    else:
        print_table(name, cases)


def run(name: str, settings: Settings) -> list[Case]:
    """All cases of a bench, on an embedded broker that lives as long as the run. Raises OverlayError."""
    progress = Progress()
    progress.say("starting Kafka")
    with start(ephemeral=True) as broker:
        dataset = data.load(broker.bootstrap, settings.scale)
        cases = []
        for case in BENCHES[name](dataset, settings, progress):
            progress.keep(json.dumps(case.to_json()))  # a run that is broken off has measured these
            cases.append(case)
    progress.clear()
    return cases


def report(name: str, settings: Settings, cases: Sequence[Case]) -> dict[str, object]:
    """The object that `--json` prints."""
    setting = {"scale": settings.scale, "rounds": settings.rounds}
    return {
        "bench": name,
        "machine": describe_machine(),
        "settings": setting,
        "cases": [case.to_json() for case in cases],
    }


if __name__ == "__main__":
    sys.exit(main())
