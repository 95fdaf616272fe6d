"""A driver that dies between its sink and its ack: `python -m tests.spark.interrupted CONFIG FOLDER`.

It reads consumer c in batches of 100 offsets, writes each to a folder of its own under FOLDER/sink, and acks it. The first
that gets to batch 1 dies once that is written: as a program it kills itself.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from spark.acks import ack
from spark.source import read_stream_consumer

BATCH = 100


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def run(spark: SparkSession, config: Path, folder: Path, die: Callable[[], None] = kill) -> None:
    died = folder / "died"

    def handle(batch: DataFrame, number: int) -> None:
        batch.select("sequence", "value").write.mode("overwrite").parquet(str(folder / "sink" / f"batch={number}"))
        if number == 1 and not died.exists():
            died.touch()
            die()
        ack(batch, config)

    frame = read_stream_consumer(spark, config, "c", options={"maxOffsetsPerTrigger": str(BATCH)})
    writer = frame.writeStream.foreachBatch(handle).option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    if not query.awaitTermination(90):
        raise AssertionError(f"the query has not ended: {query.lastProgress}")


if __name__ == "__main__":
    from spark.session import overlay_session
    from tests.spark.conftest import SETTINGS

    given, place = map(Path, sys.argv[1:])
    run(overlay_session("interrupted", "local[2]", conf=SETTINGS), given, place)
