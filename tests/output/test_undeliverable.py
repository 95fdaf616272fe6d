"""overlay/output/undeliverable.py: what it lets through fits, and what it refuses a broker refuses as well."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from confluent_kafka import KafkaException
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.clock import now_ms
from overlay.config.consumer import ConsumerConfig
from overlay.kafka.admin import Admin
from overlay.match import Addressed, Addressing
from overlay.output.assemble import Numbers
from overlay.output.batch_builder import BatchBuilder, OutputTopic
from overlay.output.topics import make_output_topic
from overlay.output.undeliverable import SLACK, explain_refusal, find_refused
from overlay.scan.codec import Codec
from overlay.subject import Pattern
from tests.oracle.batches import Record
from tests.output.pressing import NOW, RULE, Settings, make_buffer
from tests.support.kafka import NewTopicFixture, SureProducer

LIMIT = 20_000
HOUR = 3_600_000


def read(records: list[Record]) -> Addressed:
    pieces = Addressing(RULE, [Pattern.parse(">")]).read("source", 0, np.frombuffer(make_buffer(records), np.uint8), 0)
    (piece,) = (piece for piece in pieces if isinstance(piece, Addressed) and len(piece.records))
    return piece


def make(*values: bytes, key: bytes | None = b"k", time: int = NOW) -> list[Record]:
    return [Record(i, time, key, value, [(b"origin", b"JFK")]) for i, value in enumerate(values)]


def refuse(output_topic: OutputTopic, records: list[Record], now: int = NOW) -> list[int]:
    piece = read(records)
    return [int(at) for at in find_refused(output_topic, piece, np.arange(len(records)), now)]


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(LIMIT - 1000, LIMIT + 400), min_size=1, max_size=4),
    codec=st.sampled_from(Codec),
    noise=st.sampled_from([0.0, 0.5, 1.0]),
    large=st.booleans(),
    full=st.booleans(),
    headers_only=st.booleans(),
)
def test_what_is_let_through_fits_whatever_its_numbers(
    sizes: list[int], codec: Codec, noise: float, large: bool, full: bool, headers_only: bool
) -> None:
    values = [np.random.default_rng(size).bytes(int(size * noise)) + bytes(size - int(size * noise)) for size in sizes]
    output_topic = Settings(
        max_message_bytes=LIMIT, codec=codec, full=full, headers_only=headers_only
    ).make_output_topic()
    piece, rows = read(make(*values)), np.arange(len(values))
    refused = set(find_refused(output_topic, piece, rows, NOW).tolist())
    number = (1 << 63) - 1 if large else 1
    for row in rows:
        builder, column = BatchBuilder(), np.full(1, number)
        builder.add(output_topic, piece, rows[row : row + 1], 0, Numbers(column, column, column, column), NOW)
        ((_, outgoing),) = builder.flush()
        assert row in refused or outgoing.oversized_offset == -1
        # and nothing is refused that stays well below the limit
        assert row not in refused or outgoing.batch.size + SLACK + 110 > LIMIT


def test_what_compresses_is_no_matter_of_its_size() -> None:
    output_topic = Settings(max_message_bytes=LIMIT, codec=Codec.LZ4).make_output_topic()
    noise = np.random.default_rng(1).bytes(2 * LIMIT)
    assert refuse(output_topic, make(b"x", bytes(2 * LIMIT), noise, b"y")) == [2]
    assert refuse(replace(output_topic, codec=Codec.NONE), make(b"x", bytes(2 * LIMIT), noise)) == [1, 2]


def test_a_record_is_refused_with_its_reason() -> None:
    keyed = replace(Settings().make_output_topic(), needs_key=True)
    assert explain_refusal(keyed, read(make(b"x", key=None)), 0, NOW) == "it has no key, and the topic is compacted"
    timed = replace(Settings(source_time=True).make_output_topic(), newest_ms=HOUR)
    late = read(make(b"x", time=NOW + 2 * HOUR))
    assert explain_refusal(timed, late, 0, NOW).startswith(f"its time, {NOW + 2 * HOUR} ms since 1970, is further")
    small = Settings(max_message_bytes=LIMIT).make_output_topic()
    large = read(make(np.random.default_rng(1).bytes(2 * LIMIT)))
    assert explain_refusal(small, large, 0, NOW).startswith(f"alone it makes a batch of more than {LIMIT} bytes")


def test_without_slack_only_what_cannot_fit_is_refused() -> None:
    """A batch with the smallest numbers decides, to the byte."""
    topic = Settings(max_message_bytes=LIMIT, codec=Codec.NONE).make_output_topic()
    first = {
        slack: next(size for size in range(LIMIT - 1000, LIMIT) if refuse_one(topic, size, slack))
        for slack in (0, SLACK)
    }
    assert first[0] - first[SLACK] == SLACK
    one = np.ones(1, np.int64)
    for size, fits in ((first[0] - 1, True), (first[0], False)):
        builder = BatchBuilder()
        builder.add(topic, read(make(bytes(size))), np.arange(1), 0, Numbers(one, one), NOW)
        ((_, outgoing),) = builder.flush()
        assert (outgoing.oversized_offset < 0) is fits


def refuse_one(topic: OutputTopic, size: int, slack: int) -> bool:
    return bool(find_refused(topic, read(make(bytes(size))), np.arange(1), NOW, slack).size)


def test_keys_and_times() -> None:
    keyed = replace(Settings().make_output_topic(), needs_key=True)
    records = [*make(b"x"), replace(make(b"y", key=None)[0], offset=1), replace(make(b"z", key=b"")[0], offset=2)]
    assert refuse(keyed, records) == [1]
    assert refuse(Settings().make_output_topic(), records) == []

    timed = replace(Settings(source_time=True).make_output_topic(), oldest_ms=10 * HOUR, newest_ms=HOUR)
    times = [NOW, NOW - 10 * HOUR, NOW - 10 * HOUR - 1, NOW + HOUR, NOW + HOUR + 1, -1]
    records = [replace(make(b"x", time=time)[0], offset=i) for i, time in enumerate(times)]
    assert refuse(timed, records) == [2, 4]
    # where the topic gives the time, the records' own is no matter
    assert refuse(replace(timed, envelope=Settings().make_output_topic().envelope), records) == []


@pytest.mark.parametrize(
    ("topic_config", "value", "key", "age"),
    [
        ({"max_message_bytes": 5000}, 6000, b"k", 0),
        ({"cleanup_policy": "compact"}, 10, None, 0),
        ({"message_timestamp_before_max_ms": HOUR}, 10, b"k", 2 * HOUR),
        ({}, 10, b"k", -2 * HOUR),
        ({"segment_bytes": 1 << 20, "max_message_bytes": 5 << 20}, 2 << 20, b"k", 0),
    ],
)
async def test_a_broker_judges_likewise(
    bootstrap: str,
    new_topic: NewTopicFixture,
    admin: Admin,
    topic_config: dict[str, object],
    value: int,
    key: bytes | None,
    age: int,
) -> None:
    topic, now = new_topic(1, **topic_config), now_ms()
    config = {"stream": "S", "durable_name": "c", "deliver_subject": topic, "output": {"timestamps": "source"}}
    facts = (await admin.find_topics([topic]))[topic]
    output_topic = make_output_topic(facts, ConsumerConfig.model_validate(config))
    noise = np.random.default_rng(1).bytes(value)
    (bad,), (good,) = make(noise, key=key, time=now - age), make(b"x", time=now)
    good = replace(good, offset=1)
    assert refuse(output_topic, [bad, good], now) == [0]
    assert [_takes(bootstrap, topic, record) for record in (bad, good)] == [False, True]


def _takes(bootstrap: str, topic: str, record: Record) -> bool:
    failed = []
    producer = SureProducer(bootstrap, {"message.max.bytes": 10_000_000})
    producer.produce(
        topic, record.value, record.key, timestamp=record.timestamp,
        on_delivery=lambda error, _: failed.append(error) if error else None,
    )  # fmt: skip
    assert producer.flush(30) == 0
    assert not [error for error in failed if KafkaException(error).args[0].retriable()]
    return not failed
