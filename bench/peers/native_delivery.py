"""The records that a pipeline writes: rows for Spark's Kafka sink, equal to the records that the
service would write.

A delivery keeps key, value and headers of the source and gets `Nats-Subject` and the ack token
(docs/client.md#what-a-message-says), with `headers: full` also the parts of the token. Headers of
the source with one of these names are left out. num_pending is 0, for unknown. If the output has
several partitions, the record goes to the one that the service would choose
(overlay/output/partition.py).

All records of an output partition go through one task, so only expressions that Spark compiles are
used. Lambdas over a list are interpreted, which costs several times as much. The one that leaves
out headers runs only for records with such a header.
"""

from __future__ import annotations

from functools import reduce
from operator import or_

import numpy as np
import pandas as pd
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.functions import pandas_udf

from overlay.config.consumer import ConsumerConfig, HeaderStyle, PartitionBy
from overlay.kafka.header_names import FULL, SUBJECT, TOKEN
from overlay.output.partition import murmur2
from overlay.scan.columns import NO_TIMESTAMP

_NS_PER_MS = 1_000_000
_LATEST_MS = 9_223_372_036_854  # as the service has it: what fits into int64 in ns
_HEADERS = "array<struct<key:string,value:binary>>"

NEEDED = ("subject", "sequence", "timestamp", "key", "value", "headers", "partition")
"""The columns of a source's records that a delivery is made of."""


def make_records(rows: DataFrame, consumer: ConsumerConfig, partitions: int) -> DataFrame:
    """Return rows for the sink: key, value, headers, topic, partition, and `consumer_sequence`,
    which the sink ignores.

    `rows`: with NEEDED and `consumer_sequence`. `partitions`: of the output topic.
    """
    return rows.select(
        *("key", "value"),
        make_headers(consumer).alias("headers"),
        F.lit(consumer.deliver_subject).alias("topic"),
        choose_partition(consumer.output.partition_by, partitions).alias("partition"),
        "consumer_sequence",
    )


def make_headers(consumer: ConsumerConfig) -> Column:
    """Return the headers of a delivery, from the columns of its source."""
    stream, name = consumer.id
    sequence = F.coalesce(F.col("sequence"), F.lit(0)).cast("string")
    own = F.col("consumer_sequence").cast("string")
    time = _tell_nanoseconds().cast("string")
    token = F.concat_ws(".", F.lit(f"$JS.ACK.{stream}.{name}.1"), sequence, own, time, F.lit("0"))
    ours = {SUBJECT: F.col("subject"), TOKEN: token}
    if consumer.output.headers is HeaderStyle.FULL:
        ours |= dict(zip(FULL, (F.lit(stream), F.lit(name), F.lit("1"), sequence, own, time, F.lit("0")), strict=True))
    added = [F.struct(F.lit(name).alias("key"), text.cast("binary").alias("value")) for name, text in ours.items()]
    # a cast takes the fields of a header by position, not by name
    return F.concat(_leave_out(list(ours)).cast(_HEADERS), F.array(*added).cast(_HEADERS))


def _leave_out(names: list[str]) -> Column:
    """Return the source's headers without those of some names."""
    headers, present = F.col("headers"), F.col("headers")["name"]
    is_there = reduce(or_, [F.array_contains(present, name) for name in names])
    return F.when(is_there, F.filter(headers, lambda header: ~header["name"].isin(names))).otherwise(headers)


def _tell_nanoseconds() -> Column:
    """Return the source's time in ns, as tokens have it; -1 ms for a record without a time."""
    milliseconds = F.coalesce(F.unix_millis("timestamp"), F.lit(NO_TIMESTAMP))
    return F.greatest(F.lit(-_LATEST_MS), F.least(F.lit(_LATEST_MS), milliseconds)) * _NS_PER_MS


def choose_partition(by: PartitionBy, partitions: int) -> Column:
    """Return the output partition of a record."""
    if partitions == 1:
        return F.lit(0)
    if by is PartitionBy.SOURCE:
        return F.col("partition") % partitions
    subject = F.col("subject").cast("binary")
    text = F.coalesce(F.col("key"), subject) if by is PartitionBy.KEY else subject
    placed: Column = pandas_udf(_digest, T.IntegerType())(text) % partitions  # type: ignore[call-overload]
    return placed


def _digest(texts: pd.Series) -> pd.Series:
    """Return the murmur2 of each text with its sign bit cleared."""
    found = [murmur2(np.frombuffer(text, np.uint8), 0, len(text)) & 0x7FFFFFFF for text in texts]
    return pd.Series(found, dtype="int32")
