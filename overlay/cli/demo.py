"""`overlay demo`: the overlay on real data, in under a minute."""

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
@click.option("--no-spark", is_flag=True, help="Leave out the last part, in which Spark reads an output topic.")
def demo(keep: bool, scale: float, home: Path | None, no_spark: bool) -> None:
    """Filter real flight records out of a real Kafka topic, and check the result.

    Starts its own Kafka and publishes the 336,776 flights that left New York in 2013 with a plain
    producer. Then it runs the service on examples/flights, and computes from the data set what the
    output topics must contain. The exit code is 1 if their content differs. At the end Spark reads
    one of them.
    """
    click.echo("kafka-overlay demo: Kafka, flights, service, check, Spark. Ctrl-C stops everything.")
    from overlay.demo.play import play
    from overlay.demo.screen import Screen

    if not play(home, scale, keep=keep, with_spark=not no_spark, screen=Screen()):
        raise SystemExit(1)
