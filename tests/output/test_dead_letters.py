"""overlay/output/dead_letters.py against the slow twin of deliveries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.consumer.acks import parse_token
from overlay.consumer.effects import DeadLetter
from overlay.consumer.endings import give_up
from overlay.kafka.header_names import CAUSES, DELIVERIES, FIRST_DELIVERED, LAST_DELIVERED, REASON
from overlay.match import Addressed, Addressing
from overlay.output.batch_builder import OutputBatch
from overlay.output.dead_letters import encode_dead_letters
from overlay.scan.codec import Codec
from overlay.subject import Pattern
from overlay.units import format_time
from tests.oracle import push
from tests.oracle.batches import Record
from tests.oracle.subjects import escape
from tests.output.pressing import CONSUMER, NOW, RULE, STREAM, Settings, decode, make_buffer, make_records


def make_letters(records: Sequence[Record], reason: str = "max_deliver") -> list[DeadLetter]:
    return [
        DeadLetter(record.offset + 1, reason, 3 + i, 10**18 + i, 10**18 + 5 * 10**9 + i)
        for i, record in enumerate(records)
    ]


def builder(records: Sequence[Record], letters: Sequence[DeadLetter], settings: Settings) -> list[OutputBatch]:
    found: list[OutputBatch] = []
    data = np.frombuffer(make_buffer(records), np.uint8)
    for piece in Addressing(RULE, [Pattern.parse(">")]).read("source", 2, data, 0):
        assert isinstance(piece, Addressed)
        rows = np.arange(len(piece.records))
        mine = [letters[int(offset) - records[0].offset] for offset in piece.records.offset]
        found += encode_dead_letters(settings.make_output_topic(), piece, rows, mine, 2, NOW)
    return found


def expect(record: Record, letter: DeadLetter) -> tuple[object, ...]:
    """The twin's delivery, and behind it the cause."""
    origin = next(value for name, value in reversed(record.headers) if name == b"origin")
    token = push.Token(STREAM, CONSUMER, letter.deliveries, letter.stream_seq, 0, record.timestamp * 1_000_000, 0)
    texts = (
        letter.reason, str(letter.deliveries), format_time(letter.first_delivered), format_time(letter.last_delivered),
        STREAM, CONSUMER, "2", str(record.offset),
    )  # fmt: skip
    cause = [(name.encode(), text.encode()) for name, text in zip(CAUSES, texts, strict=True)]
    return record.key, record.value, push.deliver(record, f"t.{escape(origin or b'')}", token) + cause


@settings(max_examples=30, deadline=None)
@given(
    count=st.integers(1, 30),
    sizes=st.sampled_from([0, 10, 3000]),
    partitions=st.sampled_from([1, 4]),
    limit=st.sampled_from([1_048_588, 6_000]),
    reason=st.sampled_from(["max_deliver", "term", "it was ünlucky"]),
)
def test_letters_are_deliveries_with_a_cause(count: int, sizes: int, partitions: int, limit: int, reason: str) -> None:
    records = [
        replace(record, headers=[(push.SUBJECT, b"stale"), (b"x", None), *record.headers])
        for record in make_records(count, sizes, start=40)
    ]
    letters = make_letters(records, reason)
    sent = builder(records, letters, Settings(partitions=partitions, max_message_bytes=limit))
    wanted: dict[int, list[tuple[object, ...]]] = {}
    for record, letter in zip(records, letters, strict=True):
        target = push.place("key", partitions, 2, record.key, "")
        wanted.setdefault(target, []).append(expect(record, letter))
    found: dict[int, list[tuple[object, ...]]] = {}
    for outgoing in sent:
        batch = decode(outgoing)
        assert outgoing.batch.size <= limit or batch.count == 1
        assert outgoing.oversized_offset == -1
        assert [record.offset for record in batch.records] == list(range(batch.count))
        found.setdefault(outgoing.partition, []).extend((r.key, r.value, r.headers) for r in batch.records)
    assert found == wanted


def test_a_letter_that_the_topic_cannot_take_goes_without_its_value() -> None:
    records = make_records(3, 500)
    records[1] = replace(records[1], value=np.random.default_rng(5).bytes(5000))
    letters = make_letters(records)
    sent = builder(records, letters, Settings(max_message_bytes=4000))
    assert [(outgoing.batch.count, outgoing.oversized_offset) for outgoing in sent] == [(1, -1)] * 3
    assert all(outgoing.batch.size <= 4000 for outgoing in sent)
    found = [record for outgoing in sent for record in decode(outgoing).records]
    assert [record.value for record in found] == [records[0].value, None, records[2].value]
    key, _, headers = expect(records[1], letters[1])
    assert isinstance(headers, list)
    assert found[1].key == key
    assert sorted(found[1].headers) == sorted([*headers, (push.VALUE_SIZE, b"5000")])


def test_a_letter_that_compresses_keeps_its_value() -> None:
    records = [replace(record, value=bytes(50_000)) for record in make_records(2)]
    sent = builder(records, make_letters(records), Settings(max_message_bytes=4000, codec=Codec.LZ4))
    assert [decode(outgoing).records[0].value for outgoing in sent] == [bytes(50_000)] * 2


def test_a_letter_that_the_topic_cannot_take_even_so_is_marked() -> None:
    records = make_records(3, 500)
    records[1] = replace(records[1], headers=[*records[1].headers, (b"x", np.random.default_rng(5).bytes(5000))])
    sent = builder(records, make_letters(records), Settings(max_message_bytes=4000))
    assert [(outgoing.batch.count, outgoing.oversized_offset) for outgoing in sent] == [(1, -1), (1, 1), (1, -1)]


def test_what_was_never_delivered_says_so() -> None:
    records = make_records(1)
    (outgoing,) = builder(records, [give_up(1)], Settings())
    headers = {name.decode(): (value or b"").decode() for name, value in decode(outgoing).records[0].headers}
    assert (headers[REASON], headers[DELIVERIES]) == ("undeliverable", "0")
    assert headers[FIRST_DELIVERED] == headers[LAST_DELIVERED] == "0001-01-01T00:00:00Z"


def test_a_dead_letter_cannot_be_acked() -> None:
    records = make_records(1)
    (outgoing,) = builder(records, make_letters(records), Settings())
    token = dict(decode(outgoing).records[0].headers)[push.TOKEN]
    assert token is not None and parse_token(token.decode()) is None


@pytest.mark.slow
def test_a_storm_of_letters() -> None:
    """20,000 letters take a second or two of one core."""
    import time

    records = make_records(20_000, 200)
    letters = make_letters(records)
    builder(records[:10], letters[:10], Settings())  # compiles
    began = time.thread_time()
    sent = builder(records, letters, Settings())
    assert time.thread_time() - began < 3
    assert sum(outgoing.batch.count for outgoing in sent) == 20_000
