"""Readings that follow while their topics change: partitions are added, topics go and come again."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

import overlay
from overlay.client import Reading
from overlay.errors import SourceChanged
from tests.support.kafka import NewTopicFixture, SureProducer, add_partitions, delete_topic, make_topic, produce_values


def take(reading: Reading, count: int) -> dict[int, list[tuple[int | None, int]]]:
    """The next records: sequence and value by partition."""
    found: dict[int, list[tuple[int | None, int]]] = defaultdict(list)
    while count > 0:
        batch = next(reading)
        count -= batch.num_rows
        for row in batch.to_pylist():
            found[row["partition"]].append((row["sequence"], int(row["value"])))
    assert count == 0
    return found


@pytest.mark.timeout(300)
@pytest.mark.parametrize("last", [None, 3])
def test_added_partitions_are_read_from_their_start(
    bootstrap: str, new_topic: NewTopicFixture, last: int | None
) -> None:
    """And from then on there are no sequences: several partitions have no order."""
    topic = new_topic()
    producer = SureProducer(bootstrap)
    produce_values(bootstrap, topic, [b"%d" % n for n in range(3)])
    question: dict[str, Any] = {} if last is None else {"last": last}
    with overlay.open(bootstrap=bootstrap).read(topic=topic, follow=True, **question) as reading:
        assert take(reading, 3) == {0: [(1, 0), (2, 1), (3, 2)]}
        add_partitions(bootstrap, topic, 3)
        for number in range(3, 9):
            producer.produce(topic, str(number), partition=1 + number % 2)
        assert producer.flush(30) == 0
        assert take(reading, 6) == {1: [(None, 4), (None, 6), (None, 8)], 2: [(None, 3), (None, 5), (None, 7)]}
        producer.produce(topic, b"9", partition=0)
        producer.produce(topic, b"10", partition=2)
        assert producer.flush(30) == 0
        assert take(reading, 2) == {0: [(None, 9)], 2: [(None, 10)]}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("again", [False, True], ids=["deleted", "created again"])
def test_a_topic_that_goes_ends_the_reading(bootstrap: str, new_topic: NewTopicFixture, again: bool) -> None:
    topic = new_topic()
    produce_values(bootstrap, topic, [b"0"])
    with overlay.open(bootstrap=bootstrap).read(topic=topic, follow=True) as reading:
        take(reading, 1)
        delete_topic(bootstrap, topic)
        if again:
            make_topic(bootstrap, topic, 2)
        # a look may fall between the two
        words = r"created again\. Read it anew|was deleted" if again else "was deleted"
        with pytest.raises(SourceChanged, match=words):
            next(reading)
