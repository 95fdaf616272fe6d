"""Delays by carrier and hour, from two filtered topics to Parquet, with acks.

    overlay run --config examples/spark &
    python examples/spark/delays.py --config examples/spark --out /tmp/delays

    kennedy, laguardia ──► departures/   every departure, written batch by batch, then acked
                      └──► delays/       count, mean and longest delay of each carrier and hour, once an hour is complete

Both may be killed and started again at any moment. `departures` is written by foreachBatch, and a batch that is run again
replaces its own folder before it is acked once more. `delays` is written by Spark's file sink, which knows what it has written
already. An hour is complete when departures of two days later have been seen.
"""

from __future__ import annotations

import argparse

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from spark.acks import ack
from spark.session import overlay_session
from spark.source import read_stream_consumer

CONSUMERS = ("kennedy", "laguardia")
LATENESS = "2 days"


def read_departures(spark: SparkSession, config: str) -> DataFrame:
    """The deliveries of both consumers, with what the stream declares."""
    kennedy, laguardia = (
        read_stream_consumer(spark, config, name, decode=True, options={"maxOffsetsPerTrigger": "50000"})
        for name in CONSUMERS
    )
    return kennedy.union(laguardia)


def archive(spark: SparkSession, config: str, out: str, *, once: bool) -> StreamingQuery:
    """Write departures down, and ack them."""

    def keep(batch: DataFrame, number: int) -> None:
        # it is needed twice, and reading it twice would ask Kafka twice
        batch.persist()
        try:
            rows = batch.select("consumer", "sequence", "subject", "application_properties.*")
            rows.write.mode("overwrite").parquet(f"{out}/departures/batch={number}")
            ack(batch, config)
        finally:
            batch.unpersist()

    writer = read_departures(spark, config).writeStream.foreachBatch(keep)
    return start(writer.option("checkpointLocation", f"{out}/checkpoints/departures"), once)


def summarise(spark: SparkSession, config: str, out: str, *, once: bool) -> StreamingQuery:
    """Delays of each carrier and hour."""
    departures = read_departures(spark, config).select("application_properties.*")
    delays = (
        departures.withWatermark("scheduled", LATENESS)
        .groupBy(F.window("scheduled", "1 hour").alias("hour"), "carrier")
        .agg(F.count("*").alias("flights"), F.avg("dep_delay").alias("mean"), F.max("dep_delay").alias("longest"))
        .select(F.col("hour.start").alias("hour"), "carrier", "flights", "mean", "longest")
    )
    writer = delays.writeStream.format("parquet").option("path", f"{out}/delays")
    return start(writer.option("checkpointLocation", f"{out}/checkpoints/delays"), once)


def start(writer: DataStreamWriter, once: bool) -> StreamingQuery:
    return (writer.trigger(availableNow=True) if once else writer.trigger(processingTime="10 seconds")).start()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--config", required=True, help="config folder")
    parser.add_argument("--out", required=True, help="folder for results and checkpoints")
    parser.add_argument("--once", action="store_true", help="end with what is there now")
    parser.add_argument("--master", help="Spark's master; spark-submit's, else local[*]")
    given = parser.parse_args()
    spark = overlay_session("delays", given.master)
    for query in [begin(spark, given.config, given.out, once=given.once) for begin in (archive, summarise)]:
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
