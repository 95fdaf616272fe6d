"""Acks as records: what they say is what the overlay reads out of them."""

from __future__ import annotations

import itertools
import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.client.subscribe.acking import (
    MAX_RANGES,
    Head,
    join,
    read_sequences,
    write_acks,
    write_latest_ack,
    write_word,
)
from overlay.consumer.acks import Ack, RangeAck, Token, Verb, parse_ack
from overlay.output.record import Record

HEAD = Head("ORDERS", "late")
NUMBERS = st.integers(1, (1 << 62) - 1)


INCARNATIONS = st.sampled_from(["", "7x1", "7x2", "17x2", "_", "late"])


def make_token(consumer_seq: int, stream_seq: int = 1, head: Head = HEAD, incarnation: str = "") -> bytes:
    numbers = 1, stream_seq, consumer_seq, 1_700_000_000_000_000_000, 3
    return str(Token(head.stream, head.consumer, *numbers, incarnation)).encode()


def read_ranges(records: list[Record]) -> list[tuple[int, int]]:
    """What a service reads."""
    found: list[tuple[int, int]] = []
    for record in records:
        ack = parse_ack(record.key or b"", record.value or b"")
        assert isinstance(ack, RangeAck)
        assert (ack.stream, ack.consumer) == ("ORDERS", "late")
        found += ack.ranges
    return found


@settings(deadline=None)  # compiles the kernel
@given(st.lists(st.one_of(NUMBERS, st.integers(1, 50))))
def test_ranges_name_what_was_acked_and_nothing_else(sequences: list[int]) -> None:
    ranges = read_ranges(write_acks(HEAD, [make_token(number) for number in sequences]))
    assert [number for first, last in ranges for number in range(first, last + 1)] == sorted(set(sequences))
    assert all(last + 1 < first for (_, last), (first, _) in itertools.pairwise(ranges))


@given(
    st.lists(st.tuples(NUMBERS, NUMBERS, INCARNATIONS), max_size=20),
    st.sampled_from(["S", "_", "_x", "_xy", "long-name"]),
    st.sampled_from(["c", "a-long-name", "é", "_", "_xy", "7x1"]),
)
def test_sequences_are_read_out_of_tokens(rows: list[tuple[int, int, str]], stream: str, name: str) -> None:
    head = Head(stream, name)
    tokens = [make_token(ours, theirs, head, by) for theirs, ours, by in rows]
    read = read_sequences(head, tokens)
    named = [read.incarnations[number].decode() if number >= 0 else "" for number in read.by.tolist()]
    assert list(zip(read.streams.tolist(), read.consumers.tolist(), named, strict=True)) == rows
    assert all(head.has(token) for token in tokens)


def test_ranges_are_written_for_each_incarnation() -> None:
    tokens = [make_token(n, incarnation=by) for n, by in [(1, "7x1"), (2, "7x1"), (2, "7x2"), (3, "7x2"), (3, "")]]
    records = write_acks(HEAD, tokens)
    assert {record.key for record in records} == {HEAD.text}
    found = [parse_ack(dict(r.headers).get("Nats-Reply-To", r.key) or b"", r.value or b"") for r in records]
    assert found == [
        RangeAck("ORDERS", "late", ((3, 3),), ""),
        RangeAck("ORDERS", "late", ((1, 2),), "7x1"),
        RangeAck("ORDERS", "late", ((2, 3),), "7x2"),
    ]


def test_the_latest_ack_is_written_for_each_incarnation() -> None:
    # 203 was delivered by an owner that ended before it was committed: alone it would say nothing
    tokens = [make_token(1, 201, incarnation="7x1"), make_token(3, 203, incarnation="7x1")]
    tokens += [make_token(2, 150, incarnation="7x2")]
    records = write_latest_ack(HEAD, tokens)
    assert [dict(record.headers)["Nats-Reply-To"] for record in records] == tokens[1:]


@given(st.lists(st.binary(max_size=40).map(lambda rest: rest.replace(b"\n", b"")), max_size=5))
def test_what_is_no_token_stays_in_its_row(rests: list[bytes]) -> None:
    tokens = [HEAD.prefix + rest for rest in rests]
    _, consumers, *_ = read_sequences(HEAD, [token for odd in tokens for token in (odd, make_token(9))])
    assert consumers[1::2].tolist() == [9] * len(tokens)


def test_an_application_that_keeps_up_needs_one_range() -> None:
    tokens = [make_token(number, incarnation="7x1") for number in range(1, 10_001)]
    random.Random(1).shuffle(tokens)
    head = ("Nats-Reply-To", b"$JS.ACK._.7x1.ORDERS.late")
    assert write_acks(HEAD, tokens) == [Record(b"$JS.ACK.ORDERS.late", b'+ACK {"consumer_seq":[[1,10000]]}', [head])]


def test_ranges_of_tokens_without_incarnation_say_so() -> None:
    """Services of earlier versions read the same ranges: the head is theirs, and they pass over the other field."""
    body = b'+ACK {"consumer_seq":[[7,8]],"incarnation":""}'
    assert write_acks(HEAD, [make_token(7), make_token(8)]) == [Record(b"$JS.ACK.ORDERS.late", body)]


def test_what_is_acked_out_of_order_is_split_into_records() -> None:
    odd = range(1, 2 * MAX_RANGES + 100, 2)
    records = write_acks(HEAD, [make_token(number) for number in odd])
    assert len(records) == 2
    assert [first for first, _ in read_ranges(records)] == list(odd)
    assert max(len(record.value or b"") for record in records) < 100_000


def test_zero_names_nothing() -> None:
    assert write_acks(HEAD, [make_token(0)]) == []
    assert list(join(np.array([0, -4, 3, 2]))) == [(2, 3)]


@given(st.lists(NUMBERS, min_size=1, unique=True))
def test_the_latest_ack_stands_for_all(sequences: list[int]) -> None:
    (record,) = write_latest_ack(HEAD, [make_token(5, number) for number in sequences])
    ack = parse_ack(dict(record.headers)["Nats-Reply-To"] or b"", record.value or b"")
    assert isinstance(ack, Ack)
    assert (ack.verb, ack.token.stream_seq) == (Verb.ACK, max(sequences))


def test_all_words_go_to_the_partition_of_the_ranges() -> None:
    words = [
        (Verb.NAK, '{"delay": 5}', Ack(Token("ORDERS", "late", 1, 1, 7, 1_700_000_000_000_000_000, 3), Verb.NAK, 5)),
        (
            Verb.TERM,
            "why not",
            Ack(Token("ORDERS", "late", 1, 1, 7, 1_700_000_000_000_000_000, 3), Verb.TERM, text="why not"),
        ),
        (Verb.PROGRESS, "", Ack(Token("ORDERS", "late", 1, 1, 7, 1_700_000_000_000_000_000, 3), Verb.PROGRESS)),
    ]
    for verb, text, expected in words:
        record = write_word(HEAD, make_token(7), verb, text, [("more", b"x")])
        assert record.key == write_acks(HEAD, [make_token(7)])[0].key
        assert parse_ack(dict(record.headers)["Nats-Reply-To"] or b"", record.value or b"") == expected
        assert record.headers[-1] == ("more", b"x")
