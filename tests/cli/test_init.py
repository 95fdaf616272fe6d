"""`overlay init` against a real broker."""

from __future__ import annotations

import json
import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from confluent_kafka.admin import AdminClient

from overlay.cli.init import choose_port, init, read_settings
from overlay.config import load
from overlay.errors import ConfigError, OverlayError
from overlay.inspect.draft import draft_service
from overlay.kafka.properties import for_confluent
from tests.support.kafka import NewTopicFixture, SureProducer, make_topic, produce_values


def run(*arguments: str) -> Result:
    return CliRunner().invoke(init, [*arguments])


def refuse(*arguments: str) -> str:
    """The message of the error that the command ends with."""
    result = run(*arguments)
    assert isinstance(result.exception, OverlayError), result.output
    return str(result.exception)


@pytest.fixture
def orders(bootstrap: str, new_topic: NewTopicFixture) -> str:
    topic = new_topic(partitions=2)
    producer = SureProducer(bootstrap)
    for number in range(200):
        value = json.dumps({"amount": number / 4, "customer": f"c{number}"})
        headers = [("type", b"new" if number % 3 else b"paid"), ('odd "{name}" ü', b"x")]
        producer.produce(topic, value, key=f"c{number}", headers=headers)
    assert producer.flush(30) == 0
    return topic


def test_a_topic_becomes_a_config_that_loads(bootstrap: str, orders: str, tmp_path: Path) -> None:
    folder = tmp_path / "my config"
    result = run("--bootstrap", bootstrap, "--topic", orders, "--dir", str(folder))
    assert result.exit_code == 0, result.output
    loaded = load(folder)
    assert loaded.problems == ()
    assert loaded.service.kafka["bootstrap.servers"] == bootstrap
    (stream,) = loaded.streams.values()
    assert stream.subject.template == f"{orders}.{{header:type}}"
    assert {str(entry.source): entry.type.value for entry in stream.properties.values()} == {
        "{header:type}": "string",
        '{header:odd "{name}" ü}': "string",
        "{value:amount}": "double",
        "{value:customer}": "string",
    }
    assert sorted(consumer.filters for consumer in loaded.consumers.values()) == [(), (f"{orders}.new",)]
    assert f"{orders}.new" in result.output
    assert f"next: overlay validate '{folder}' --kafka" in result.output
    assert (
        f"{orders}-all.yaml copies the whole topic, 200 records or fewer, into the topic {orders}-all" in result.output
    )


def test_nothing_is_written_to_kafka(bootstrap: str, orders: str, tmp_path: Path) -> None:
    def look() -> set[str]:
        return set(AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=20).topics)

    before = look()
    assert run("--bootstrap", bootstrap, "--topic", orders, "--dir", str(tmp_path)).exit_code == 0
    assert look() - before <= {"__consumer_offsets"}


def test_a_second_topic_joins_the_folder(
    bootstrap: str, orders: str, new_topic: NewTopicFixture, tmp_path: Path
) -> None:
    other = new_topic()
    produce_values(bootstrap, other, [b"\x00\x00\x00\x00\x2a\x06JFK\x06LAX\x02"] * 5)
    assert run("--bootstrap", bootstrap, "--topic", orders, "--dir", str(tmp_path)).exit_code == 0
    result = run("--bootstrap", bootstrap, "--topic", other, "--dir", str(tmp_path))
    assert result.exit_code == 0
    assert "kept" in result.output
    assert "Avro with a schema registry: fields can be named once" in result.output
    assert (len(load(tmp_path).streams), load(tmp_path).problems) == (2, ())


def test_what_is_broken_is_named_and_nothing_is_folded(
    bootstrap: str, new_topic: NewTopicFixture, tmp_path: Path
) -> None:
    topic, name = new_topic(partitions=3), "a_long_name_" * 8
    values = [json.dumps({"kind": "ab"[at % 2], name: at / 2, "lines": [at]}).encode() for at in range(60)]
    produce_values(bootstrap, topic, [*values, b'{"kind": "a', b"[1, 2]"])
    result = run("--bootstrap", bootstrap, "--topic", topic, "--dir", str(tmp_path))
    assert result.exit_code == 0, result.output
    assert "values: JSON object 60, " in result.output
    assert ", broken JSON 1" in result.output
    assert ", JSON array 1" in result.output
    place = rf"{re.escape(topic)}-[012]@\d+"
    for note in (
        "broken JSON: 1 of 62 values, such as",
        "JSON arrays: 1 of 62 values, such as",
        "at most 2 of 62 records lack a field and would be left out, counted, such as",
        "arrays are no properties and no part of a subject: lines, such as in",
    ):
        assert re.search(f"{note} {place}", result.output), note
    rows = [line.split() for line in result.output.splitlines() if line.startswith("{value:")]
    assert [row[0] for row in rows] == ["{value:kind}", f"{{value:{name}}}"]
    assert rows[1] == [f"{{value:{name}}}", "double", "property", name.strip("_"), "100%", "60"]
    loaded = load(tmp_path)
    assert loaded.problems == ()
    assert {consumer.output.partitions for consumer in loaded.consumers.values()} == {3}


