"""`overlay local topic` against a real broker."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import IsolationLevel
from confluent_kafka.admin import AdminClient, ConfigResource

from overlay.cli import overlay
from overlay.errors import OverlayError
from tests.oracle.push import place
from tests.support.kafka import DEADLINE_S, NewTopicFixture
from tests.support.partitions import find_ends
from tests.support.service import write_service_file
from tests.support.waiting import wait_until
from tests.worker.scenes import Seen, read_committed


def run(*words: str | Path, given: bytes = b"") -> Result:
    return CliRunner().invoke(overlay, ["local", "topic", *map(str, words)], input=given)


def refuse(*words: str | Path, given: bytes = b"") -> tuple[str, str]:
    """Return the message of the error that the command ends with, and what it printed before."""
    result = run(*words, given=given)
    assert isinstance(result.exception, OverlayError), result.output
    return str(result.exception), result.stdout


def in_order(records: list[Seen]) -> list[Seen]:
    return sorted(records, key=lambda record: (record.partition, record.offset))


def test_topics_are_created_with_partitions_and_settings(bootstrap: str) -> None:
    names = [f"created-{uuid.uuid4().hex[:8]}" for _ in range(2)]
    where = ("--bootstrap", bootstrap)
    result = run("create", *names, "--partitions", "3", "--set", "retention.ms=3600000", *where)
    assert result.output == "".join(f"topic {name} is created, with 3 partitions\n" for name in names)
    client = AdminClient({"bootstrap.servers": bootstrap})
    assert [len(client.list_topics(name).topics[name].partitions) for name in names] == [3, 3]
    asked = ConfigResource(ConfigResource.Type.TOPIC, names[0])
    assert client.describe_configs([asked])[asked].result(20)["retention.ms"].value == "3600000"


def test_a_topic_that_exists_is_an_error_unless_it_may(bootstrap: str, new_topic: NewTopicFixture) -> None:
    there, other = new_topic(partitions=2), f"created-{uuid.uuid4().hex[:8]}"
    where = ("--bootstrap", bootstrap)
    message, _ = refuse("create", other, there, *where)
    assert f"topic {there}: exists already, and nothing was created" in message
    assert other not in run("list", *where).output
    result = run("create", other, there, "--if-missing", "--partitions", "5", *where)
    assert f"topic {other} is created, with 5 partitions" in result.output
    assert f"topic {there} was there, with 2 partitions, and is left as it is" in result.output


def test_what_kafka_refuses_is_told_in_its_words(bootstrap: str) -> None:
    where = ("--bootstrap", bootstrap)
    assert "retention.ms" in refuse("create", "refused", "--set", "retention.ms=soon", *where)[0]
    for words in (("create", "fine", "a/b"), ("produce", "a/b")):
        assert "topic 'a/b': a Kafka topic name has" in refuse(*words, *where)[0]
    assert run("create", "t", "--set", "retention.ms", *where).exit_code == 2


def test_topics_are_listed_with_their_offsets(bootstrap: str, new_topic: NewTopicFixture) -> None:
    topic = new_topic(partitions=2)
    run("produce", topic, "--bootstrap", bootstrap, given=b'{"partition": 1}\n{"partition": 0}\n{"partition": 1}\n')
    listed = json.loads(run("list", "--json", "--bootstrap", bootstrap).output)["topics"]
    assert {"topic": topic, "partitions": 2, "offsets": 3} in listed
    assert not [each for each in listed if each["topic"].startswith("__")]
    (line,) = [line for line in run("list", "--bootstrap", bootstrap).output.splitlines() if topic in line]
    assert line.split() == [topic, "2", "3"]


def test_lines_of_files_become_records(bootstrap: str, new_topic: NewTopicFixture, tmp_path: Path) -> None:
    topic = new_topic(partitions=2)
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    line = {"key": "k", "value": {"n": 1.50}, "headers": {"h": "1"}, "timestamp": 1769860800123, "partition": 1}
    first.write_text(json.dumps(line) + "\n\n")
    second.write_text('{"value": "last", "partition": 1}\n{"partition": 0}')
    result = run("produce", topic, first, second, "--header", "source=file", "--bootstrap", bootstrap)
    assert result.stdout.splitlines() == [
        f"3 records written to {topic}",
        f"  {topic}-0  1 record, offsets 0 to 0",
        f"  {topic}-1  2 records, offsets 0 to 1",
    ]
    assert "1 empty line left out" in result.stderr
    nothing, whole, last = in_order(read_committed(bootstrap, topic))
    assert (whole.key, whole.value, whole.timestamp) == (b"k", b'{"n": 1.5}', 1769860800123)
    assert whole.headers == [(b"source", b"file"), (b"h", b"1")]
    assert (nothing.key, nothing.value, last.value) == (None, None, b"last")


def test_keys_decide_partitions_and_keep_their_order(bootstrap: str, new_topic: NewTopicFixture) -> None:
    topic = new_topic(partitions=3)
    lines = b"".join(b"%d|%d\n" % (number % 7, number) for number in range(5_000))
    result = run(
        "produce", topic, "--format", "raw", "--key-separator", "|", "--json", "--bootstrap", bootstrap, given=lines
    )
    told = json.loads(result.stdout)
    seen = read_committed(bootstrap, topic)
    assert (told["written"], told["blank_lines"], len(seen)) == (5_000, 0, 5_000)
    for partition in told["partitions"]:
        here = [record.offset for record in seen if record.partition == partition["partition"]]
        assert (partition["written"], partition["first"], partition["last"]) == (len(here), min(here), max(here))
    assert {(record.key, record.partition) for record in seen} == {
        (b"%d" % key, place("key", 3, 0, b"%d" % key, "")) for key in range(7)
    }
    for key in range(7):
        values = [int(record.value or b"") for record in in_order(seen) if record.key == b"%d" % key]
        assert values == [*range(key, 5_000, 7)]


def test_a_bad_line_of_a_file_leaves_the_topic_empty(
    bootstrap: str, new_topic: NewTopicFixture, tmp_path: Path
) -> None:
    topic, file = new_topic(), tmp_path / "a.jsonl"
    file.write_text('{"value": 1}\n{"value": 2\n')
    message, printed = refuse("produce", topic, file, "--bootstrap", bootstrap)
    assert message == f"{file}:2:12: this is no JSON object: Expecting ','. Each record is one line"
    assert (printed, read_committed(bootstrap, topic)) == ("", [])


def test_a_bad_line_of_a_pipe_says_what_was_written(bootstrap: str, new_topic: NewTopicFixture) -> None:
    topic = new_topic()
    message, printed = refuse("produce", topic, "--bootstrap", bootstrap, given=b'{"value": 1}\n{"partition": 1}\n{}\n')
    assert message == "standard input:2:1: partition: the topic has partitions 0 to 0, and not 1"
    assert f"1 record written to {topic}" in printed
    assert [record.value for record in read_committed(bootstrap, topic)] == [b"1"]


def test_a_record_that_kafka_refuses_is_named_by_its_line(bootstrap: str, new_topic: NewTopicFixture) -> None:
    """The topic takes small batches only, so the lines before may not share one that is too large."""
    topic = new_topic(max_message_bytes=2_000)
    lines = b"".join(b"%d\n" % number for number in range(500)) + b"x" * 3_000 + b"\n"
    message, printed = refuse("produce", topic, "--format", "raw", "--bootstrap", bootstrap, given=lines)
    assert message == (
        f"standard input:501:1: the record was not written: it is larger than max.message.bytes of {topic}"
    )
    assert f"500 records written to {topic}" in printed
    assert [record.value for record in read_committed(bootstrap, topic)] == [b"%d" % number for number in range(500)]


@pytest.fixture
def heeding() -> Iterator[None]:
    """Have child processes heed Ctrl-C, also where this process was started without it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeding")
