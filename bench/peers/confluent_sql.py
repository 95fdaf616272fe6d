"""confluent-kafka's consumer and the same condition written by hand in Python, which knows no SQL.

The tests are what someone writes who wants them fast: of the headers the whole tuple is looked for with `in`, which runs in
C, and only the records that have it are looked into for the delay; a JSON value is parsed by orjson, the fastest parser
there is for Python, an Avro value by fastavro, which is compiled, a Protobuf value by Google's package, whose parser is in
C. Consumer, batches and fetch settings are those of the scan bench.
"""

from __future__ import annotations

import base64
import io
import time
from collections.abc import Callable, Sequence
from typing import Any

import fastavro
import orjson
from confluent_kafka import Message

from bench.lateness import Late, Sifting
from bench.peers.confluent_scan import open_consumer, take
from bench.protobuf import make_class
from bench.sides import Tally

Pick = Callable[[Sequence[Message]], int]


class ConfluentSql:
    """Headers tested in Python."""

    name = "confluent"
    warm = True

    def run(self, sifting: Sifting) -> Tally:
        return _count(sifting, _make_header_test(sifting.filters[0]))

    def close(self) -> None:
        """Nothing is kept between runs."""


class OrjsonSql:
    """Values parsed by orjson and tested in Python."""

    name = "orjson"
    warm = True

    def run(self, sifting: Sifting) -> Tally:
        return _count(sifting, _make_json_test(sifting.filters[0]))

    def close(self) -> None:
        """Nothing is kept between runs."""


class FastavroSql:
    """Values read by fastavro and tested in Python."""

    name = "fastavro"
    warm = True

    def run(self, sifting: Sifting) -> Tally:
        return _count(sifting, _make_avro_test(sifting.filters[0], sifting.values.schema_))

    def close(self) -> None:
        """Nothing is kept between runs."""


class ProtobufSql:
    """Values read by Google's protobuf package and tested in Python."""

    name = "protobuf"
    warm = True

    def run(self, sifting: Sifting) -> Tally:
        return _count(sifting, _make_protobuf_test(sifting.filters[0], sifting.values.schema_))

    def close(self) -> None:
        """Nothing is kept between runs."""


def _count(sifting: Sifting, pick: Pick) -> Tally:
    work = sifting.work
    began = time.perf_counter()
    with open_consumer(work.bootstrap, work.topic) as consumer:
        read = matched = 0
        while read < work.records:
            messages = take(consumer, work, read)
            read += len(messages)
            matched += pick(messages)
        seconds = time.perf_counter() - began
    return Tally(read, matched, seconds)


def _make_header_test(late: Late) -> Pick:
    wanted, delay = ("origin", late.origin.encode()), late.delay

    def pick(messages: Sequence[Message]) -> int:
        matched = 0
        for message in messages:
            headers = message.headers() or ()
            if wanted in headers:
                for name, value in headers:
                    if name == "dep_delay":
                        matched += int(value) > delay
                        break
        return matched

    return pick


def _make_json_test(late: Late) -> Pick:
    origin, delay, loads = late.origin, late.delay, orjson.loads

    def pick(messages: Sequence[Message]) -> int:
        matched = 0
        for message in messages:
            flight = loads(message.value())
            if flight["origin"] == origin and (found := flight["dep_delay"]) is not None and found > delay:
                matched += 1
        return matched

    return pick


def _make_avro_test(late: Late, schema: Any) -> Pick:
    origin, delay, read, parsed = late.origin, late.delay, fastavro.schemaless_reader, fastavro.parse_schema(schema)

    def pick(messages: Sequence[Message]) -> int:
        matched = 0
        for message in messages:
            flight: Any = read(io.BytesIO(message.value()), parsed, None)
            if flight["origin"] == origin and (found := flight["dep_delay"]) is not None and found > delay:
                matched += 1
        return matched

    return pick


def _make_protobuf_test(late: Late, schema: Any) -> Pick:
    origin, delay = late.origin, late.delay
    read = make_class(base64.b64decode(schema["file_descriptor_set"])).FromString

    def pick(messages: Sequence[Message]) -> int:
        matched = 0
        for message in messages:
            flight = read(message.value())
            # a field that is not there reads as 0
            if flight.origin == origin and flight.dep_delay > delay and flight.HasField("dep_delay"):
                matched += 1
        return matched

    return pick
