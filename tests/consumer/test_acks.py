from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from overlay.consumer.acks import (
    Ack,
    Flaw,
    Garbage,
    RangeAck,
    Token,
    Verb,
    measure_token,
    parse_ack,
    parse_token,
    write_ranges,
)

TOKEN = Token("S", "c", 2, 7, 9, 1_700_000_000_000_000_000, 4)
TEXT = b"$JS.ACK.S.c.2.7.9.1700000000000000000.4"

NUMBERS = st.integers(1, (1 << 63) - 1)
NAMES = st.from_regex(r"[^.\ud800-\udfff]+", fullmatch=True)


@given(st.builds(Token, NAMES, NAMES, NUMBERS, NUMBERS, NUMBERS, NUMBERS | NUMBERS.map(lambda time: -time), NUMBERS))
def test_tokens_read_back(token: Token) -> None:
    assert parse_token(str(token)) == token


@given(
    st.builds(
        Token, NAMES, NAMES, NUMBERS, NUMBERS, NUMBERS, st.just(1_700_000_000_000_000_000), NUMBERS, NAMES | st.just("")
    )
)
@example(Token("größe", "späť", 1, 1, 1, 1_700_000_000_000_000_000))
def test_a_token_is_measured_in_bytes(token: Token) -> None:
    numbers = token.deliveries, token.stream_seq, token.consumer_seq, token.num_pending
    assert measure_token(token.stream, token.consumer, token.incarnation, numbers) == len(str(token).encode())


@pytest.mark.parametrize(
    ("text", "incarnation"),
    [
        ("$JS.ACK._.12x3.S.c.2.7.9.1700000000000000000.4", "12x3"),
        ("$JS.ACK.D.h.S.c.2.7.9.1700000000000000000.4.x.y", "h"),
    ],
)
def test_version_two(text: str, incarnation: str) -> None:
    assert parse_token(text) == replace(TOKEN, incarnation=incarnation)
    assert str(replace(TOKEN, incarnation="12x3")) == "$JS.ACK._.12x3.S.c.2.7.9.1700000000000000000.4"


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"$JS.ACK",
        b"$JS.ACK.S.c.2.7.9.17",
        b"$JS.ACK.h.S.c.2.7.9.17.4",
        b"$JS.NAK.S.c.2.7.9.17.4",
        b"$JS.ACK.S..2.7.9.17.4",
        b"$JS.ACK.S.c.0.7.9.17.4",
        b"$JS.ACK.S.c.2.-7.9.17.4",
        "$JS.ACK.S.c.2.\u0667.9.17.4".encode(),
        b"$JS.ACK.S.c.2.9223372036854775808.9.17.4",
        b"$JS.ACK.S.c.2." + b"7" * 100_000 + b".9.17.4",
        b"\xff\xfe",
    ],
)
def test_what_is_no_token(text: bytes) -> None:
    assert parse_ack(text, b"+ACK") == Garbage(Flaw.TOKEN)


@pytest.mark.parametrize(
    ("body", "ack"),
    [
        (b"", Ack(TOKEN, Verb.ACK)),
        (b"+ACK", Ack(TOKEN, Verb.ACK)),
        (b"+OK", Ack(TOKEN, Verb.ACK)),
        (b"-NAK", Ack(TOKEN, Verb.NAK)),
        (b'-NAK {"delay": 5000}', Ack(TOKEN, Verb.NAK, 5000)),
        (b"-NAK {}", Ack(TOKEN, Verb.NAK, 0)),
        (b"-NAK 1m5s", Ack(TOKEN, Verb.NAK, 65_000_000_000)),
        (b"-NAK soon", Ack(TOKEN, Verb.NAK, is_flawed=True)),
        (b'-NAK {"delay": 1.5}', Ack(TOKEN, Verb.NAK, is_flawed=True)),
        (b'-NAK {"delay": true}', Ack(TOKEN, Verb.NAK, is_flawed=True)),
        (b"-NAK {", Ack(TOKEN, Verb.NAK, is_flawed=True)),
        (b"-NAK " + b'{"a":' * 100_000, Ack(TOKEN, Verb.NAK, is_flawed=True)),
        (b"+WPI", Ack(TOKEN, Verb.PROGRESS)),
        (b"+TERM", Ack(TOKEN, Verb.TERM)),
        (b"+TERM no such order ", Ack(TOKEN, Verb.TERM, text="no such order")),
        (b"+NXT", Ack(TOKEN, Verb.NEXT)),
        (b'+NXT {"batch": 5}', Ack(TOKEN, Verb.NEXT, text='{"batch": 5}')),
        (b"+NXT 5", Ack(TOKEN, Verb.NEXT, text="5")),
    ],
)
def test_bodies(body: bytes, ack: Ack) -> None:
    assert parse_ack(TEXT, body) == ack


@pytest.mark.parametrize("body", [b"+WPI ", b"+ACK ", b"ack", b"\x00", b"+wpi"])
def test_what_is_no_body(body: bytes) -> None:
    assert parse_ack(TEXT, body) == Garbage(Flaw.PAYLOAD, TOKEN)


@given(st.lists(st.tuples(st.integers(1, 100), st.integers(0, 100)), min_size=1))
def test_ranges_read_back(pairs: list[tuple[int, int]]) -> None:
    ranges = tuple((first, first + more) for first, more in pairs)
    assert parse_ack(b"$JS.ACK.S.c", write_ranges(ranges)) == RangeAck("S", "c", ranges)
    assert parse_ack(b"$JS.ACK._.12x3.S.c", write_ranges(ranges)) == RangeAck("S", "c", ranges, "12x3")
    assert parse_ack(b"$JS.ACK.S.c", write_ranges(ranges, is_unnamed=True)) == RangeAck("S", "c", ranges, "")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"-NAK",
        b"+ACK",
        b"+ACK []",
        b'+ACK {"consumer_seq": []}',
        b'+ACK {"consumer_seq": [[2, 1]]}',
        b'+ACK {"consumer_seq": [[0, 1]]}',
        b'+ACK {"consumer_seq": [[1, true]]}',
        b'+ACK {"consumer_seq": [[1]]}',
        b'+ACK {"consumer_seq": [1]}',
        b"+ACK " + b"[" * 100_000,
    ],
)
def test_what_is_no_range(body: bytes) -> None:
    assert parse_ack(b"$JS.ACK.S.c", body) == Garbage(Flaw.RANGES)


@given(st.binary(), st.binary())
def test_anything_is_read(token: bytes, body: bytes) -> None:
    assert isinstance(parse_ack(token, body), Ack | RangeAck | Garbage)
    assert isinstance(parse_ack(TEXT, body), Ack | Garbage)
