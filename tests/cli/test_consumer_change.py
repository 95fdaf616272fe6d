"""`overlay consumer add|update|pause|resume|report|rm` without a file, against a service that runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from overlay.cli import overlay
from overlay.cli.consumer_change import add, collect_fields, overlay_fields, read_settings, update
from overlay.cli.explain import explain
from overlay.cli.read import read
from overlay.client import open_client
from overlay.config import load
from overlay.control.records import write_config
from tests.support.kafka import NewTopicFixture
from tests.support.service import StartService
from tests.support.waiting import wait_until
from tests.worker.scenes import CommittedReader, await_records

from .trips import DEADLINE_S, Trips, await_delivered, get_consumer

NOTHING = {
    "file": None, "output": None, "subjects": (), "sql": None, "properties": None, "values": (),
    "match_unfiltered": False, "deliver": None, "ack": None, "settings": (),
}  # fmt: skip


@pytest.fixture
def trips(bootstrap: str, new_topic: NewTopicFixture, tmp_path: Path) -> Trips:
    return Trips(tmp_path / "config", bootstrap, new_topic())


def test_a_consumer_without_a_file(trips: Trips, running_service: StartService, tmp_path: Path) -> None:
    trips.produce(20)
    assert "makes this topic when it starts" in trips.run("consumer", "report", code=1)
    service = running_service(trips.folder)
    flags = ("--output", trips.output("rome"), "--subject", "trips.rome", "--ack", "none")
    said = trips.run("consumer", "add", "TRIPS", "rome", *flags)
    # on a busy machine the answer comes before the consumer has met the end of the log
    assert re.fullmatch("consumer TRIPS/rome is created; it is (starting|catching up|running)\n", said)
    await_delivered(service, "rome", 10)
    assert "consumer already exists" in trips.run(
        "consumer", "add", "TRIPS", "rome", *flags, "--deliver", "new", code=1
    )
    found = trips.run_json("consumer", "info", "TRIPS", "rome")["consumer"]
    assert (found["state"], found["consumer_sequence"]) == ("running", 10)

    assert (found["config"]["filter_subjects"], found["config"]["ack_policy"]) == (["trips.rome"], "none")
    with open_client(trips.folder) as client:
        assert client.read(consumer="rome", columns=["subject"]).to_table()["subject"].unique().to_pylist() == [
            "trips.rome"
        ]
    assert trips.run_json("explain", "rome")["subjects"] == ["trips.rome"]

    check_pause(trips, "rome")
    # what is not named stays as it is
    changed = trips.run_json("consumer", "update", "rome", "--subject", "trips.oslo", "--set", "description=x y")
    assert (changed["config"]["filter_subjects"], changed["config"]["description"]) == (["trips.oslo"], "x y")
    assert changed["config"]["deliver_subject"] == trips.output("rome")
    refused = trips.run("consumer", "update", "TRIPS", "rome", "--deliver", "new", code=1)
    assert "deliver policy can not be updated" in refused and "JetStream 10012" in refused

    file = tmp_path / "oslo.yaml"
    file.write_text(
        f"stream: TRIPS\ndurable_name: oslo\ndeliver_subject: {trips.output('oslo')}\nfilter_subject: trips.oslo\n"
        "ack_policy: none\n"
    )
    assert "is created" in trips.run("consumer", "add", "TRIPS", "--file", str(file))
    with CommittedReader(trips.bootstrap, trips.output("oslo")) as reader:
        await_records(reader, 10)

    def read_report() -> list[list[str]]:
        return [line.split()[:3] for line in trips.run("consumer", "report").splitlines()[1:]]

    both = [["TRIPS", "oslo", "running"], ["TRIPS", "rome", "running"]]
    wait_until(lambda: read_report() == both, DEADLINE_S, "the report has both")

    assert service.stop() == 0
    check_export(trips, "rome", changed["config"])
    # it outlives the service, and so does its state
    stored = trips.run_json("consumer", "ls")["consumers"]
    assert [(c["name"], c["state"], c["consumer_sequence"]) for c in stored] == [
        ("oslo", "waiting", 10),
        ("rome", "waiting", 10),
    ]
    assert "rome is removed" in trips.run("consumer", "rm", "TRIPS", "rome", "--yes")
    service = running_service(trips.folder)
    wait_until(lambda: get_consumer(service, "oslo")["state"] == "running", DEADLINE_S, "oslo is served again")
    assert "TRIPS/oslo is removed" in trips.run("consumer", "rm", "oslo", "--yes")
    assert trips.run_json("consumer", "ls")["consumers"] == []


def check_pause(trips: Trips, name: str) -> None:
    """Pause and resume a consumer: what every command says of it is the same."""

    def say() -> tuple[str, str]:
        info = trips.run_json("consumer", "info", "TRIPS", name)["consumer"]["state"]
        listed = next(c for c in trips.run_json("consumer", "ls")["consumers"] if c["name"] == name)["state"]
        return info, listed

    said = trips.run("consumer", "pause", name, "--until", "2099-01-01T00:00:00Z")
    assert said == f"consumer TRIPS/{name} is paused until 2099-01-01T00:00:00Z\n"
    wait_until(lambda: say() == ("paused", "paused"), DEADLINE_S, "it is paused")
    assert re.search(r"\nreason +until 2099-01-01T00:00:00Z", trips.run("consumer", "info", "TRIPS", name))
    assert "no consumer 'rom'. Did you mean rome?" in trips.run("consumer", "resume", "rom", code=1)
    assert "is resumed" in trips.run("consumer", "resume", name)
    wait_until(lambda: say() == ("running", "running"), DEADLINE_S, "it runs")


def check_export(trips: Trips, name: str, config: dict[str, Any]) -> None:
    """Read what a consumer that was made by request would get, export it, and compare its file with its config."""
    for words in (("--consumer", name), ("TRIPS", "--consumer", name), ("--consumer", f"TRIPS/{name}")):
        assert trips.run("read", *words, "--format", "raw").split() == [str(number) for number in range(1, 20, 2)]
    file = trips.consumer_file(name)
    assert trips.run("consumer", "export", name, "--out", str(file)) == f"written {file}\n"
    assert "Name another file" in trips.run("consumer", "export", name, "--out", str(file), code=1)
    assert trips.run("consumer", "export", "TRIPS", name) == file.read_text()
    assert trips.run("consumer", "export", f"TRIPS/{name}") == file.read_text()
    assert "name one consumer" in trips.run("consumer", "export", "TRIPS", name, "x", code=2)
    assert "there is no consumer 'rom'" in trips.run("consumer", "export", "rom", code=1)
    loaded = load(trips.folder)
    assert loaded.problems == () and write_config(loaded.consumers["TRIPS", name]) == config
    assert re.search(r"\nfilter_subjects\s+trips.oslo *\n", trips.run("consumer", "info", "TRIPS", name))
    file.unlink()


def test_a_folder_that_changes_is_followed(trips: Trips, running_service: StartService) -> None:
    trips.add_consumer("rome")
    trips.produce(20)
    service = running_service(trips.folder)
    await_delivered(service, "rome", 10)
    trips.add_consumer("oslo")
    wait_until(lambda: "oslo" in [c["name"] for c in service.get_json("/consumers")], DEADLINE_S, "oslo is taken up")
    await_delivered(service, "oslo", 10)
    trips.add_consumer("rome", deliver_policy="new")
    wait_until(lambda: "It runs as it was" in service.read_log(), DEADLINE_S, "the change is refused")
    assert "deliver policy can not be updated" in service.read_log()
    trips.consumer_file("rome").unlink()
    wait_until(lambda: [c["name"] for c in service.get_json("/consumers")] == ["oslo"], DEADLINE_S, "rome is gone")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("pause", "S", "c"), "Say --until TIME or --for DURATION"),
        (("pause", "S", "c", "d", "--for", "1h"), "name one consumer: [STREAM] NAME"),
        (("resume",), "Missing argument '[STREAM] NAME'"),
        (("update", "S", "c", "d"), "name one consumer: [STREAM] NAME"),
        (("next", "S", "c", "d"), "name one consumer: [STREAM] NAME"),
        (("rm", "S", "c", "d"), "name one consumer: [STREAM] NAME"),
        (("replay-dead-letter", "S", "c", "d"), "name one consumer: [STREAM] NAME"),
        (("pause", "S", "c", "--for", "soon"), "durations look like"),
        (("add", "S", "c", "--set", "ack_wait"), "'ack_wait' is not FIELD=VALUE"),
        (("add", "S", "c", "--set", "ack_wiat=10s"), "'ack_wiat' is no field of a consumer. Did you mean ack_wait?"),
        (("add", "S", "c", "--set", "filter.sqll=a"), "'filter.sqll' is no field of a consumer. Did you mean sql?"),
        (("nak", "x", "--delay", "soon"), "durations look like"),
    ],
)
def test_wrong_calls(words: tuple[str, ...], message: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(overlay, ["consumer", *words, "--config", str(tmp_path)])
    assert (done.exit_code, message in done.output) == (2, True), done.output


def test_fields_from_flags() -> None:
    given = NOTHING | {
        "output": "out",
        "subjects": ("a.*", "b"),
        "sql": "x > 1",
        "ack": "explicit",
        "settings": (
            "ack_wait=10s",
            "max_deliver=3",
            "output.partitions=2",
            "filter.values=[u, v]",
            "headers_only=true",
        ),
    }
    assert collect_fields(given) == {
        "deliver_subject": "out",
        "filter_subjects": ["a.*", "b"],
        "filter": {"sql": "x > 1", "values": ("u", "v")},
        "ack_policy": "explicit",
        "ack_wait": "10s",
        "max_deliver": 3,
        "output": {"partitions": 2},
        "headers_only": True,
    }


def test_filters_from_flags() -> None:
    """In the words of `overlay read`."""
    given = NOTHING | {"values": ("eu", "us"), "match_unfiltered": True, "properties": '{"header": {"a": 1}}'}
    assert collect_fields(given) == {
        "filter": {"properties": {"header": {"a": 1}}, "values": ["eu", "us"], "match_unfiltered": True}
    }
    with pytest.raises(click.UsageError, match="--properties: this is no JSON"):
        collect_fields(NOTHING | {"properties": "{"})
    for command in (read, explain, add, update):
        options = {option for parameter in command.params for option in parameter.opts}
        assert {"--subject", "--subjects", "--sql", "--value", "--values", "--match-unfiltered"} <= options


def test_settings_reach_into_mappings() -> None:
    assert read_settings(["output.config.retention.ms=5"]) == {"output": {"config": {"retention.ms": 5}}}
    with pytest.raises(click.BadParameter, match="is not FIELD=VALUE"):
        read_settings(["a..b=1"])


def test_one_spelling_of_filters_replaces_the_other() -> None:
    assert overlay_fields({"filter_subject": "a"}, {"filter_subjects": ["b"]}) == {"filter_subjects": ["b"]}
    assert overlay_fields({"filter_subjects": ["b"]}, {"filter_subject": "a"}) == {"filter_subject": "a"}
