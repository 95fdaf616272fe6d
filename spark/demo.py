"""The last part of `overlay demo`: Spark reads an output topic as it reads any other topic.

    python -m spark.demo --config DIR --consumer NAME

Prints the delays of a consumer of examples/flights by carrier, and how Spark has read them.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from overlay.config import load

from .session import overlay_session
from .source import read_consumer

_SETTINGS = {
    "spark.ui.enabled": "false",
    # the summary has a row for each carrier
    "spark.sql.shuffle.partitions": "1",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Read, print, and return the exit code. Raises as `read_consumer` does, and BrokerError if there is no Java."""
    parser = argparse.ArgumentParser(prog="python -m spark.demo", description=__doc__.split("\n\n")[0])
    parser.add_argument("--config", required=True, type=Path, help="a folder with the files of examples/flights")
    parser.add_argument("--consumer", required=True, help="the consumer whose output topic is read")
    options = parser.parse_args(arguments)
    loaded = load(options.config)
    began = time.monotonic()
    spark = overlay_session("overlay demo", "local[2]", conf=_SETTINGS)
    started = time.monotonic()
    try:
        deliveries = read_consumer(spark, loaded, options.consumer)
        rows = [row.asDict() for row in summarise_delays(deliveries).collect()]
        read_s = time.monotonic() - started
    finally:
        spark.stop()
    sys.stdout.write("carrier  flights  mean delay  longest delay\n")
    for row in rows:
        sys.stdout.write(
            f"{row['carrier']:7}  {row['flights']:7,}  {row['mean']:6.1f} min  {row['longest']:9.0f} min\n"
        )
    flights = sum(row["flights"] for row in rows)
    sys.stdout.write(
        f"Spark's own Kafka source read these {flights:,} flights in {read_s:.1f} s, from a topic"
        f" that has only what the filters select. The start of Spark took {started - began:.1f} s\n"
    )
    return 0


def summarise_delays(deliveries: DataFrame) -> DataFrame:
    """Return for each carrier the number of flights with a known delay, and the mean and longest delay in minutes."""
    fields = F.from_json(F.col("value").cast("string"), "carrier STRING, dep_delay DOUBLE")
    flights = deliveries.select(fields.alias("flight")).select("flight.*").where(F.col("dep_delay").isNotNull())
    delay = F.col("dep_delay")
    summary = flights.groupBy("carrier").agg(
        F.count("*").alias("flights"), F.avg(delay).alias("mean"), F.max(delay).alias("longest")
    )
    return summary.orderBy(F.desc("flights"), "carrier")


if __name__ == "__main__":
    sys.exit(main())
