"""Readings by filter value, through the chunk index and without it, against what confluent-kafka reads from the topic."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import overlay
from overlay.client import BadQuestion, Client
from tests.oracle.filter_values import fill, find_header, wants_value
from tests.support.kafka import NewTopicFixture, SureProducer
from tests.support.service import write_service_file
from tests.worker.scenes import Seen, read_committed

from .indexing import index_stream
from .logs import read_offsets

REGIONS = ["eu", "us", "a b", "", None, "apac"]
KINDS: dict[str, object] = {
    "SUBJECT": "subject",
    "HEADER": {"header": "region"},
    "TEMPLATE": {"template": "{header:region}.{header:tier}"},
}
RUN = 50


@pytest.fixture
def client(
    bootstrap: str, new_topic: NewTopicFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Client]:
    """Three streams of one topic, in which a region comes in runs; they differ by their filter value."""
    # the log is so small that reading it whole costs less than one fetch more
    monkeypatch.setattr("overlay.index.skip.plan.BRIDGE", 0)
    monkeypatch.setattr("overlay.index.skip.plan.FETCH_S", 0.0)
    topic = new_topic()
    for run in range(24):
        producer = SureProducer(bootstrap, {"linger.ms": 5})
        for number in range(RUN):
            headers = [("to", "ab"[number % 2]), ("tier", "gold" if number % 3 else "")]
            if (region := REGIONS[run % len(REGIONS)]) is not None:
                headers.append(("region", region))
            producer.produce(topic, b"x" * 200, headers=headers)
        assert producer.flush(30) == 0
    folder = tmp_path / "config"
    write_service_file(folder, bootstrap)
    (folder / "streams").mkdir()
    for name, value in KINDS.items():
        stream = {
            "name": name,
            "topics": [topic],
            "subject": {"template": "t.{header:to}"},
            "properties": {"tier": "string"},
            "filter_value": value,
            "index": {"chunk_records": RUN},
        }
        (folder / "streams" / f"{name.lower()}.yaml").write_text(json.dumps(stream))
    client = overlay.open(folder)
    for name in KINDS:
        index_stream(client, bootstrap, name, 1)
    yield client
    client.close()


def find_value(kind: str, record: Seen) -> bytes | None:
    match kind:
        case "HEADER":
            return find_header(record, b"region")
        case "TEMPLATE":
            return fill(record, [b"region", b"tier"])
    return b"t." + (find_header(record, b"to") or b"")


ASKED: dict[str, list[tuple[list[str], bool]]] = {
    "SUBJECT": [(["t.a"], False), (["t.a", "t.b"], True)],
    "HEADER": [(["eu"], False), (["eu", "a b"], False), (["us"], True), ([""], False), (["nowhere"], False)],
    "TEMPLATE": [(["eu.gold"], False), (["a%20b.gold", "us.gold"], False), (["apac.gold"], True), (["x.y"], False)],
}


def test_the_same_records_as_another_client_finds(client: Client, bootstrap: str) -> None:
    source = read_committed(bootstrap, client.find_stream("HEADER").topic_names[0])
    for kind, questions in ASKED.items():
        for values, match_unfiltered in questions:
            wanted = [
                (0, each.offset) for each in source if wants_value(values, match_unfiltered, find_value(kind, each))
            ]
            for index in (True, False):
                reading = client.read(
                    kind, values=values, match_unfiltered=match_unfiltered, columns=["partition", "offset"], index=index
                )
                assert read_offsets(reading) == wanted, (kind, values, match_unfiltered, index)
            counted = client.read(kind, values=values, match_unfiltered=match_unfiltered, columns=[])
            assert sum(batch.num_rows for batch in counted) == len(wanted)


def test_chunks_without_the_value_are_not_read(client: Client) -> None:
    """A region is in four of 24 chunks; those without any value pass with match_unfiltered only."""
    for values, match_unfiltered, chunks in ((["eu"], False, 4), (["eu"], True, 12), (["eu", "us"], False, 8)):
        reading = client.read("HEADER", values=values, match_unfiltered=match_unfiltered)
        assert sum(batch.num_rows for batch in reading) == RUN * chunks
        assert reading.progress.unread == RUN * (24 - chunks)


def test_values_beside_subjects_and_sql(client: Client) -> None:
    found = list(
        client.read("HEADER", subjects="t.a", values="eu", sql="tier = 'gold'", columns=["subject", "headers"])
    )
    records = [
        dict(map(tuple, map(dict.values, headers))) for batch in found for headers in batch["headers"].to_pylist()
    ]
    assert {(record["to"], record["tier"], record["region"]) for record in records} == {(b"a", b"gold", b"eu")}
    assert len(records) == 4 * 16


@pytest.mark.parametrize(
    ("kind", "question", "words"),
    [
        ("HEADER", {"match_unfiltered": True}, "match_unfiltered: goes with `values`"),
        ("SUBJECT", {"values": ["t.*"]}, "found 't.*', which no message has: .* Wildcards go into filter_subjects"),
        ("SUBJECT", {"values": ["other.a"]}, r"the stream builds t\.\*"),
        ("TEMPLATE", {"values": ["eu"]}, "filter_value is made by {header:region}.{header:tier}"),
    ],
)
def test_values_that_nothing_can_have_are_refused(
    client: Client, kind: str, question: dict[str, object], words: str
) -> None:
    with pytest.raises(BadQuestion, match=words):
        client.read(kind, **question)  # type: ignore[arg-type]
