"""overlay/output/partition.py against an independent client: librdkafka's murmur2 places as Java's default partitioner."""

from __future__ import annotations

import random

import numpy as np

from overlay.config.consumer import PartitionBy
from overlay.match import Addressed, Addressing
from overlay.output.partition import place
from overlay.subject import Pattern
from tests.oracle.batches import Record
from tests.output.pressing import RULE
from tests.support.batches import build
from tests.support.kafka import NewTopicFixture, SureProducer
from tests.worker.scenes import read_committed

PARTITIONS = 7


def make_keys() -> list[bytes]:
    """Of every length up to 40 and some long ones, of any bytes; the empty one is a key like the others."""
    rng = random.Random(5)
    lengths = [*range(41), *range(41), 255, 1_000, 5_001]
    return [rng.randbytes(length) for length in lengths]


def place_all(keys: list[bytes | None], origins: list[str]) -> list[int]:
    """Where we put records of these keys, whose subjects are `t.<origin>`."""
    records = [
        Record(i, 0, key, b"v", [(b"origin", origin.encode())])
        for i, (key, origin) in enumerate(zip(keys, origins, strict=True))
    ]
    found: list[int] = []
    for piece in Addressing(RULE, [Pattern.parse(">")]).read("source", 0, np.frombuffer(build(records), np.uint8), 0):
        assert isinstance(piece, Addressed)
        rows = np.arange(len(piece.records))
        texts = piece.dictionary.texts
        found += place(PartitionBy.KEY, PARTITIONS, 0, piece.records, rows, piece.codes, texts).tolist()
    return found


def test_keys_go_where_librdkafka_puts_them(bootstrap: str, new_topic: NewTopicFixture) -> None:
    topic, keys = new_topic(partitions=PARTITIONS), make_keys()
    producer = SureProducer(bootstrap, {"partitioner": "murmur2_random"})
    for key in keys:
        producer.produce(topic, b"v", key)
    assert producer.flush(30) == 0
    theirs = {record.key: record.partition for record in read_committed(bootstrap, topic)}
    assert len(set(theirs.values())) == PARTITIONS
    ours = dict(zip(keys, place_all(list(keys), ["x"] * len(keys)), strict=True))
    assert ours == theirs


def test_without_a_key_the_subject_is_placed_as_a_key(bootstrap: str, new_topic: NewTopicFixture) -> None:
    """Java's partitioner spreads them at random; ours keeps together what belongs together."""
    origins = [f"o{number}" for number in range(40)]
    topic = new_topic(partitions=PARTITIONS)
    producer = SureProducer(bootstrap, {"partitioner": "murmur2_random"})
    for origin in origins:
        producer.produce(topic, b"v", f"t.{origin}")
    assert producer.flush(30) == 0
    theirs = {record.key: record.partition for record in read_committed(bootstrap, topic)}
    ours = place_all([None] * len(origins), origins)
    assert {f"t.{origin}".encode(): partition for origin, partition in zip(origins, ours, strict=True)} == theirs
