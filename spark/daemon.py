"""Spark's daemon of Python workers, with the overlay loaded before the first worker is forked.

Spark runs the Python part of a task in processes that a daemon forks. A worker that starts with an
empty interpreter needs four seconds of a core to load the package, and another one to load the
kernels. A worker whose task has failed is replaced. Workers forked from this daemon have everything
at once and share the memory. (Planning has daemons of its own, without a setting; a worker there
loads the package when it is first used.)

`overlay_session` sets this module (`spark.python.daemon.module`) if its `master` says that the
executors run on the driver's machine. Elsewhere the user may set it, if the package is installed for
all Python that Spark starts.
"""

from __future__ import annotations

import numpy as np
from pyspark.daemon import manager

from overlay.client.read.offset_ranges import OffsetRange
from overlay.client.read.row_filter import RowFilter
from overlay.kafka.fetched import Fetched
from overlay.kafka.log_position import LogPosition
from overlay.output.assemble import Body
from overlay.output.encoded_batch import EncodedBatch
from overlay.scan.codec import Codec
from overlay.scan.commit import NO_ABORTS
from overlay.scan.header import split

from . import datasource as datasource
from .form import SparkForm, make_schema
from .kept import settle
from .options import read_options

_DEFINITION = """
{name: W, topics: [w], subject: {template: "{header:h}.{value:v}"},
 properties: {v: {type: long, from: "{value:v}"}, d: double, b: boolean, t: timestamp, h: string}}
"""
_QUESTION = {
    "bootstrap": "127.0.0.1:1",
    "definition": _DEFINITION,
    "subjects": "x.>",
    "sql": "h = 'x' AND v = 1 AND d IS NULL",
}
_RECORD = b'\x24\x00\x00\x00\x02k\x0e{"v":1}\x02\x02h\x02x'


def load_kernels() -> int:
    """Run on one record what a task runs on many: once in an uncompressed batch, once in one of LZ4.
    Return how many rows passed in both together.
    """
    ask = read_options(_QUESTION)
    form = SparkForm(make_schema(ask.request.stream, None), ask.request.stream, "W")
    rows = 0
    for codec in (Codec.NONE, Codec.LZ4):
        body = Body(np.frombuffer(_RECORD, np.uint8), len(_RECORD), 1)
        data = np.frombuffer(EncodedBatch(body, codec, transactional=True).build(), np.uint8)
        fetched = Fetched(0, data, split(data).batches, NO_ABORTS, 1, 0, LogPosition(1))
        row_filter = RowFilter(ask.request, sequenced=True, form=form)
        rows += sum(part.rows for part in row_filter.sift(OffsetRange(("w", 0), 0, 1), fetched, 0))
    return rows


def main() -> None:
    """Load the kernels, then fork workers for Spark until it closes standard input."""
    load_kernels()
    settle()
    manager()


if __name__ == "__main__":
    main()
