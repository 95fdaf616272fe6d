"""`overlay filter test` on records: of a topic, and on lines of `overlay read --format json`.

What it says of a record is what `overlay read` finds with the same filter.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from overlay.cli import overlay
from overlay.view.one_record import MEMBERS
from tests.support.kafka import NewTopicFixture, SureProducer
from tests.support.service import write_service_file

VALUES: list[bytes | None] = [
    b'{"customer": {"country": "NO"}, "total": 12.50}',
    b'{ "total" : 1e2,\n "customer": {"country": "DE", "total": 1} }',
    b'{"total": "x", "customer": {"country": 7}}',
    b'{"total": 1',
    b"\xff\x00",
    b'"NO"',
    b"NO",
    None,
]
SQL = ("country = 'NO'", "total > 12", "total > 12 AND carrier = 'AA'", "p.subject LIKE 'orders.%'", "carrier IS NULL",
       "p.creation_time >= 1700000000003", "header.priority = 7")  # fmt: skip


@pytest.fixture
def orders(bootstrap: str, new_topic: NewTopicFixture, tmp_path: Path) -> tuple[Path, str]:
    """A folder with stream ORDERS, and its topic."""
    topic = new_topic()
    write_service_file(tmp_path, bootstrap)
    (tmp_path / "streams").mkdir()
    properties = (
        "{country: {type: string, from: '{value:customer.country}'}, total: {type: double, from: '{value:total}'}}"
    )
    (tmp_path / "streams" / "orders.yaml").write_text(
        f"name: ORDERS\ntopics: [{topic}]\nsubject: {{template: 'orders.{{header:to}}'}}\nproperties: {properties}\n"
    )
    producer = SureProducer(bootstrap)
    for number, value in enumerate(VALUES):
        headers: list[tuple[str, bytes | None]] = [("to", b"a")] if number else []
        headers += [("carrier", (b"AA", b"\xfe", None)[number % 3]), ("priority", b"7")]
        producer.produce(topic, value, f"k{number}", headers=headers, timestamp=1_700_000_000_000 + number)
    assert producer.flush(30) == 0
    return tmp_path, topic


def run(*words: str, text: str = "", code: int = 0) -> str:
    done = CliRunner().invoke(overlay, [*words], input=text)
    assert done.exit_code == code, done.output + repr(done.exception)
    return done.output + str(done.exception or "")


def try_record(*words: str, text: str = "") -> Any:
    return json.loads(run("filter", "test", *words, "--json", text=text))


def test_records_and_lines_are_what_reading_finds(orders: tuple[Path, str]) -> None:
    folder, topic = orders
    config = ("--config", str(folder))
    lines = run("read", "ORDERS", *config, "--format", "json").splitlines()
    places = {json.loads(line)["offset"]: line for line in lines if line.startswith("{")}
    # the first has no subject in the stream
    assert sorted(places) == list(range(1, len(VALUES)))
    for sql in SQL:
        found = run("read", "ORDERS", *config, "--sql", sql, "--format", "json").splitlines()
        passing = {json.loads(line)["offset"] for line in found if line.startswith("{")}
        for offset, line in places.items():
            by_place = try_record(sql, "--record", f"{topic}-0@{offset}", *config)
            by_line = try_record(sql, "--message", "-", *config, text=line)
            # in a line the JSON text "NO" and the text NO look the same: neither has fields
            if VALUES[offset] == b'"NO"':
                by_place["record"]["faults"], by_line["record"]["faults"] = {}, {}
            assert by_place == by_line
            assert (by_place["answer"] == "true") == (offset in passing), (sql, offset)


def test_what_is_said_of_a_record(orders: tuple[Path, str]) -> None:
    folder, topic = orders
    said = run("filter", "test", "total > 12 AND country = 'NO'", "--record", f"{topic}-0@2", "--config", str(folder))
    assert said.splitlines() == [
        "unknown",
        "",
        "total > 12 AND country = 'NO'  unknown",
        "  total > 12                   unknown",
        "    total                      null",
        "  country = 'NO'               unknown",
        "    country                    null",
        "",
        f"{topic}-0@2 has subject orders.a",
        "total could not be read: unparsable",
        "country could not be read: unparsable",
    ]
    found = try_record("carrier = 'AA'", "--record", f"{topic}-0@0", "--config", str(folder), "--stream", "ORDERS")
    assert found["answer"] == "true" and found["record"]["subject"] is None and found["record"]["reason"]


def test_a_record_of_a_topic_alone(orders: tuple[Path, str]) -> None:
    folder, topic = orders
    (folder / "streams" / "orders.yaml").unlink()
    words = ("total > 12", "--record", f"{topic}-0@0", "--config", str(folder))
    assert "hint: say --property total:double" in run("filter", "test", *words, code=1)
    assert try_record("carrier = 'AA'", *words[1:])["answer"] == "true"
    assert try_record(*words, "--property", "total:double=value:total")["answer"] == "true"
    # a line needs no folder
    line = run("read", "--topic", topic, "--config", str(folder), "--limit", "1", "--format", "json")
    nowhere = ("--config", str(folder / "streams"))
    found = try_record(words[0], "--message", "-", "--property", "total:double=value:total", *nowhere, text=line)
    assert (found["answer"], found["record"]["subject"]) == ("true", topic)


def test_a_property_is_for_a_topic_without_a_stream(tmp_path: Path) -> None:
    write_service_file(tmp_path, "127.0.0.1:1")
    (tmp_path / "streams").mkdir()
    streams = {"A": "[orders, more]", "B": "[orders]"}
    for name, topics in streams.items():
        (tmp_path / "streams" / f"{name}.yaml").write_text(f"name: {name}\ntopics: {topics}\n")
    words = ("filter", "test", "a = 'x'", "--property", "a:string", "--config", str(tmp_path))
    assert "stream A has topic more" in run(*words, "--record", "more-0@0", code=2)
    assert "streams A, B have topic orders" in run(*words, "--record", "orders-0@0", code=2)
    line = json.dumps(dict.fromkeys(MEMBERS) | {"topic": "orders"})
    assert "streams A, B have topic orders" in run(*words, "--message", "-", text=line, code=2)
    # and for a record: a message for a filter has properties of its own
    assert "--property is for a record" in run(*words, "--message", "-", text='{"properties": {}}', code=2)


def test_what_is_no_record(orders: tuple[Path, str]) -> None:
    folder, topic = orders
    config = ("--config", str(folder))

    def refuse(*words: str, code: int = 1) -> str:
        return run("filter", "test", "a = 'x'", *words, *config, code=code)

    assert "names no record" in refuse("--record", "orders@3")
    assert f"committed records from offset 0 to {len(VALUES) - 1}" in refuse("--record", f"{topic}-0@99")
    assert "no such partition" in refuse("--record", f"{topic}-7@0")
    assert "no such topic" in refuse("--record", "there-is-none-0@0")
    assert "does not have topic" in refuse("--record", "there-is-none-0@0", "--stream", "ORDERS")
    assert "no stream 'ORDER'" in refuse("--record", f"{topic}-0@0", "--stream", "ORDER")
    assert "Say --message FILE or --record" in refuse(code=2)
    assert "--property is for a topic" in refuse(
        "--record", f"{topic}-0@0", "--stream", "ORDERS", "--property", "a:long", code=2
    )
    broken = json.dumps({"topic": "t", "partition": 0, "offset": 0, "headers": [{"value": "x"}]})
    done = CliRunner().invoke(overlay, ["filter", "test", "a = 'x'", "--message", "-", *config], input=broken)
    assert "this is no line of `overlay read" in str(done.exception)
