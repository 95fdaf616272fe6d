"""`overlay read` against a real broker, as it is typed: formats, options, Ctrl-C, closed pipes, errors."""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from overlay.cli import overlay
from overlay.cli.collection import spare_collections
from overlay.client import open_client
from tests.client.indexing import seal, write_index
from tests.support.kafka import NewTopicFixture, SureProducer, make_topic, produce_values
from tests.support.service import write_service_file
from tests.support.waiting import wait_until

BASE = 1_700_000_000_000
COUNT = 400
VALUES = [b'{"n": %d}' % n if n % 4 else b"\xff%d" % n for n in range(COUNT)]


@pytest.fixture(scope="module")
def topic(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    name = f"read-{tmp_path_factory.getbasetemp().name}"
    make_topic(bootstrap, name, 1, {"retention.ms": "-1"})
    producer = SureProducer(bootstrap)
    for n, value in enumerate(VALUES):
        headers = [("to", ("rome", "oslo")[n % 2]), ("delay", str(n))] if n else []
        producer.produce(name, value, f"k{n}", timestamp=BASE + n, headers=headers)
    assert producer.flush(30) == 0
    return name


@pytest.fixture(scope="module")
def folder(bootstrap: str, topic: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("read") / "config"
    write_service_file(folder, bootstrap)
    (folder / "streams").mkdir()
    (folder / "streams" / "trips.yaml").write_text(
        f"name: TRIPS\ntopics: [{topic}]\nsubject: {{template: 'trips.{{header:to}}'}}\nproperties: {{delay: long}}\n"
    )
    return folder


def run(*words: str, code: int = 0) -> Result:
    done = CliRunner().invoke(overlay, ["read", *words])
    assert done.exit_code == code, done.output + repr(done.exception)
    return done


def test_a_reading_that_has_begun_looks_for_garbage_as_usual(folder: Path) -> None:
    usual = gc.get_threshold()
    try:
        spare_collections()
        assert gc.get_threshold() != usual
        run("TRIPS", "--limit", "1", "--config", str(folder))
        assert gc.get_threshold() == usual
    finally:
        gc.set_threshold(*usual)
        gc.unfreeze()
        atexit.unregister(gc.freeze)


@pytest.fixture
def config(folder: Path) -> tuple[str, str]:
    return ("--config", str(folder))


Config = tuple[str, str]


def count(*words: str) -> int:
    return int(run(*words, "--count").stdout)


def test_counts(config: Config) -> None:
    assert count("TRIPS", *config) == COUNT - 1
    assert count("TRIPS", *config, "--subject", "trips.oslo") == COUNT // 2
    assert count("TRIPS", *config, "--subject", "trips.oslo", "--subject", "trips.rome", "--limit", "7") == 7
    assert count("TRIPS", *config, "--sql", "delay >= 100 AND [to] = 'rome'") == 150
    assert count("TRIPS", *config, "--properties", '{"application_properties": {"delay": 100}}') == 1
    assert count("TRIPS", *config, "--since", "2023-11-14T22:13:20.1Z", "--until", "2023-11-14T22:13:20.200Z") == 100
    assert count("TRIPS", *config, "--since", "10m") == 0
    assert count("TRIPS", *config, "--from-seq", "391") == 10


def test_filter_values(config: Config, folder: Path) -> None:
    assert count("TRIPS", *config, "--value", "trips.oslo") == COUNT // 2
    assert count("TRIPS", *config, "--value", "trips.oslo", "--value", "trips.rome", "--sql", "delay < 10") == 9
    assert "Wildcards go into filter_subjects" in run("TRIPS", *config, "--value", "trips.*", code=2).stderr
    assert "goes with `values`" in run("TRIPS", *config, "--match-unfiltered", code=2).stderr
    valued = (folder / "streams" / "trips.yaml").read_text().replace("TRIPS", "VALUED") + "filter_value: {header: to}\n"
    (folder / "streams" / "valued.yaml").write_text(valued.replace("subject: {template: 'trips.{header:to}'}\n", ""))
    try:
        assert count("VALUED", *config, "--value", "oslo") == COUNT // 2
        assert count("VALUED", *config, "--value", "oslo", "--match-unfiltered") == COUNT // 2 + 1
    finally:
        (folder / "streams" / "valued.yaml").unlink()


def test_what_a_consumer_would_get(config: Config, folder: Path) -> None:
    filters = {
        "late": "filter_subject: trips.oslo\nfilter: {sql: delay >= 100}",
        "rome": "filter: {properties: {application_properties: {to: rome}}}\ndeliver_policy: new",
        "valued": "filter_subjects: [trips.rome, trips.oslo]\nfilter: {values: trips.oslo}",
        "whole": "headers_only: true",
    }
    (folder / "consumers").mkdir()
    for name, text in filters.items():
        (folder / "consumers" / f"{name}.yaml").write_text(
            f"stream: TRIPS\ndurable_name: {name}\ndeliver_subject: {name}\nack_policy: none\n{text}\n"
        )
    try:
        assert count("--consumer", "late", *config) == count("TRIPS", "--consumer", "late", *config) == 150
        assert count("TRIPS", "--consumer", "TRIPS/late", *config) == 150
        assert count("--consumer", "late", *config, "--last", "3") == 3
        assert count("--consumer", "rome", *config, "--limit", "500") == COUNT // 2 - 1
        assert count("--consumer", "valued", *config) == COUNT // 2
        assert count("--consumer", "whole", *config) == COUNT - 1
        with open_client(folder) as client:
            assert client.read(consumer="late", columns=[]).to_table().num_rows == 150
            assert client.read("TRIPS", consumer="late", columns=["delay"]).to_table()["delay"][0].as_py() == 101
        for words, code, message in (
            (("--consumer", "late", "--sql", "delay > 1"), 2, "consumer and sql each say what passes"),
            (("--consumer", "late", "--subject", "trips.>"), 2, "consumer and subjects each say what passes"),
            (("OTHER", "--consumer", "TRIPS/late"), 2, "--consumer TRIPS/late is not of stream OTHER"),
            (("--consumer", "late", "--topic", "t"), 2, "name a --consumer or a --topic, not both"),
            (("--consumer", "latte"), 1, "there is no consumer 'latte'. Did you mean late?"),
            (("OTHER", "--consumer", "late"), 1, "there is no consumer 'OTHER/late'. Did you mean TRIPS/late?"),
        ):
            done = run(*words, *config, code=code)
            assert message in done.output + str(done.exception)
    finally:
        shutil.rmtree(folder / "consumers")


def test_the_last_of_each_subject(config: Config) -> None:
    words = ("TRIPS", *config, "--format", "json", "--last-per-subject")
    found = [json.loads(line) for line in run(*words).stdout.splitlines()]
    assert [(record["subject"], record["offset"]) for record in found] == [("trips.rome", 398), ("trips.oslo", 399)]
    found = [json.loads(line) for line in run(*words, "--sql", "delay < 7", "--no-index").stdout.splitlines()]
    assert [(record["subject"], record["offset"]) for record in found] == [("trips.oslo", 5), ("trips.rome", 6)]
    assert "exclude each other" in run("TRIPS", *config, "--last-per-subject", "--last", "3", code=2).stderr


def test_without_the_index(config: Config, folder: Path, bootstrap: str) -> None:
    """What an index leaves out is not looked at, so that nothing of it is told."""
    file = folder / "streams" / "indexed.yaml"
    file.write_text((folder / "streams" / "trips.yaml").read_text().replace("TRIPS", "INDEXED"))
    client = open_client(folder)
    try:
        stream = client.find_stream("INDEXED")
        write_index(bootstrap, client.prefix, "INDEXED", seal(client.kafka, stream, [(stream.topic_names[0], 0)]))
        words = ("INDEXED", *config, "--subject", "trips.nowhere", "--count")
        through, straight = run(*words), run(*words, "--no-index")
        assert (through.stdout, straight.stdout) == ("0\n", "0\n")
        left_out, note = straight.stderr.splitlines()
        assert left_out == "left out, having no subject in the stream: missing 1"
        assert through.stderr.splitlines() == [note] and note.startswith("note: ")
        assert count("INDEXED", *config, "--sql", "delay < 9") == count(
            "INDEXED", *config, "--sql", "delay < 9", "--no-index"
        )
    finally:
        client.close()
        file.unlink()


def test_what_is_left_out_is_told(config: Config) -> None:
    assert run("TRIPS", *config, "--count").stderr == "left out, having no subject in the stream: missing 1\n"


def test_json(config: Config) -> None:
    words = ("TRIPS", *config, "--format", "json", "--last", "3")
    found = [json.loads(line) for line in run(*words).stdout.splitlines()]
    assert [record["value"] for record in found] == [{"n": n} for n in (397, 398, 399)]
    assert found[0] == {
        "subject": "trips.oslo", "sequence": 398, "topic": found[0]["topic"], "partition": 0, "offset": 397,
        "timestamp": "2023-11-14T22:13:20.397Z", "key": "k397",
        "headers": [{"name": "to", "value": "oslo"}, {"name": "delay", "value": "397"}], "value": {"n": 397},
    }  # fmt: skip


def test_raw(config: Config) -> None:
    assert run("TRIPS", *config, "--format", "raw").stdout_bytes == b"".join(value + b"\n" for value in VALUES[1:])


@pytest.mark.parametrize("limit", [0, 5])
def test_arrow(config: Config, limit: int) -> None:
    raw = run("TRIPS", *config, "--format", "arrow-ipc", "--limit", str(limit)).stdout_bytes
    table = pa.ipc.open_stream(io.BytesIO(raw)).read_all()
    assert table["value"].to_pylist() == VALUES[1 : limit + 1] and table.num_columns == 14


def test_table(config: Config) -> None:
    head, *lines = run("TRIPS", *config, "--limit", "2").stdout.splitlines()
    assert head.split() == ["sequence", "timestamp", "subject", "key", "headers", "value"]
    assert [line.split()[0] for line in lines] == ["2", "3"] and lines[0].endswith('{"n": 1}')


def test_a_topic_without_a_config(bootstrap: str, topic: str) -> None:
    words = ("--topic", topic, "--bootstrap", bootstrap)
    assert count(*words) == COUNT
    assert count(*words, "--sql", "[to] = 'oslo' AND d < 10", "--property", "d:long=header:delay") == 5
    assert count(*words, "--sql", "n > 390", "--property", "n:long={value:n}") == 7
    found = run(*words, "--format", "json", "--limit", "1").stdout
    assert json.loads(found)["value_base64"] == "/zA=" and json.loads(found)["subject"] == topic


def test_a_topic_of_the_config_s_kafka(config: Config, topic: str) -> None:
    assert count("--topic", topic, *config) == COUNT


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("TRIP",), 1, "Did you mean TRIPS?"),
        (("TRIPS", "--sql", "delay > "), 1, "column 8"),
        (("TRIPS", "--sql", "dely > 1"), 1, "did you mean delay? None of"),
        (("TRIPS", "--sql", "Delay > 1"), 1, "hint: did you mean delay?"),
        (("TRIPS", "--sql", "price > 1"), 1, "the stream declares delay"),
        (("TRIPS", "--subject", "a..b"), 1, "empty token"),
        (("TRIPS", "--bootstrap", "127.0.0.1:1"), 1, "Kafka cannot be reached"),
        (("--topic", "read-nothing"), 1, "there is no such topic"),
        (("--topic", "t", "--property", "a:lng"), 1, "Did you mean long?"),
        ((), 2, "name a STREAM, a --consumer or a --topic"),
        (("TRIPS", "--topic", "t"), 2, "name a STREAM or a --topic, not both"),
        (("TRIPS", "--since", "tomorrow"), 2, "since: 'tomorrow' is no point in time"),
        (("TRIPS", "--follow", "--until", "1h"), 2, "exclude each other"),
        (("TRIPS", "--properties", "{"), 2, "this is no JSON"),
        (("TRIPS", "--properties", "[]"), 2, "write an object"),
        (("TRIPS", "--sql", "1 = 1", "--properties", "{}"), 2, "exclude each other"),
        (("--topic", "t", "--property", "a"), 2, "NAME:TYPE"),
        (("TRIPS", "--property", "a:long"), 2, "--property goes with --topic"),
        (("TRIPS", "-X", "linger.ms=5"), 1, "linger.ms"),
    ],
)
def test_errors(
    config: Config, words: tuple[str, ...], code: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "127.0.0.1:1" in words:
        monkeypatch.setattr("overlay.client.read.bounds.DEADLINE_S", 0.5)
    done = run(*words, *config, code=code)
    assert message in done.output + str(done.exception)


@contextlib.contextmanager
def started(*words: str, **streams: Any) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "overlay", "read", *words]
    # a shell has its background jobs ignore Ctrl-C, and their children would ignore it as well
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, **streams)
    finally:
        signal.signal(signal.SIGINT, before)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_ctrl_c_while_following(folder: Path) -> None:
    words = ("TRIPS", "--config", str(folder), "--follow", "--format", "json", "--last", "2")
    with started(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout and process.stderr
        assert [json.loads(process.stdout.readline())["sequence"] for _ in range(2)] == [399, 400]
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        told = b"left out, having no subject in the stream: missing 1\n"
        assert process.stdout.read() == b"" and process.stderr.read() in (b"", told)  # the last two may lie behind it


def test_ctrl_c_while_counting(folder: Path) -> None:
    """The bar on the terminal says how far it is; the count so far goes to stdout."""
    words = ("TRIPS", "--config", str(folder), "--follow", "--count")
    screen, terminal = pty.openpty()
    try:
        # a dumb terminal shows no bar
        env = {**os.environ, "TERM": "xterm"}
        with started(*words, stdout=subprocess.PIPE, stderr=terminal, env=env) as process:
            assert process.stdout
            os.set_blocking(screen, False)
            seen = bytearray()

            def has_found_all() -> bool:
                with contextlib.suppress(BlockingIOError):
                    seen.extend(os.read(screen, 1 << 16))
                return f"{COUNT - 1} found".encode() in seen

            # the first reading of a machine compiles the kernels
            wait_until(has_found_all, 180, "the bar shows all records")
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 130
            assert process.stdout.read() == b"%d\n" % (COUNT - 1)
            has_found_all()
            assert b"Traceback" not in seen and b"Error" not in seen
    finally:
        os.close(screen)
        os.close(terminal)


@pytest.mark.parametrize("form", ["json", "arrow-ipc"])
def test_a_closed_pipe(bootstrap: str, new_topic: NewTopicFixture, form: str) -> None:
    """Its reader has read enough: no error, nothing on stderr."""
    topic = new_topic()
    produce_values(bootstrap, topic, VALUES)
    words = ("--topic", topic, "--bootstrap", bootstrap, "--follow", "--format", form)
    with started(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout and process.stderr
        assert process.stdout.read(10)
        process.stdout.close()
        producer = SureProducer(bootstrap)

        def has_ended() -> bool:
            producer.produce(topic, b"more")
            producer.flush(10)
            return process.poll() is not None

        wait_until(has_ended, 30, "the program has noticed")
        assert (process.returncode, process.stderr.read()) == (0, b"")


def test_arrow_is_not_for_terminals(folder: Path) -> None:
    screen, terminal = pty.openpty()
    try:
        words = ("TRIPS", "--config", str(folder), "--format", "arrow-ipc")
        with started(*words, stdout=terminal, stderr=subprocess.PIPE) as process:
            assert process.wait(60) == 2
            assert process.stderr and b"not for terminals" in process.stderr.read()
    finally:
        os.close(screen)
        os.close(terminal)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("words", [("--count",), ("--format", "table")], ids=" ".join)
def test_an_output_that_is_full(folder: Path, words: tuple[str, ...]) -> None:
    with (
        open("/dev/full", "wb") as full,
        started("TRIPS", "--config", str(folder), *words, stdout=full, stderr=subprocess.PIPE) as process,
    ):
        assert process.wait(60) == 1
        assert process.stderr and process.stderr.read().endswith(
            b"error: the records cannot be written: No space left on device\n"
        )


def test_an_output_that_is_closed(folder: Path) -> None:
    words = ("TRIPS", "--config", str(folder), "--format", "arrow-ipc")
    with started(*words, stderr=subprocess.PIPE, preexec_fn=lambda: os.close(1)) as process:
        assert process.wait(60) == 2
        assert process.stderr and b"standard output is closed" in process.stderr.read()


def ask(topic: str, bootstrap: str, *words: str) -> tuple[str, list[str]]:
    """What `overlay read` prints, and its notes."""
    done = CliRunner().invoke(overlay, ["read", "--topic", topic, "--bootstrap", bootstrap, *words])
    assert done.exit_code == 0, done.output + repr(done.exception)
    return done.stdout, [line.removeprefix("note: ") for line in done.stderr.splitlines() if line.startswith("note: ")]


def test_a_question_that_finds_nothing_says_why(topic: str, bootstrap: str) -> None:
    nothing, notes = ask(topic, bootstrap, "--sql", "n = 'x'", "--count")
    assert nothing == "0\n"
    (note,) = notes
    assert "sampled records has the header 'n', which the filter names" in note
    assert note.endswith("For the JSON field say --property n:long=value:n")
    assert ask(topic, bootstrap, "--sql", "n > 5", "--property", "n:long=value:n", "--count") == ("296\n", [])
    assert ask(topic, bootstrap, "--sql", "to = 'oslo'", "--count")[1] == []
    (note,) = ask(topic, bootstrap, "--sql", "to = 'paris'", "--count")[1]
    assert sorted(note.rpartition(" are ")[2].split(", ")) == ["'oslo'", "'rome'"]
    # a filter that merely matches nothing is not spoken of
    assert ask(topic, bootstrap, "--sql", "to LIKE 'par%'", "--count") == ("0\n", [])
    assert "one excludes the other" in ask(topic, bootstrap, "--sql", "to = 'a' AND to = 'b'", "--count")[1][0]
    assert "has a subject like x.>" in ask(topic, bootstrap, "--subject", "x.>", "--count")[1][0]
    done = CliRunner().invoke(overlay, ["read", "--topic", topic, "--bootstrap", bootstrap, "--sql", "n > 5"])
    assert str(done.exception).endswith("hint: say --property n:long=value:n")


def test_a_subject_that_no_record_has_is_answered_with_a_similar_one(config: Config) -> None:
    def ask_for(subject: str) -> list[str]:
        return [
            line
            for line in run("TRIPS", *config, "--subject", subject, "--count").stderr.splitlines()
            if "note:" in line
        ]

    (note,) = ask_for("trips.Rome")
    assert note.endswith("sampled records has a subject like trips.Rome. Did you mean trips.rome?")
    (note,) = ask_for("trips.nowhere")
    assert sorted(note.rpartition(" have ")[2].split(", ")) == ["trips.oslo", "trips.rome"]
    (note,) = ask_for("trips")
    assert note.endswith("Did you mean trips.>?")
    assert ask_for("trips.oslo") == []


def test_a_type_that_most_values_do_not_spell_is_told_beside_what_was_found(
    bootstrap: str, new_topic: NewTopicFixture
) -> None:
    topic = new_topic()
    producer = SureProducer(bootstrap)
    for at in range(200):
        producer.produce(topic, b'{"amount": %s}' % (b"%d" % at if at < 4 else b"%d.5" % at))
    assert producer.flush(30) == 0
    ask_for = ("--sql", "amount > 2", "--count", "--property")
    found, notes = ask(topic, bootstrap, *ask_for, "amount:long=value:amount")
    assert (found, notes) == ("1\n", ["98 % of the sampled values of amount are no long, such as 4.5: try double"])
    assert ask(topic, bootstrap, *ask_for, "amount:double=value:amount") == ("197\n", [])
    done = CliRunner().invoke(overlay, ["read", "--topic", topic, "--bootstrap", bootstrap, "--sql", "amount > 2"])
    assert str(done.exception).endswith("hint: say --property amount:double=value:amount")
