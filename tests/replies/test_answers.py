from __future__ import annotations

from overlay.consumer.effects import Answer, ArmTimer, Status
from overlay.consumer.pulls import NO_MESSAGES, StatusText, idle
from overlay.kafka.header_names import CORRELATION
from overlay.output.entry import Entry
from overlay.output.record import Record
from overlay.replies.answers import describe_reply, encode_answers, encode_statuses
from overlay.replies.reply_address import Address

REPLY = str(Address("replies", b"42", 3))


def test_answers_to_acks() -> None:
    found = encode_answers([Answer(REPLY), ArmTimer(1), Answer(str(Address("inbox", b"\x00/%")))])
    assert found == [
        Entry("replies", Record(b"42", b"", [(CORRELATION, b"42")]), 3),
        Entry("inbox", Record(b"\x00/%", b"", [(CORRELATION, b"\x00/%")]), 0),
    ]


def test_a_heartbeat_stands_in_every_partition() -> None:
    found = encode_statuses([Status("", idle(4, 9, "$JS.FC.S.c.x"))], "S", "c", "out", 2)
    headers = [
        ("Nats-Status", b"100"),
        ("Nats-Description", b"Idle Heartbeat"),
        ("Nats-Stream", b"S"),
        ("Nats-Consumer", b"c"),
        ("Nats-Last-Consumer", b"4"),
        ("Nats-Last-Stream", b"9"),
        ("Nats-Consumer-Stalled", b"$JS.FC.S.c.x"),
    ]
    assert found == [Entry("out", Record(None, None, headers), partition) for partition in (0, 1)]


def test_flow_control_says_where_to_answer() -> None:
    (found,) = encode_statuses([Status("", StatusText(100, "FlowControl Request"), "$JS.FC.S.c.x")], "S", "c", "out", 1)
    assert found.record.headers[-1] == ("Nats-Reply-To", b"$JS.FC.S.c.x")


def test_the_end_of_a_pull_goes_to_who_pulled() -> None:
    (found,) = encode_statuses([Status(REPLY, NO_MESSAGES)], "S", "c")
    assert (found.topic, found.partition) == ("replies", 3)
    assert found.record.key is None and found.record.value is None
    assert found.record.headers[:3] == [
        (CORRELATION, b"42"),
        ("Nats-Status", b"404"),
        ("Nats-Description", b"No Messages"),
    ]


def test_a_delivery_for_a_pull_names_it() -> None:
    assert describe_reply(REPLY) == [(CORRELATION, b"42")]
    assert describe_reply(REPLY, "pin-1") == [(CORRELATION, b"42"), ("Nats-Pin-Id", b"pin-1")]