def test_files_of_ones_own_are_not_overwritten(bootstrap: str, orders: str, tmp_path: Path) -> None:
    (tmp_path / "overlay.yaml").write_text("mine\n")
    arguments = ("--bootstrap", bootstrap, "--topic", orders, "--dir", str(tmp_path))
    assert "overwrite with --force" in refuse(*arguments)
    assert (tmp_path / "overlay.yaml").read_text() == "mine\n"
    assert run(*arguments, "--force").exit_code == 0
    assert load(tmp_path).problems == ()


def test_an_output_topic_that_exists_is_pointed_out(bootstrap: str, orders: str, tmp_path: Path) -> None:
    make_topic(bootstrap, f"{orders}-all")
    result = run("--bootstrap", bootstrap, "--topic", orders, "--dir", str(tmp_path))
    assert f"note: the topic {orders}-all exists; unless it is meant" in result.output
    assert f"the topic {orders}-new exists" not in result.output


def test_a_missing_topic_names_its_neighbour(bootstrap: str, orders: str, tmp_path: Path) -> None:
    message = refuse("--bootstrap", bootstrap, "--topic", orders + "x", "--dir", str(tmp_path))
    assert f"Did you mean {orders}?" in message
    assert not [*tmp_path.iterdir()]


def test_settings_are_those_of_the_service_file() -> None:
    assert read_settings("b:9092", ["security.protocol=ssl", "ssl.ca.location=a=b.pem"]) == {
        "bootstrap.servers": "b:9092",
        "security.protocol": "SSL",
        "ssl.ca.location": "a=b.pem",
    }
    with pytest.raises(ConfigError, match=r"kafka\.sasl\.user: is not a known field.*Did you mean sasl\.username"):
        read_settings("b:9092", ["sasl.user=x"])
    with pytest.raises(ConfigError, match=r"security\.protocol: SASL_SSL needs sasl\.mechanism too"):
        read_settings("b:9092", ["security.protocol=SASL_SSL"])
    with pytest.raises(ConfigError, match="is not host:port"):
        read_settings("broker", [])
    assert "write NAME=VALUE" in run("--bootstrap", "b:1", "--topic", "t", "-X", "password").output


def test_a_password_comes_from_the_environment_or_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not from an argument, which is in the list of processes."""

    def read(reference: str) -> str:
        sasl = ("security.protocol=SASL_SSL", "sasl.mechanism=PLAIN", "sasl.username=u", f"sasl.password={reference}")
        return for_confluent(read_settings("h:1", sasl))["sasl.password"]

    monkeypatch.setenv("SECRET_OF_TEST", "env:x=y")
    assert read("env:SECRET_OF_TEST") == "env:x=y"
    monkeypatch.delenv("SECRET_OF_TEST")
    with pytest.raises(click.UsageError, match=r"sasl\.password: the environment variable SECRET_OF_TEST is not set"):
        read("env:SECRET_OF_TEST")
    secret = tmp_path / "secret"
    with pytest.raises(click.UsageError, match=r"sasl\.password: .*secret cannot be read: No such file"):
        read(f"file:{secret}")
    secret.write_text("file:z\n")
    assert read(f"file:{secret}") == "file:z"
    with pytest.raises(
        click.UsageError, match=r"list of processes.*sasl\.password=env:NAME.*sasl\.password=file"
    ) as told:
        read("hunter2")
    assert "hunter2" not in str(told.value)


def test_other_settings_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLIENT_OF_TEST", "me")
    assert read_settings("h:1", ["client.id=env:CLIENT_OF_TEST"])["client.id"] == "me"


def test_a_port_that_is_in_use_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An earlier draft keeps its port, also while its service runs: a draft that is made once more is the same."""
    taken = {8222, 8224}
    monkeypatch.setattr("overlay.ports.is_taken", lambda host, port: port in taken)
    assert choose_port(tmp_path) == 8225
    taken.clear()
    assert choose_port(tmp_path) == 8222
    (tmp_path / "overlay.yaml").write_text(draft_service({"bootstrap.servers": "localhost:1"}, 1, 8225))
    assert choose_port(tmp_path) == 8225
    assert load(tmp_path).service.http.address == ("127.0.0.1", 8225)
