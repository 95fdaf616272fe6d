"""`spark.index` in a process of its own: `python -m bench.peers.index_spark CORES BROKER FIRST WHOLE`: the broker's process
id, and both config folders.

Indexes the first folder's stream, which starts Python's workers and loads their kernels, and then the second's, which counts.
Prints one JSON object: the seconds of the second, the offsets that it has indexed, and the seconds of processor time that the
broker took meanwhile.
"""

from __future__ import annotations

import json
import sys
import time

import psutil

from bench.service import STREAM
from spark.index import index_stream
from spark.session import overlay_session


def main(cores: str, broker: str, first: str, whole: str) -> None:
    spark = overlay_session("bench index", f"local[{cores}]", conf={"spark.ui.enabled": "false"})
    try:
        index_stream(spark, first, STREAM)
        process = psutil.Process(int(broker))
        began, before = time.perf_counter(), _read_time(process)
        done = index_stream(spark, whole, STREAM)
        seconds, taken = time.perf_counter() - began, _read_time(process) - before
        print(json.dumps({"seconds": seconds, "done": done.done, "broker": taken}))
    finally:
        spark.stop()


def _read_time(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


if __name__ == "__main__":
    main(*sys.argv[1:])
