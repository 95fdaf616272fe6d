"""Whose a record is."""

from __future__ import annotations

import pytest

from overlay.client.subscribe.acking import Head
from overlay.client.subscribe.kind import RecordClassifier
from overlay.consumer.effects import Status
from overlay.consumer.pulls import StatusText, idle, name_last
from overlay.output.record import Headers
from overlay.replies.answers import encode_statuses

KIND = RecordClassifier(Head("S", "late"))
TOKEN = b"$JS.ACK.S.late.1.1.1.1700000000000000000.0"


@pytest.mark.parametrize(
    ("token", "is_ours"),
    [
        (TOKEN, True),
        (b"$JS.ACK.S.later.1.1.1.1700000000000000000.0", False),
        (b"$JS.ACK.S.lat.1.1.1.1700000000000000000.0", False),
        (b"$JS.ACK.S2.late.1.1.1.1700000000000000000.0", False),
        (b"$JS.ACK.S.late", False),
        (b"$JS.ACK._.7x1.S.late.1.1.1.1700000000000000000.0", True),
        (b"$JS.ACK._.7x1.S.later.1.1.1.1700000000000000000.0", False),
        (b"$JS.ACK._.S.late.1.1.1.1700000000000000000.0", False),
        (b"$JS.ACK._.7x1", False),
        (b"", False),
        (None, False),
    ],
)
def test_the_token_says_whose_it_is(token: bytes | None, is_ours: bool) -> None:
    headers: Headers = [("Nats-Subject", b"t"), ("Nats-Reply-To", token)]
    assert KIND.find_token(headers) == (token if is_ours else None)
    assert KIND.find_token([*headers, ("Nats-Stream", b"S")]) == (token if is_ours else None)


def test_tokens_of_many_incarnations_are_told() -> None:
    kind = RecordClassifier(Head("S", "late"))
    for number in [*range(20), *range(20)]:
        token = b"$JS.ACK._.7x%d.S.late.1.1.1.1700000000000000000.0" % number
        other = b"$JS.ACK._.7x%d.S.early.1.1.1.1700000000000000000.0" % number
        assert kind.find_token([("Nats-Reply-To", token)]) == token
        assert kind.find_token([("Nats-Reply-To", other)]) is None


def test_without_a_token_it_belongs_to_no_consumer() -> None:
    assert KIND.find_token([]) is None
    assert KIND.find_token([("Nats-Subject", b"t")]) is None
    assert not KIND.is_status([("Nats-Subject", b"t")])


def write(text: StatusText, consumer: str = "late", answer_to: str = "") -> Headers:
    (entry,) = encode_statuses([Status("", text, answer_to)], "S", consumer, "out", 1)
    return entry.record.headers


def test_statuses_as_the_service_writes_them() -> None:
    asked = write(StatusText(100, "FlowControl Request"), answer_to="$JS.FC.S.late.0001")
    assert KIND.is_status(asked)
    assert KIND.find_token(asked) is None
    assert KIND.find_flow(asked) == ("$JS.FC.S.late.0001", 0)
    acking = write(StatusText(100, "FlowControl Request", name_last(7, 9)), answer_to="$JS.FC.S.late.0001")
    assert KIND.find_flow(acking) == ("$JS.FC.S.late.0001", 7)
    assert KIND.find_flow(write(idle(4, 9))) is None
    assert KIND.is_status(write(idle(4, 9)))
    assert KIND.find_flow(write(idle(4, 9, "$JS.FC.S.late.0002"))) == ("$JS.FC.S.late.0002", 4)


def test_those_of_others_are_not_answered() -> None:
    other = write(StatusText(100, "FlowControl Request"), "other", "$JS.FC.S.other.0001")
    assert not KIND.is_status(other)
    assert KIND.find_flow(other) is None