def test_ctrl_c_says_what_was_written(bootstrap: str, new_topic: NewTopicFixture) -> None:
    topic = new_topic()
    command = [sys.executable, "-m", "overlay", "local", "topic", "produce", topic, "--bootstrap", bootstrap]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin and process.stdout
        process.stdin.write(b'{"value": 1}\n{"value": 2}\n')
        process.stdin.flush()
        client = AdminClient({"bootstrap.servers": bootstrap})
        wait_until(
            lambda: find_ends(client, topic, [0], IsolationLevel.READ_COMMITTED) == {0: 2},
            DEADLINE_S,
            "both are written",
        )
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert process.stdout.read().decode().startswith(f"2 records written to {topic}\n")


def test_lines_of_overlay_read_are_written_as_they_were(
    bootstrap: str, new_topic: NewTopicFixture, tmp_path: Path
) -> None:
    source, copy = new_topic(), new_topic()
    lines = tmp_path / "lines.jsonl"
    lines.write_text(
        '{"key": "k", "value": {"a": 1e2}, "headers": {"h": null}, "timestamp": 17}\n{"value_base64": "/w=="}\n'
    )
    run("produce", source, lines, "--bootstrap", bootstrap)
    words = ["read", "--topic", source, "--bootstrap", bootstrap, "--format", "json"]
    read = CliRunner().invoke(overlay, words).stdout_bytes
    assert run("produce", copy, "--bootstrap", bootstrap, given=read).exit_code == 0
    first, second = (
        [(r.key, r.value, r.headers, r.timestamp) for r in read_committed(bootstrap, t)] for t in (source, copy)
    )
    assert first == second
    assert len(first) == 2


def test_a_missing_topic_names_its_neighbour(bootstrap: str, new_topic: NewTopicFixture) -> None:
    topic = new_topic()
    message, _ = refuse("produce", topic + "x", "--bootstrap", bootstrap, given=b"{}\n")
    assert f"Did you mean {topic}?" in message
    assert f"overlay local topic create {topic}x" in message


def test_the_kafka_of_a_config_folder(bootstrap: str, new_topic: NewTopicFixture, tmp_path: Path) -> None:
    write_service_file(tmp_path, bootstrap)
    topic = new_topic()
    assert run("produce", topic, "--config", tmp_path, given=b"{}\n").exit_code == 0
    assert len(read_committed(bootstrap, topic)) == 1


def test_without_a_broker_the_error_says_how_to_start_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of $OVERLAY_CONFIG may lead to a Kafka that matters."""
    write_service_file(tmp_path, "127.0.0.1:1")
    monkeypatch.setenv("OVERLAY_CONFIG", str(tmp_path))
    message, _ = refuse("list", "--home", tmp_path / "home")
    assert message.endswith(
        f"Start it: overlay local up --home {tmp_path}/home; or name another Kafka with --bootstrap"
    )


def test_calls_that_make_no_sense(bootstrap: str, new_topic: NewTopicFixture, tmp_path: Path) -> None:
    topic = new_topic()
    for words in (
        ("--key-separator", ","),
        ("--format", "raw", "--key-separator", ""),
        ("--key-field", "id"),
        ("--format", "raw", "--key-separator", "|", "--key-field", "id"),
        ("--partition", "1"),
        ("--header", "h"),
        ("--home", tmp_path),
        (tmp_path / "there-is-none",),
    ):
        assert run("produce", topic, "--bootstrap", bootstrap, *words).exit_code == 2, words
