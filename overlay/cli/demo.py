"""`overlay demo`: what the overlay does, on real data, in under a minute."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option("--keep", is_flag=True, help="Leave Kafka and the service running, and tell how to stop them.")
@click.option(
    "--scale",
    type=click.FloatRange(0.01, 1000),
    default=1.0,
    metavar="N",
    help="Publish the flights N times over; 0.1 is their first tenth.  [default: 1]",
)
@click.option(
    "--home",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the demo, emptied at the start. Default: $OVERLAY_HOME/demo, else in the platform's data folder.",
)
def demo(keep: bool, scale: float, home: Path | None) -> None:
    """Filter real flight records out of a real Kafka topic, and check the result.

    Starts a Kafka of its own, publishes the 336,776 flights that left New York in 2013 with a plain producer, runs the
    service on examples/flights, and counts what the output topics must hold from the data set itself. Exit code 1
    when they hold anything else.
    """
    click.echo("kafka-overlay demo: Kafka, flights, service, check. Ctrl-C stops everything.")
    from overlay.demo.play import play
    from overlay.demo.screen import Screen

    if not play(home, scale, keep=keep, screen=Screen()):
        raise SystemExit(1)
