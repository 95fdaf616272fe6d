"""An index that is not there, comes, changes or goes while a client reads, and the connection that the client keeps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient

from overlay.client import Client
from overlay.kafka.own_topics import index_topic
from tests.support.kafka import NewTopicFixture, SureProducer, make_topic, produce_values
from tests.support.waiting import wait_until

from .indexing import add_headers, index_stream, seal, write_index
from .read.test_indexes import PLACES, WHERE, open_streams, read
from .read.test_indexes import gaps_cost_nothing as gaps_cost_nothing


@dataclass(frozen=True)
class Small:
    """A log of 300 records, ten of a place at a time, each burst a batch."""

    client: Client
    bootstrap: str
    topic: str

    def write(self, bursts: int = 30, first: int = 0) -> None:
        producer = SureProducer(self.bootstrap, {"linger.ms": 0})
        for burst in range(first, first + bursts):
            for _ in range(10):
                producer.produce(self.topic, b"%d" % burst, headers=[("to", PLACES[burst % len(PLACES)])])
            assert producer.flush(30) == 0

    def count_unread(self) -> int:
        """After a look at the whole log through the index and without it."""
        through, reading = read(self.client, subjects=["t.rome"])
        assert through == read(self.client, subjects=["t.rome"], index=False)[0]
        return reading.progress.unread


@pytest.fixture
def small(bootstrap: str, new_topic: NewTopicFixture, tmp_path: Path) -> Iterator[Small]:
    topic = new_topic()
    client = open_streams(bootstrap, tmp_path / "config", topic, ({"index": {"chunk_records": 10}},))
    found = Small(client, bootstrap, topic)
    found.write()
    yield found
    client.close()


def test_without_an_index(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    """And with one that comes later."""
    monkeypatch.setattr("overlay.client.read.indexes.LOOK_AGAIN_S", 0.0)
    assert small.count_unread() == 0
    index_stream(small.client, small.bootstrap, "S0", 1)
    assert small.count_unread() == 240


def test_an_index_of_foreign_records(small: Small) -> None:
    write_index(small.bootstrap, small.client.prefix, "S0", [], foreign=True)
    assert small.count_unread() == 0


def test_only_what_is_new_is_read_of_it(small: Small) -> None:
    headers = seal(small.client.kafka, small.client.find_stream("S0"), [(small.topic, 0)])
    topic = write_index(small.bootstrap, small.client.prefix, "S0", headers[:20])
    assert small.count_unread() == 160
    add_headers(small.bootstrap, topic, headers[20:])
    kept = small.client._indexes._kept["S0"]
    assert kept._index.position == 20 and small.count_unread() == 240 and kept._index.position == 30


def test_an_index_topic_that_goes(small: Small) -> None:
    index_stream(small.client, small.bootstrap, "S0", 1)
    assert small.count_unread() == 240
    delete(small.bootstrap, index_topic(small.client.prefix, "S0"))
    small.count_unread()


def delete(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([topic], operation_timeout=30)[topic].result(30)
    wait_until(lambda: topic not in admin.list_topics(timeout=10).topics, 30, "the topic is gone")


def test_a_topic_that_was_created_again(small: Small) -> None:
    """It holds other records at the offsets of the old ones; nothing that the index says of those is believed."""
    index_stream(small.client, small.bootstrap, "S0", 1)
    assert small.count_unread() == 240
    delete(small.bootstrap, small.topic)
    make_topic(small.bootstrap, small.topic)
    small.write(35, first=2)
    assert small.count_unread() == 0


def test_headers_of_another_log(small: Small) -> None:
    """The first chunks are right, and from the 20th on another log was sealed: only those are void."""
    headers = seal(small.client.kafka, small.client.find_stream("S0"), [(small.topic, 0)])
    wrong = [replace(header, crc=header.crc ^ 1, subjects={"t.none": 10}) for header in headers[20:]]
    write_index(small.bootstrap, small.client.prefix, "S0", headers[:20] + wrong)
    assert small.count_unread() == 160


def test_chunks_that_are_sealed_after_the_bounds_are_kept(small: Small) -> None:
    """They end behind the end that the reading was given, which is no sign of a log that was cut."""
    index_stream(small.client, small.bootstrap, "S0", 1)
    assert small.count_unread() == 240
    small.write(10, first=30)
    stream = small.client.find_stream("S0")
    headers = seal(small.client.kafka, stream, [(small.topic, 0)])
    add_headers(small.bootstrap, index_topic(small.client.prefix, "S0"), headers[30:])
    assert small.count_unread() == 320


def test_a_connection_is_kept(small: Small) -> None:
    small.count_unread()
    ((_, line),) = small.client._lines._free
    first = line._client
    small.count_unread()
    assert [kept._client for _, kept in small.client._lines._free] == [first]


def test_a_connection_that_broke_meanwhile(small: Small) -> None:
    index_stream(small.client, small.bootstrap, "S0", 1)
    small.count_unread()
    ((_, line),) = small.client._lines._free
    assert line._client is not None
    for connection in line._client._conns.values():
        connection._writer.transport.abort()
    assert small.count_unread() == 240


def test_a_reading_left_early_delays_no_other(small: Small) -> None:
    """Its last fetch would go on waiting for records on the connection that the next reading uses."""
    with small.client.read("S0", follow=True, columns=WHERE) as reading:
        next(reading)
    pa.table(small.client.read("S0"))
    assert small.count_unread() == 0


def test_nothing_to_ask_an_index(small: Small) -> None:
    """It is not even read where all records are wanted."""
    index_stream(small.client, small.bootstrap, "S0", 1)
    assert len(read(small.client, last=5)[0][0]) == 5
    assert small.client._indexes._kept == {}
    produce_values(small.bootstrap, small.topic, [b"more"])
    assert read(small.client, limit=5)[1].progress.unread == 0
