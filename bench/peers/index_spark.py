"""`spark.index` in a process of its own: `python -m bench.peers.index_spark CORES FIRST WHOLE`, both config folders.

Indexes the first folder's stream, which starts Python's workers and loads their kernels, and then the second's, which counts.
Prints one JSON object: the seconds of the second, and the offsets that it has indexed.
"""

from __future__ import annotations

import json
import sys
import time

from bench.service import STREAM
from spark.index import index_stream
from spark.session import overlay_session


def main(cores: str, first: str, whole: str) -> None:
    spark = overlay_session("bench index", f"local[{cores}]", conf={"spark.ui.enabled": "false"})
    try:
        index_stream(spark, first, STREAM)
        began = time.perf_counter()
        done = index_stream(spark, whole, STREAM)
        print(json.dumps({"seconds": time.perf_counter() - began, "done": done.done}))
    finally:
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
