"""Functions on Arrow arrays for Spark before 4.1, whose Python functions take and give pandas objects alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pandas as pd
import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import types as T
from pyspark.sql.pandas.functions import pandas_udf


def make_function(
    read: Callable[[Iterator[pa.Array]], Iterator[pa.Array]], shape: T.StructType
) -> Callable[[Column], Column]:
    """Return a function of a binary column that gives a column of structs of this shape. `read`: makes an array of structs
    of each array of bytes.
    """

    def convert(batches: Iterator[pd.Series]) -> Iterator[pd.DataFrame]:
        for found in read(pa.array(batch, pa.binary(), from_pandas=True) for batch in batches):
            # integers as objects, since pandas would make floats of them where some are missing
            columns = (column.to_pandas(integer_object_nulls=True) for column in found.flatten())
            yield pd.DataFrame(dict(zip(shape.names, columns, strict=True)))

    make: Callable[..., Callable[[Column], Column]] = pandas_udf
    return make(convert, shape)
