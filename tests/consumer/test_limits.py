"""What others write into ack topics costs time and memory in proportion to its size, and no more."""

from __future__ import annotations

import json
import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.client.subscribe.acking import MAX_RANGES as WRITTEN_RANGES
from overlay.config.consumer import ConsumerConfig
from overlay.consumer.acks import MAX_RANGES, MAX_REASON, Ack, Flaw, Garbage, RangeAck, Verb, parse_ack, write_ranges
from overlay.consumer.pulls import StatusText, parse_pull
from overlay.consumer.ranges import find_within, join
from overlay.consumer.window import Window
from overlay.units import INT64_MAX, MAX_TEXT, parse_duration, parse_size, parse_time

TOKEN = b"$JS.ACK.S.c.1.5.6.7.8"
HEAD = b"$JS.ACK.S.c"
NOW = 10**18

ranges = st.lists(st.tuples(st.integers(1, 60), st.integers(0, 20)).map(lambda r: (r[0], r[0] + r[1])), max_size=12)


@pytest.mark.parametrize("parse", [parse_duration, parse_size, parse_time])
@pytest.mark.parametrize(
    "text", ["9" * 900_000 + "s", "1s" * 400_000, "0." + "0" * 900_000 + "1s", "9" * 1_000_001 + "h"]
)
def test_long_texts_are_refused_unread(parse: object, text: str) -> None:
    """Numbers of so many digits take seconds to read, or raise what is no ValueError."""
    with pytest.raises(ValueError, match=f"at most {MAX_TEXT} characters"):
        parse(text)  # type: ignore[operator]


@pytest.mark.parametrize("text", ["9" * 900_000 + "s", '{"delay":' + "9" * 900_000 + "}", "{" * 900_000])
def test_a_nak_with_a_long_delay_is_flawed(text: str) -> None:
    found = parse_ack(TOKEN, b"-NAK " + text.encode())
    assert (isinstance(found, Ack) and found.is_flawed) or (isinstance(found, Garbage) and found.flaw is Flaw.PAYLOAD)


def test_a_long_reason_is_cut() -> None:
    """An advisory repeats it, and the events topic refuses what is too large."""
    found = parse_ack(TOKEN, b"+TERM " + b"\x01" * 300_000)
    assert isinstance(found, Ack)
    assert (found.verb, found.text) == (Verb.TERM, "\x01" * MAX_REASON)


def test_a_long_pull_request_is_refused() -> None:
    found = parse_ack(TOKEN, b'+NXT {"group":"' + b"x" * 100_000 + b'"}')
    assert isinstance(found, Ack)
    assert found.is_flawed
    assert isinstance(parse_pull(b'{"id":"' + b"x" * 100_000 + b'"}'), StatusText)


@pytest.mark.parametrize("first", [1, INT64_MAX - 2 * MAX_RANGES])
def test_ranges_are_limited_in_number(first: int) -> None:
    """As many as the client library writes always count, however large their numbers are."""
    most = [(first + 2 * n, first + 2 * n) for n in range(MAX_RANGES)]
    assert WRITTEN_RANGES <= MAX_RANGES
    assert isinstance(parse_ack(HEAD, write_ranges(most)), RangeAck)
    found = parse_ack(HEAD, write_ranges([*most, (1, 1)]))
    assert isinstance(found, Garbage)
    assert found.flaw is Flaw.RANGES


def test_a_range_of_huge_numbers_is_refused() -> None:
    for number in ("9" * 4_000, "9" * 400_000, "1e400", "-1"):
        found = parse_ack(HEAD, b'+ACK {"consumer_seq":[[1,%s]]}' % number.encode())
        assert isinstance(found, Garbage)


@given(ranges, st.integers(0, 80))
def test_joined_ranges_hold_the_same_sequences(given_ranges: list[tuple[int, int]], last: int) -> None:
    joined = join(given_ranges, last)
    wanted = {n for first, end in given_ranges for n in range(first, end + 1) if n <= last}
    assert {n for first, end in joined for n in range(first, end + 1)} == wanted
    assert all(end + 1 < first for (_, end), (first, _) in pairwise(joined))
    numbers = np.arange(100)
    assert set(np.flatnonzero(find_within(numbers, joined)).tolist()) == wanted


def make_window(messages: int) -> Window:
    config = ConsumerConfig.model_validate(
        {"stream": "S", "durable_name": "c", "deliver_subject": "o", "ack_policy": "explicit", "ack_wait": "30s"}
    )
    window = Window(config, 1)
    window.give(np.arange(1, messages + 1), np.ones(messages, np.int64), NOW)
    return window


def test_overlapping_ranges_take_the_memory_of_one() -> None:
    window = make_window(1_000)
    once = write_ranges([(1, 1_000)])
    many = write_ranges([(1, 1_000)] * 2_000)
    peaks = []
    for body in (once, many):
        found = parse_ack(HEAD, body)
        assert isinstance(found, RangeAck)
        tracemalloc.start()
        assert window.find_sequences(found.ranges).tolist() == list(range(1, 1_001))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    # the ranges themselves, and nothing that is a product of the two
    assert peaks[1] < peaks[0] + len(json.dumps([[1, 1_000]] * 2_000)) * 2


@given(ranges)
def test_redeliveries_are_found_by_any_of_their_sequences(given_ranges: list[tuple[int, int]]) -> None:
    window = make_window(20)
    window.requeue_all()
    window.give_again(20, NOW)  # consumer sequences 21 to 40
    found = window.find_sequences(tuple(given_ranges)).tolist()
    named = {n for first, end in given_ranges for n in range(first, end + 1)}
    assert found == sorted({(n - 1) % 20 + 1 for n in named if n <= 40})
