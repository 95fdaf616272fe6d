"""The columns of a delivery (docs/client.md#what-a-message-says) in Spark, from an output record.

Those from `stream` to `timestamp` come from the ack token. It is
`$JS.ACK.<stream>.<consumer>.<deliveries>.<stream seq>.<consumer seq>.<time>.<pending>`, or has two more
parts after `ACK` and any number at the end. The rules are those of overlay/consumer/acks.py, including
times before 1970. The token is parsed by expressions that Spark compiles, not in Python.

Spark's casts raise for invalid text, so a token is matched as a whole before any part of it is
cast. A record with an invalid token has null in all of these columns. Nothing here
is newer than Spark 3.5.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from overlay.kafka.header_names import SUBJECT, TOKEN
from overlay.scan.columns import NO_TIMESTAMP
from overlay.units import INT64_MAX

COLUMNS = (
    "subject",
    "stream",
    "consumer",
    "sequence",
    "consumer_sequence",
    "num_delivered",
    "timestamp",
    "ack_token",
    "key",
    "value",
    "headers",
    "topic",
    "partition",
    "offset",
)

# the time is negative before 1970 and for records without one
_PART, _NUMBERS = r"[^.]+", r"(\.[0-9]{1,19}){3}\.-?[0-9]{1,19}\.[0-9]{1,19}"
# \A and \z: `$` would also match before a line feed at the end
_SHORT = rf"\A\$JS\.ACK\.{_PART}\.{_PART}{_NUMBERS}\z"
_LONG = rf"(?s)\A\$JS\.ACK\.[^.]*\.[^.]*\.{_PART}\.{_PART}{_NUMBERS}(\..*)?\z"
_NS_PER_MS = 1_000_000
_INT32_MAX = (1 << 31) - 1
_HEADERS = "array<struct<name:string,value:binary>>"


def read_envelope(raw: DataFrame) -> DataFrame:
    """Return the columns COLUMNS of records of Spark's Kafka source, which has to be read with
    `includeHeaders`. The columns from `stream` to `timestamp` are null in a record without a valid
    ack token.
    """
    token = raw.select("*", read_header(F.col("headers"), TOKEN).alias("ack_token"))
    parted = token.select("*", split_token(F.col("ack_token")).alias("parts"))
    return parted.select(
        read_header(F.col("headers"), SUBJECT).alias("subject"),
        *(F.col("parts")[name].alias(name) for name in COLUMNS[1:7]),
        *("ack_token", "key", "value"),
        name_headers(F.col("headers")).alias("headers"),
        *("topic", "partition", "offset"),
    )


def read_header(headers: Column, name: str) -> Column:
    """Return the text of the first header of a name, null without one.

    `headers`: as Spark's Kafka source has them.
    """
    return F.get(F.filter(headers, lambda header: header["key"] == name), 0)["value"].cast("string")


def name_headers(headers: Column) -> Column:
    """Return the headers of Spark's Kafka source, whose entries are (key, value), with entries (name,
    value) as in the envelope; an empty list where there are none.
    """
    # a cast takes fields by position, and is compiled; a lambda would be interpreted
    return F.coalesce(headers.cast(_HEADERS), F.array().cast(_HEADERS))


def split_token(token: Column) -> Column:
    """Return the contents of an ack token as a struct with the columns from `stream` to
    `timestamp`; null for invalid text.

    A sequence of 0, from streams without sequences, is null.
    """
    parts = F.split(token, r"\.")
    at = F.when(token.rlike(_SHORT), F.lit(2)).when(token.rlike(_LONG), F.lit(4))
    numbers = {
        name: F.get(parts, at + step).cast("decimal(20,0)")
        for step, name in enumerate(("deliveries", "sequence", "consumer_sequence", "time"), start=2)
    }
    pending = F.get(parts, at + 6).cast("decimal(20,0)")
    limits = [numbers["deliveries"].between(1, _INT32_MAX), numbers["consumer_sequence"] >= 1]
    limits += [number.between(-INT64_MAX, INT64_MAX) for number in (*numbers.values(), pending)]
    is_sound = at.isNotNull()
    for limit in limits:
        is_sound &= limit
    sequence = F.when(numbers["sequence"] > 0, numbers["sequence"].cast("long"))
    time = F.floor(numbers["time"] / _NS_PER_MS).cast("long")
    fields = F.struct(
        F.get(parts, at).alias("stream"),
        F.get(parts, at + 1).alias("consumer"),
        sequence.alias("sequence"),
        numbers["consumer_sequence"].cast("long").alias("consumer_sequence"),
        numbers["deliveries"].cast("int").alias("num_delivered"),
        F.when(time != NO_TIMESTAMP, F.timestamp_millis(time)).alias("timestamp"),
    )
    return F.when(is_sound, fields)
