"""Avro values from a producer to a consumer's output and to a reading, with the frame of a schema registry."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

import overlay
from tests.support.avro import Schema, encode
from tests.support.kafka import NewTopicFixture, produce_values
from tests.support.waiting import wait_until
from tests.worker.scenes import DEADLINE_S, Scene, Served, await_caught_up, read_committed, serve

pytestmark = pytest.mark.kafka

TIME = {"type": "long", "logicalType": "timestamp-micros"}
PLANE = {"type": "record", "name": "Plane", "fields": [{"name": "tail", "type": "string"}]}
FIRST = {
    "type": "record",
    "name": "Flight",
    "fields": [
        {"name": "route", "type": {"type": "array", "items": "string"}},
        {"name": "carrier", "type": {"type": "enum", "name": "Carrier", "symbols": ["AA", "UA"]}},
        {"name": "delay", "type": ["null", "double"]},
        {"name": "plane", "type": ["null", PLANE]},
        {"name": "at", "type": TIME},
    ],
}
THIRD = {**FIRST, "fields": [{"name": "note", "type": ["null", "string"]}, *FIRST["fields"]]}
SECOND = {**FIRST, "fields": [{"name": "seats", "type": "int"}, *FIRST["fields"]]}
PROPERTIES = {
    "delay": {"type": "double", "from": "{value:delay}"},
    "tail": {"type": "string", "from": "{value:plane.tail}"},
    "seats": {"type": "long", "from": "{value:seats}"},
    "at": {"type": "timestamp", "from": "{value:at}"},
}
EVENING = datetime(2013, 1, 1, 20, 0, 0, 250_000, tzinfo=UTC)


def make_flights(count: int) -> Iterator[dict[str, Any]]:
    for number in range(count):
        yield {
            "route": ["JFK", "LAX"][: number % 3],
            "carrier": ["AA", "UA"][number % 2],
            "delay": None if number % 5 == 0 else number / 4,
            "plane": None if number % 7 == 0 else {"tail": f'N"{number % 3}'},
            "at": EVENING,
            "seats": number,
        }


def frame(id: int, value: bytes) -> bytes:
    return b"\0" + id.to_bytes(4, "big") + value


def add_schema(scene: Scene, id: int, schema: Schema) -> None:
    file = scene.folder / "schemas" / "flights" / f"{id}.avsc"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(schema), encoding="utf-8")


def test_avro_goes_the_way_of_json(scene: Scene, bootstrap: str, new_topic: NewTopicFixture) -> None:
    topic = new_topic()
    add_schema(scene, 7, FIRST)
    add_schema(scene, 8, SECOND)
    scene.add_stream(
        "S",
        topic,
        values={"format": "avro", "schemas": "schemas/flights"},
        subject={"template": "t.{value:carrier}"},
        properties=PROPERTIES,
        index={"terms": ["tail"], "zones": ["delay"], "chunk_records": 50},
    )
    sql = "delay > 20 AND tail = 'N\"1'"
    output = scene.add_consumer("S", "late", "t.UA", filter={"sql": sql})
    flights = list(make_flights(400))
    values = [
        frame(8, encode(SECOND, flight)) if number % 2 else frame(7, encode(FIRST, flight))
        for number, flight in enumerate(flights)
    ]
    strange = [frame(9, values[1][5:]), values[3][:7], b'{"carrier": "UA"}', b"Obj\x01"]
    produce_values(bootstrap, topic, [*values, *strange], **{"compression.type": "lz4"})
    wanted = [
        number
        for number, flight in enumerate(flights)
        if flight["carrier"] == "UA" and (flight["delay"] or 0) > 20 and (flight["plane"] or {}).get("tail") == 'N"1'
    ]
    with serve(scene) as served:
        await_caught_up(served, "late")
        delivered = read_committed(bootstrap, output)
        assert [record.value for record in delivered] == [values[number] for number in wanted]
        assert {record.subject for record in delivered} == {"t.UA"}
        client = overlay.open(scene.folder)
        columns = ["offset", "delay", "seats", "at"]
        table = pa.table(client.read("S", sql=sql, subject="t.UA", columns=columns))
        rows = table.sort_by("offset").to_pylist()
    assert [row["offset"] for row in rows] == wanted
    assert [(row["delay"], row["seats"]) for row in rows] == [(number / 4, number) for number in wanted]
    assert {row["at"] for row in rows} == {EVENING}


def list_names(served: Served) -> list[str]:
    return [consumer["name"] for consumer in served.report()["consumers"]]


def test_a_schema_is_taken_up_while_the_service_runs(scene: Scene, bootstrap: str, new_topic: NewTopicFixture) -> None:
    """With a consumer whose file comes together with the schema, so that the test knows when that is."""
    topic = new_topic()
    add_schema(scene, 7, FIRST)
    values = {"format": "avro", "schemas": "schemas/flights"}
    scene.add_stream("S", topic, values=values, subject={"template": "t.{value:carrier}"})
    first = scene.add_consumer("S", "first", "t.*")
    flights = list(make_flights(4))
    old = [frame(7, encode(FIRST, flight)) for flight in flights]
    produce_values(bootstrap, topic, [*old, frame(10, b"\0" + old[0][5:])])
    with serve(scene) as served:
        await_caught_up(served, "first")
        add_schema(scene, 10, THIRD)
        second = scene.add_consumer("S", "second", "t.*")
        served.reload(scene)
        wait_until(lambda: "second" in list_names(served), DEADLINE_S, "the service has taken up the consumer")
        await_caught_up(served, "second")
        new = [frame(10, encode(THIRD, flight)) for flight in flights]
        produce_values(bootstrap, topic, new)
        await_caught_up(served, "first", "second")
        assert [record.value for record in read_committed(bootstrap, first)] == [*old, *new]
        assert [record.value for record in read_committed(bootstrap, second)] == [
            *old,
            frame(10, b"\0" + old[0][5:]),
            *new,
        ]
