"""What is hardly meant in a file is told, and served all the same."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from overlay.cli.validate import validate
from tests.config.folders import CONSUMER, STREAM, load_files, write_folder


def test_durations_without_a_unit(tmp_path: Path) -> None:
    late = CONSUMER.replace("ack_policy: none", "ack_wait: 30")
    work = "stream: FLIGHTS\ndurable_name: work\nbackoff: [1, 5s]\nmax_deliver: 3\n"
    stream = STREAM + "index: {chunk_age: 10}\n"
    files = {"streams/flights.yaml": stream, "consumers/late.yaml": late, "consumers/work.yaml": work}
    loaded = load_files(tmp_path, files)
    assert loaded.problems == ()
    assert [str(warning).removeprefix(f"{tmp_path}/") for warning in loaded.warnings] == [
        "consumers/late.yaml:4:11: ack_wait: 30 without a unit is 30ns. Write 30s for seconds",
        "consumers/work.yaml:3:11: backoff[0]: 1 without a unit is 1ns. Write 1s for seconds",
        "streams/flights.yaml:5:20: index.chunk_age: 10 without a unit is 10ns. Write 10s for seconds",
    ]


def test_nanoseconds_as_jetstream_writes_them_are_meant(tmp_path: Path) -> None:
    consumer = CONSUMER.replace("none", "explicit") + "ack_wait: 30000000000\ninactive_threshold: 0\n"
    assert load_files(tmp_path, {"consumers/late.yaml": consumer}).warnings == ()


def test_wildcards_within_a_token(tmp_path: Path) -> None:
    loaded = load_files(
        tmp_path, {"consumers/late.yaml": CONSUMER + 'filter_subjects: ["flights.JFK*", "flights.LAX"]\n'}
    )
    (warning,) = loaded.warnings
    assert (warning.field, warning.place.line, warning.place.column) == ("filter_subjects[0]", 5, 19)
    assert "in 'JFK*' is an ordinary character" in warning.message


def test_validate_tells_warnings(tmp_path: Path) -> None:
    consumer = CONSUMER + "filter: {sql: \"carrier = 'AA' AND carrier = 'UA'\"}\nidle_heartbeat: 200000\n"
    folder = write_folder(tmp_path, {"consumers/late.yaml": consumer.replace("200000", "1s")})
    done = CliRunner().invoke(validate, [str(folder)])
    assert (done.exit_code, done.output.splitlines()) == (
        0,
        [
            f"warning: {folder}/consumers/late.yaml: filter.sql: carrier = 'AA' AND carrier = 'UA' is true of no record:"
            " one excludes the other",
            "1 stream, 1 consumer, 0 problems",
        ],
    )
    assert '"warnings": [{"file": ' in CliRunner().invoke(validate, [str(folder), "--json"]).output


def test_a_name_that_is_close_to_a_declared_one(tmp_path: Path) -> None:
    stream = STREAM.rstrip() + "\nproperties: {customer_address_country: string, dep_delay: long}\n"
    consumer = CONSUMER + "filter: {sql: \"customer_country = 'NO' AND to = 'x' AND dep_delay > 5\"}\n"
    folder = write_folder(tmp_path, {"streams/flights.yaml": stream, "consumers/late.yaml": consumer})
    done = CliRunner().invoke(validate, [str(folder)])
    assert done.exit_code == 0
    (line,) = [line for line in done.output.splitlines() if line.startswith("warning: ")]
    assert line.endswith(
        "filter.sql: customer_country is not declared by the stream, so it is the header of this name. Did you mean"
        " customer_address_country?"
    )
