"""`overlay consumer next|ack|nak|term|replay-dead-letter` against a service that runs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from overlay.cli.consumer_message import describe_pulled
from overlay.client.control.answers import Pulled
from tests.support.kafka import NewTopicFixture, SureProducer, make_topic
from tests.support.service import StartService
from tests.support.waiting import wait_until
from tests.worker.scenes import CommittedReader, await_records, read_committed

from .trips import DEADLINE_S, Trips


@pytest.fixture
def trips(bootstrap: str, new_topic: NewTopicFixture, tmp_path: Path) -> Trips:
    return Trips(tmp_path / "config", bootstrap, new_topic())


def pull(trips: Trips, *words: str) -> list[dict[str, Any]]:
    said = trips.run("consumer", "next", "TRIPS", "work", "--wait", f"{DEADLINE_S}s", "--json", *words)
    return [json.loads(line) for line in said.splitlines() if line.startswith("{")]


def read_info(trips: Trips) -> dict[str, Any]:
    found: dict[str, Any] = trips.run_json("consumer", "info", "TRIPS", "work")["consumer"]["acks"]
    return found


def test_messages_by_hand(trips: Trips, running_service: StartService) -> None:
    trips.produce(10)
    running_service(trips.folder)
    letters = trips.output("dead")
    trips.run(
        "consumer", "add", "TRIPS", "work", "--subject", "trips.rome", "--set", "max_deliver=2", "--set", "ack_wait=60s",
        "--set", f"dead_letter={letters}",
    )  # fmt: skip
    first, second, third = pull(trips, "--count", "3")
    assert [(m["subject"], m["value"]) for m in (first, second, third)] == [("trips.rome", v) for v in ("0", "2", "4")]
    assert re.match(r"\$JS\.ACK\._\.\d+x\d+-[\w-]{22}\.TRIPS\.work\.1\.1\.1\.", first["token"])
    found = read_info(trips)
    assert (found["num_ack_pending"], found["num_pending"], found["delivered"]["consumer_seq"]) == (3, 2, 3)

    assert trips.run("consumer", "ack", first["token"]) == f"acked {first['token']}\n"
    assert trips.run("consumer", "term", second["token"], "--reason", "no such airport").startswith("terminated")
    assert trips.run("consumer", "nak", third["token"]).startswith("nakked")
    (again,) = pull(trips)
    assert (again["value"], again["token"].split(".")[-5]) == ("4", "2")
    sheet = trips.run("consumer", "info", "TRIPS", "work")
    assert re.search(r"unacked\s+1\s", sheet) and "ack floor" in sheet
    assert re.search(r"redelivered messages\s+1 without an ack\s", sheet)
    assert re.search(r"dead letters\s+1 since the service started: term 1\s", sheet)
    titles, row = (re.split(r"\s{2,}", line) for line in trips.run("consumer", "report", "TRIPS").splitlines())
    shown = dict(zip(titles, row, strict=False))
    assert (shown["consumer"], shown["redelivered"], shown["dead letters"]) == ("work", "1", "1")

    # the second was given up, and comes back as a new message
    with CommittedReader(trips.bootstrap, letters) as reader:
        (letter,) = await_records(reader, 1)
    assert (letter.value, letter.header(b"Overlay-Dead-Reason")) == (b"2", b"term")
    # the text of the reason is in the advisory alone, as --help says
    assert b"no such airport" not in [value for _, value in letter.headers]
    advisories = [json.loads(seen.value or b"{}") for seen in read_committed(trips.bootstrap, f"{trips.prefix}.events")]
    assert [seen["reason"] for seen in advisories if "reason" in seen] == ["no such airport"]
    replay = ("consumer", "replay-dead-letter", "work")
    assert "replayed 0 of 1" in trips.run(*replay, "--dry-run")
    assert "Say --yes" in trips.run(*replay, code=1)
    done = trips.run_json(*replay)
    assert (done["replayed"], done["topic"], done["letters"][0]["reason"]) == (1, trips.topic, "term")
    assert "no dead letters" in trips.run(*replay, "--yes")
    elsewhere = (*replay, "--yes", "--again", "--to", trips.output("repaired"))
    assert "Create the topic first" in trips.run(*elsewhere, code=1)
    make_topic(trips.bootstrap, trips.output("repaired"))
    assert "replayed 1 of 1" in trips.run(*elsewhere)
    last = read_committed(trips.bootstrap, trips.topic)[-1]
    assert (last.value, last.headers) == (b"2", [(b"to", b"rome")])
    assert [seen.value for seen in read_committed(trips.bootstrap, trips.output("repaired"))] == [b"2"]

    rest = pull(trips, "--count", "3", "--ack")
    assert [message["value"] for message in rest] == ["6", "8", "2"]
    trips.run("consumer", "ack", again["token"])
    wait_until(lambda: read_info(trips)["num_ack_pending"] == 0, DEADLINE_S, "all are acked")
    shortly = ("consumer", "next", "work", "--wait", "100ms")
    assert trips.run(*shortly) == "no message of TRIPS/work within 100ms\n"
    check_paused(trips, shortly)


def check_paused(trips: Trips, shortly: tuple[str, ...]) -> None:
    """Pause the pull consumer: a pull that brings nothing says so, and no command says that it has no reader."""
    trips.run("consumer", "pause", "work", "--until", "2099-01-01T00:00:00Z")
    why = "the consumer is paused until 2099-01-01T00:00:00Z. `overlay consumer resume TRIPS work` ends the pause"
    told = f"no message of TRIPS/work within 100ms: {why}\n"
    wait_until(lambda: trips.run(*shortly) == told, DEADLINE_S, "next says that the consumer is paused")
    assert re.search(r"held back\s+paused\s", trips.run("consumer", "info", "work"))
    assert "no reader" not in trips.run("consumer", "report", "TRIPS")


def test_what_cannot_be_settled(trips: Trips) -> None:
    assert "'x' is no ack token" in trips.run("consumer", "ack", "x", code=1)
    taken_apart = ".ACK._.1x1.TRIPS.work.1.17.17.0.0"
    assert "a shell takes for a variable. Put it in single quotes" in trips.run("consumer", "ack", taken_apart, code=1)
    trips.add_consumer("rome")
    assert "has no dead_letter topic" in trips.run("consumer", "replay-dead-letter", "TRIPS", "rome", code=1)
    for names in (("TRIPS", "oslo"), ("oslo",)):
        assert f"there is no consumer '{'/'.join(names)}'" in trips.run(
            "consumer", "replay-dead-letter", *names, code=1
        )


def test_without_a_service(trips: Trips) -> None:
    for topic in ("control", "replies", "TRIPS.acks"):
        make_topic(trips.bootstrap, f"{trips.prefix}.{topic}")
    tokens = [f"$JS.ACK._.1x1.TRIPS.work.1.{number}.{number}.0.0" for number in (1, 2)]
    said = trips.run("consumer", "ack", *tokens, code=1)
    assert [f"written {token}" for token in tokens] == said.splitlines()[:2]
    assert f"no service runs: group {trips.prefix}.workers has no members" in said
    assert "+ACK is written to" in said and "counts once a service reads it" in said
    assert [seen.value for seen in read_committed(trips.bootstrap, f"{trips.prefix}.TRIPS.acks")] == [b"+ACK", b"+ACK"]
    for words in (
        ("report",),
        ("next", "TRIPS", "work"),
        ("next", "work"),
        ("add", "TRIPS", "work"),
        ("pause", "TRIPS", "work", "--for", "1h"),
    ):
        assert "Start a service with `overlay run`" in trips.run("consumer", *words, code=1)


def test_a_letter_without_its_value_is_left_out(trips: Trips) -> None:
    """It would be a message that says nothing. A message that was null itself is replayed."""
    letters = trips.output("letters")
    make_topic(trips.bootstrap, letters)
    trips.add_consumer("rome", dead_letter=letters, on_undeliverable="dead_letter")
    producer = SureProducer(trips.bootstrap)
    ours = {"Overlay-Stream": "TRIPS", "Overlay-Consumer": "rome", "Overlay-Source-Partition": "0"}
    for number, more in enumerate(({"Nats-Msg-Size": "4000000"}, {}, {"Nats-Msg-Size": "4000000"})):
        headers = {**ours, "Overlay-Source-Offset": str(number), **more, "n": str(number)}
        producer.produce(letters, None, b"k", headers=list(headers.items()))
    assert producer.flush(30) == 0
    said = trips.run("consumer", "replay-dead-letter", "TRIPS", "rome", "--yes")
    assert "left out: it has no value, which is at 0@2" in said and "replayed 1 of 3" in said
    (record,) = read_committed(trips.bootstrap, trips.topic)
    assert (record.key, record.value, record.headers) == (b"k", None, [(b"n", b"1")])


def test_bytes_that_are_no_text() -> None:
    message = Pulled("t.a", "token", None, b"\xff", (("h", b"\xfe"), ("i", b"x"), ("j", None)))
    assert describe_pulled(message) == {
        "subject": "t.a",
        "token": "token",
        "key": None,
        "value_base64": "/w==",
        "headers": [{"name": "h", "value_base64": "/g=="}, {"name": "i", "value": "x"}, {"name": "j", "value": None}],
    }
