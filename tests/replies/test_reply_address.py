from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.kafka.header_names import CORRELATION, REPLY_PARTITION, REPLY_TOPIC
from overlay.kafka.own_topics import reply_topic
from overlay.replies.reply_address import Address, ReplyRule, parse_address, read_address

RULE = ReplyRule("overlay", ("inbox", "team.*"))

topics = st.from_regex(r"[a-z][a-zA-Z0-9._-]{0,20}", fullmatch=True)


@given(st.builds(Address, topics, st.binary(max_size=40), st.none() | st.integers(0, 99)))
def test_addresses_survive_as_text(address: Address) -> None:
    assert parse_address(str(address)) == address


@given(st.dictionaries(st.sampled_from([REPLY_TOPIC, REPLY_PARTITION, CORRELATION]), st.binary(max_size=300)))
def test_headers_never_break_the_reader(headers: dict[str, bytes]) -> None:
    found = read_address(headers.get, RULE)
    if found:
        address = parse_address(found)
        assert address.topic.encode() == headers[REPLY_TOPIC]
        assert address.correlation == headers.get(CORRELATION, b"")


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ({}, ""),
        ({REPLY_TOPIC: b"inbox"}, "inbox//"),
        ({REPLY_TOPIC: b"inbox", CORRELATION: b"a/b"}, "inbox//a%2Fb"),
        ({REPLY_TOPIC: b"inbox", CORRELATION: b"7", REPLY_PARTITION: b"2"}, "inbox/2/7"),
        ({REPLY_TOPIC: b"overlay.replies", CORRELATION: b"7"}, "overlay.replies//7"),
        ({REPLY_TOPIC: b"inbox", REPLY_PARTITION: b"-1"}, ""),
        ({REPLY_TOPIC: b"inbox", REPLY_PARTITION: b"x"}, ""),
        ({REPLY_TOPIC: b"inbox", CORRELATION: b"x" * 257}, ""),
        ({REPLY_TOPIC: b"in box"}, ""),
        ({REPLY_TOPIC: b"\xff"}, ""),
        ({REPLY_TOPIC: b"overlay.state"}, ""),
        ({REPLY_TOPIC: b"orders"}, ""),
        ({REPLY_TOPIC: b"inbox", REPLY_PARTITION: b"9" * 900_000}, ""),
    ],
)
def test_headers(headers: dict[str, bytes], found: str) -> None:
    assert read_address(headers.get, RULE) == found


@pytest.mark.parametrize(
    ("topic", "may"),
    [
        ("inbox", True),
        ("inbox2", False),
        ("inbox.me", False),
        ("team.a", True),
        ("team.", True),
        ("team", False),
        ("teams", False),
        ("orders", False),
        ("overlay-inbox", False),
        (reply_topic("overlay"), True),
        ("overlay.replies.me", True),
        ("overlay.state", False),
        ("overlay.control", False),
        ("overlay.repliesx", False),
        ("__consumer_offsets", False),
        ("__transaction_state", False),
    ],
)
def test_only_reply_topics_are_allowed(topic: str, may: bool) -> None:
    assert RULE.allows(topic) is may


@pytest.mark.parametrize("listed", ["overlay.state", "overlay.*", "__consumer_offsets", "__*"])
def test_a_list_cannot_allow_topics_that_take_no_answers(listed: str) -> None:
    rule = ReplyRule("overlay", (listed,))
    assert not any(rule.allows(topic) for topic in ("overlay.state", "overlay.control", "__consumer_offsets"))
