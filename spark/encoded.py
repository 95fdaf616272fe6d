"""Fields of values that Spark cannot parse as JSON, those of Avro and Protobuf, by the overlay's
kernels in Python workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.functions import arrow_udf

from overlay.config.stream import PropertyType
from overlay.config.values import ValuesConfig
from overlay.field import Field
from overlay.match.formats import make_format
from overlay.scan.columns import Origin, gather
from overlay.scan.plan import make_plan
from overlay.scan.states import MISSING
from overlay.schemas.gate import settle_all
from overlay.schemas.ids import list_ids


def read_encoded(values: ValuesConfig, fields: Sequence[tuple[Field, PropertyType]], shape: T.StructType) -> Column:
    """Return a column of structs with these fields of the column `value`; times are ms since 1970.

    `values`: the format of the values, which is not JSON. `shape`: the struct, with one field for
    each of `fields`.
    """

    def extract(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        reader = ColumnReader(values, fields)
        for batch in batches:
            yield pa.StructArray.from_arrays(reader.read(batch), names=shape.names)

    make: Callable[..., Callable[..., Column]] = arrow_udf
    return make(extract, shape)(F.col("value"))


class ColumnReader:
    """Reads some fields of values as columns. The schemas are prepared once, for many arrays."""

    def __init__(self, values: ValuesConfig, fields: Sequence[tuple[Field, PropertyType]]) -> None:
        """`values`: the format, which is not JSON."""
        self._values = values
        declared = make_format(values)
        assert declared is not None
        self._fields = fields
        self._plan = make_plan(field for field, _ in fields)
        self._extractor = declared.prepare(self._plan.paths)

    def read(self, batch: pa.Array) -> list[pa.Array]:
        """Return a column for each of the fields, from an array of values; times are ms since 1970. Raises
        SourceUnavailable if their schemas are a registry's, and it does not answer.
        """
        slot, count = self._plan.value_slot, len(batch)
        # a copy of the array begins at its buffers' beginning
        _, offsets, data = pa.concat_arrays([batch.cast(pa.binary())]).buffers()
        bounds = np.frombuffer(offsets, np.int32, count + 1).astype(np.int64) if count else np.zeros(1, np.int64)
        places, sizes = (np.full((self._plan.width, count), MISSING, np.int64) for _ in range(2))
        places[slot] = bounds[:-1]
        sizes[slot] = np.where(batch.is_valid().to_numpy(zero_copy_only=False), np.diff(bounds), MISSING)
        end = int(bounds[-1])
        if self._values.book is not None and count:
            settle_all(self._values, list_ids(np.frombuffer(data or b"", np.uint8), places[slot], sizes[slot]))
        buf = np.empty(end + int(self._extractor.find_room(sizes[slot]).sum()), np.uint8)
        buf[:end] = np.frombuffer(data or b"", np.uint8)[:end]
        self._extractor.extract(buf, places, sizes, slot, 0, count, end)
        arrays = []
        for field, kind in self._fields:
            at = self._plan.slot(field)
            array = gather(buf, places[at], sizes[at], kind, Origin.JSON).array
            arrays.append(array.cast(pa.int64()) if kind is PropertyType.TIMESTAMP else array)
        return arrays
