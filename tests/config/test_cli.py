"""`overlay validate` and `overlay schema`, through click."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from overlay.cli.schema import schema
from overlay.cli.validate import validate
from overlay.config.schema import write_schema
from tests.config.folders import CONSUMER, write_folder


def test_validate_counts_what_is_sound(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, {"consumers/late.yaml": CONSUMER})
    result = CliRunner().invoke(validate, [str(folder)])
    assert (result.exit_code, result.output) == (0, "1 stream, 1 consumer, 0 problems\n")


def test_validate_lists_every_problem(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, {"consumers/late.yaml": CONSUMER + "zork: 1\nack_wiat: 3s\n"})
    result = CliRunner().invoke(validate, [str(folder)])
    lines = result.output.splitlines()
    assert result.exit_code == 1
    assert lines[0].startswith(f"{folder}/consumers/late.yaml:5:1: zork: is not a known field")
    assert "Did you mean ack_wait?" in lines[1]
    assert lines[2:] == ["1 stream, 0 consumers, 2 problems"]


def test_validate_tells_of_many_bad_files_by_kind(tmp_path: Path) -> None:
    files = {f"consumers/c{number:02}.yaml": "zork" for number in range(30)}
    folder = write_folder(tmp_path, files)
    result = CliRunner().invoke(validate, [str(folder)])
    assert result.exit_code == 1
    problem, summary = result.output.splitlines()
    assert problem.startswith(f"{folder}/consumers/c00.yaml:1:1: is not a mapping")
    assert problem.endswith(" (29 more of this kind: c01.yaml:1, c02.yaml:1, c03.yaml:1, ...)")
    assert summary == "1 stream, 0 consumers, 30 problems"
    answer = json.loads(CliRunner().invoke(validate, ["--json", str(folder)]).output)
    assert len(answer["problems"]) == 30


def test_validate_answers_in_json(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, {"consumers/a.yaml": CONSUMER, "consumers/b.yaml": CONSUMER + "max_waiting: 1\n"})
    result = CliRunner().invoke(validate, ["--json", str(folder)])
    answer = json.loads(result.output)
    assert result.exit_code == 1
    assert answer["consumers"] == [{"stream": "FLIGHTS", "name": "late"}]
    assert [problem["field"] for problem in answer["problems"]] == ["durable_name"]


def test_validate_of_a_bad_service_file(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, {"overlay.yaml": "kafka: 1\n"})
    result = CliRunner().invoke(validate, [str(folder)])
    assert result.exit_code == 1
    assert "overlay.yaml:1:8: kafka: found 1, wants a mapping" in result.output
    assert result.output.endswith("0 streams, 0 consumers, 1 problem\n")


def test_schema_prints_or_writes(tmp_path: Path) -> None:
    assert CliRunner().invoke(schema, ["stream"]).output == write_schema("stream")
    result = CliRunner().invoke(schema, ["--out", str(tmp_path / "new")])
    assert result.exit_code == 0
    assert sorted(file.name for file in (tmp_path / "new").iterdir()) == [
        "consumer.json",
        "service.json",
        "stream.json",
    ]


def test_schema_says_what_it_needs(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    assert "name one of" in CliRunner().invoke(schema, []).output
    result = CliRunner().invoke(schema, ["--out", str(file / "x")])
    assert result.exit_code == 1
    assert "Choose a folder that can be written" in result.output
