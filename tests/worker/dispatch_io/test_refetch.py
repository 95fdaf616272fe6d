"""Records read again by their stream sequences, wherever they lie."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

from overlay.arrays import Ints
from overlay.avro import Type, parse_schema
from overlay.config import StreamConfig
from overlay.jobs import Jobs
from overlay.kafka.admin import connect
from overlay.kafka.fetcher import Fetcher
from overlay.kafka.log_position import TopicPartition
from overlay.worker.dispatch_io import refetch as refetch_module
from overlay.worker.dispatch_io.refetch import Recalled, Refetch, locate_in
from tests.support.kafka import NewTopicFixture
from tests.worker.scenes import produce


def refetch(bootstrap: str, topic: str, wanted: list[int]) -> Recalled:
    """What is found of a stream over one partition."""
    config = StreamConfig.model_validate({"name": "S", "topics": (topic,), "subject": {"template": "t.{header:to}"}})
    kafka = {"bootstrap.servers": bootstrap}

    async def read() -> Recalled:
        async with connect(kafka) as (admin, client), Jobs("decoding") as jobs:
            reading = Refetch(client, admin, {"S": config}, {"S": locate_in((topic, 0))})
            return await reading.read({"S": np.array(wanted, np.int64)}, jobs)

    return asyncio.run(read())


def list_found(found: Recalled) -> dict[int, bytes]:
    """Values by stream sequence, of records whose value is all that stands behind their key."""
    values = {}
    for _, piece in found.pieces:
        for row, sequence in enumerate(piece.sequences.tolist()):
            body = piece.records.buf[piece.records.body[row] : piece.records.end[row]].tobytes()
            values[sequence] = body
    return values


def test_what_is_scattered_is_found_by_one_fetcher(
    bootstrap: str, new_topic: NewTopicFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetchers: list[Fetcher] = []

    class Counted(Fetcher):
        def __init__(self, *args: object, **more: object) -> None:
            super().__init__(*args, **more)  # type: ignore[arg-type]
            fetchers.append(self)

    monkeypatch.setattr(refetch_module, "Fetcher", Counted)
    monkeypatch.setattr("overlay.kafka.range_reader.Fetcher", Counted)
    monkeypatch.setattr(refetch_module, "NEAR", 10)
    topic = new_topic(retention_ms=-1)
    produce(bootstrap, topic, ["a"] * 20_000)
    wanted = [*range(7, 20_000, 100), 19_999, 20_000, 20_001, 30_000]
    found = refetch(bootstrap, topic, wanted)
    bodies = list_found(found)
    assert sorted(bodies) == wanted[:-2]
    assert all(str(sequence - 1).encode() in body for sequence, body in bodies.items())
    assert found.gone["S"].tolist() == [20_001, 30_000]
    assert len(fetchers) == 1


def test_nothing_wanted_nothing_read(bootstrap: str, new_topic: NewTopicFixture) -> None:
    found = refetch(bootstrap, new_topic(), [])
    assert (found.pieces, found.gone) == ([], {})


def test_the_schemas_of_a_stream_are_parsed_once_and_not_by_the_event_loop(
    bootstrap: str, new_topic: NewTopicFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []

    def note(schema: object) -> Type:
        threads.append(threading.current_thread())
        return parse_schema(schema)

    monkeypatch.setattr("overlay.config.values.parse_schema", note)
    topic = new_topic(partitions=2, retention_ms=-1)
    values = {"format": "avro", "schema": {"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]}}
    config = StreamConfig.model_validate(
        {"name": "S", "topics": (topic,), "subject": {"template": "t.{value:a}"}, "values": values}
    )

    def locate(sequences: Ints) -> list[tuple[TopicPartition, Ints, Ints]]:
        return [((topic, partition), sequences, sequences - 1) for partition in range(2)]

    async def read() -> None:
        async with connect({"bootstrap.servers": bootstrap}) as (admin, client), Jobs("decoding") as jobs:
            reading = Refetch(client, admin, {"S": config}, {"S": locate})
            for _ in range(2):
                await reading.read({"S": np.array([1], np.int64)}, jobs)

    asyncio.run(read())
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()
