"""Times as Spark's columns have them, in whatever way a record is read: null outside the years 1 to 9999.

The overlay's times are any 64-bit number of milliseconds. Spark counts microseconds, in which most of these numbers do not
fit, and Python's datetime ends with the year 9999.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

YEARS = (-62_135_596_800_000, 253_402_300_799_999)
"""The first and the last millisecond since 1970 of the years 1 to 9999."""


def to_micros(array: pa.Array, type: pa.DataType) -> pa.Array:
    """Return times in ms as an array of `type`, timestamps in microseconds. Times outside YEARS are null."""
    millis = array.cast(pa.int64())
    is_near = pc.and_(pc.greater_equal(millis, YEARS[0]), pc.less_equal(millis, YEARS[1]))
    return pc.if_else(is_near, array, pa.scalar(None, array.type)).cast(type)
