"""`overlay filter`, in one piece as it is typed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from overlay.cli import overlay
from overlay.filter import compile_sql
from tests.config.folders import write_folder

STREAM = """name: FLIGHTS
topics: [flights]
subject: {template: "flights.{header:origin}"}
properties:
  dep_delay: double
  tail: {type: string, from: "{value:tailnum}"}
  p.message_id: long
"""
MESSAGE = {"application_properties": {"a": 5, "s": "xé", "none": None}, "properties": {"message-id": 7}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "config", {"streams/flights.yaml": STREAM})


def run(*words: str, text: str = "", code: int = 0) -> str:
    done = CliRunner().invoke(overlay, ["filter", *words], input=text)
    assert done.exit_code == code, done.output + repr(done.exception)
    return done.output + str(done.exception or "")


def run_json(*words: str, text: str = "") -> Any:
    return json.loads(run(*words, "--json", text=text))


def test_what_a_filter_means_to_a_stream(folder: Path) -> None:
    sql = (
        "dep_delay>60 AND(carrier='AA' OR tail LIKE 'N%') AND p.subject <> 'x' AND p.message_id = 1 AND h.priority > 3"
    )
    words = ("check", sql, "--stream", "FLIGHTS", "--config", str(folder))
    said = run(*words).splitlines()
    means = (
        "dep_delay > 60 AND (carrier = 'AA' OR tail LIKE 'N%') AND properties.subject <> 'x'"
        " AND properties.message_id = 1 AND header.priority > 3"
    )
    assert said[0].split(maxsplit=1) == ["means", means]
    rows = {row[0]: row[1:] for line in said[3:] if (row := line.strip().split(maxsplit=2))}
    assert rows["dep_delay"] == ["double", "{header:dep_delay}"]
    assert rows["carrier"] == ["string", "{header:carrier}"]
    assert rows["tail"] == ["string", "{value:tailnum}"]
    assert rows["properties.subject"] == ["string", "{header:subject}, else {subject}"]
    assert rows["properties.message_id"] == ["long", "{header:message_id}, else {header:message-id}"]
    assert said[-1] == "FLIGHTS does not declare carrier: read as text from the header of that name"
    found = run_json(*words)
    assert found["means"] == means and found["verdict"] is None
    assert {field["name"]: field["is_declared"] for field in found["fields"]} == {
        "dep_delay": True, "carrier": False, "tail": True,
        "properties.subject": None, "properties.message_id": None, "header.priority": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("sql", "verdict"),
    [
        ("1 = 2 AND x = 3", "false"),
        ("TRUE OR x = 3", "true"),
        ("1 / 0 > 2", "unknown"),
        ("5", "unknown"),
        ("UTC() > 1", None),
    ],
)
def test_filters_that_no_message_changes(sql: str, verdict: str | None) -> None:
    assert run_json("check", sql)["verdict"] == verdict
    assert (f"always    {verdict}" in run("check", sql)) is (verdict is not None)


def test_without_a_stream_types_are_those_of_the_messages() -> None:
    (field,) = run_json("check", "x > 1")["fields"]
    assert field == {"name": "x", "type": "any", "source": "{header:x}", "is_declared": None}


def test_a_filter_that_cannot_be() -> None:
    command = [sys.executable, "-m", "overlay", "filter", "check", "x > 1 and y = 2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[:3] == [
        "error: line 1, column 7: and is a reserved word",
        "  x > 1 and y = 2",
        "        ^^^",
    ]


def test_what_the_stream_does_not_know(folder: Path) -> None:
    config = ("--config", str(folder))
    assert "did you mean dep_delay" in run("check", "dep_dely > 60", "--stream", "FLIGHTS", *config, code=1)
    assert "Did you mean FLIGHTS?" in run("check", "x = 'a'", "--stream", "FLIGHT", *config, code=1)
    test = ("test", "dep_dely > 60", "--message", "-", "--stream", "FLIGHTS", *config)
    assert "did you mean dep_delay" in run(*test, text="{}", code=1)


def test_every_part_of_an_expression(tmp_path: Path) -> None:
    sql = "NOT (a > 3 AND s LIKE 'x_') OR none = 3 OR p.message_id + 1 = 8.5"
    file = tmp_path / "message.json"
    file.write_text(json.dumps(MESSAGE))
    said = run("test", sql, "--message", str(file)).splitlines()
    assert said[0] == "unknown"
    parts = [tuple(line.rsplit("  ", 1)) for line in said[2:]]
    assert [(left.strip(), value.strip()) for left, value in parts] == [
        (compile_sql(sql).text.replace("p.", "properties."), "unknown"),
        ("NOT (a > 3 AND s LIKE 'x_')", "false"),
        ("a > 3 AND s LIKE 'x_'", "true"),
        ("a > 3", "true"),
        ("a", "5"),
        ("s LIKE 'x_'", "true"),
        ("s", "'xé'"),
        ("none = 3", "unknown"),
        ("none", "null"),
        ("properties.message_id + 1 = 8.5", "false"),
        ("properties.message_id + 1", "8"),
        ("properties.message_id", "7"),
    ]


def test_texts_are_what_the_stream_reads_in_them(folder: Path) -> None:
    """A header is a text, a field of the value is what JSON says it is."""
    message = {
        "application_properties": {"dep_delay": "61", "carrier": "61", "tail": 5},
        "properties": {"message-id": "7", "creation_time": "1970-01-01T00:00:01Z"},
    }

    def ask(sql: str, text: str = json.dumps(message)) -> str:
        words = ("test", sql, "--message", "-", "--stream", "FLIGHTS", "--config", str(folder))
        return run(*words, text=text).splitlines()[0]

    assert ask("dep_delay = 61 AND carrier = '61' AND p.message_id = 7 AND p.creation_time = 1000") == "true"
    assert ask("tail IS NULL") == "true"
    assert ask("dep_delay IS NULL", '{"application_properties": {"dep_delay": "late"}}') == "true"
    assert ask("dep_delay = 61", '{"application_properties": {"dep_delay": 61}, "properties": null}') == "true"
    assert (
        ask("dep_delay > 60 AND FALSE OR carrier > 'A'", '{"application_properties": {"dep_delay": "1"}}') == "unknown"
    )


def test_every_part_as_json() -> None:
    found = run_json("test", "a > 3 AND s = 'x'", "--message", "-", text=json.dumps(MESSAGE))
    assert found["answer"] == "false"
    assert found["parts"][:2] == [
        {"text": "a > 3 AND s = 'x'", "value": False, "depth": 0, "at": [0, 17]},
        {"text": "a > 3", "value": True, "depth": 1, "at": [0, 5]},
    ]
    assert [part["text"] for part in found["parts"]] == ["a > 3 AND s = 'x'", "a > 3", "a", "3", "s = 'x'", "s", "'x'"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "this is no JSON"),
        ("[]", "a message is an object"),
        ('{"aplication_properties": {}}', "Did you mean application_properties?"),
        ('{"header": 4}', "header is an object"),
    ],
)
def test_what_is_no_message(text: str, message: str) -> None:
    assert message in run("test", "a = 1", "--message", "-", text=text, code=1)
