"""What we reach of aiokafka beyond its public interface: a minor version that changes it has to fail here, and loudly.

Deliver hands `EncodedBatch` to `send_batch` where aiokafka expects its own BatchBuilder; source and deliver send requests
and look up topics through AIOKafkaClient.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import aiokafka.errors
import numpy as np
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.client import AIOKafkaClient
from aiokafka.cluster import ClusterMetadata
from aiokafka.producer.message_accumulator import BatchBuilder, MessageAccumulator, MessageBatch
from aiokafka.producer.sender import Sender
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.structs import TopicPartition

from overlay.deliver import transaction
from overlay.deliver.assemble import Body
from overlay.deliver.batch import EncodedBatch
from overlay.scan.codec import Codec
from overlay.source.feed import READ_COMMITTED


def find_uses(code: Callable[..., Any] | type, name: str) -> set[str]:
    """Attributes of `name` (such as `self._builder`) that the source of `code` reads."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(code)))
    return {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and ast.unparse(node.value) == name}


def make_batch() -> EncodedBatch:
    return EncodedBatch(Body(np.zeros(64, np.uint8), size=40, count=3), Codec.NONE, transactional=True)


def test_the_version_is_the_one_that_was_read() -> None:
    assert version("aiokafka").startswith("0.14."), "read this file's tests before you allow another minor version"


def test_a_batch_has_all_that_aiokafka_asks_of_a_builder() -> None:
    used = find_uses(MessageBatch, "self._builder") | find_uses(MessageAccumulator, "batch._builder")
    used |= find_uses(MessageAccumulator.add_batch, "builder") | find_uses(AIOKafkaProducer.send_batch, "batch")
    used |= find_uses(MessageAccumulator._append_batch, "builder")
    assert used == {"append", "_build", "_set_producer_state", "record_count", "close", "closed"} & used
    assert {"_build", "_set_producer_state", "record_count"} <= used
    assert [name for name in used if not hasattr(make_batch(), name)] == []


@pytest.mark.parametrize("name", ["append", "_build", "_set_producer_state", "record_count", "close", "closed", "size"])
def test_its_methods_take_what_a_builder_s_take(name: str) -> None:
    theirs, ours = inspect.signature(getattr(BatchBuilder, name)), inspect.signature(getattr(EncodedBatch, name))
    assert list(ours.parameters) == list(theirs.parameters)


def test_message_batch_hands_state_over_and_takes_bytes() -> None:
    assert "_set_producer_state" in inspect.getsource(MessageBatch.set_producer_state)
    assert "_build" in inspect.getsource(MessageBatch.get_data_buffer)


async def test_message_batch_over_an_encoded_batch() -> None:
    batch = MessageBatch(TopicPartition("t", 0), make_batch(), 10.0, 0)
    assert batch.record_count == 3
    assert batch.append(None, b"more", None) is None  # full, so that aiokafka opens another
    batch.set_producer_state(7, 2, 11)
    data = bytes(batch.get_data_buffer())
    assert len(data) == 61 + 40
    assert data[43:51] == (7).to_bytes(8, "big")
    assert data[51:57] == (2).to_bytes(2, "big") + (11).to_bytes(4, "big")
    assert bytes(batch.get_data_buffer()) == data  # a retry


def test_sequence_numbers_count_the_records_of_a_batch() -> None:
    source = inspect.getsource(MessageAccumulator._pop_batch)
    assert "increment_sequence_number(batch.tp, batch.record_count)" in source


def test_errors_of_batches_reach_their_futures_only() -> None:
    """Why every future is awaited: the flush before a commit does not look at them (design 11.1)."""
    assert "commit_transaction" in vars(AIOKafkaProducer)
    assert "raise" not in inspect.getsource(MessageAccumulator.flush_for_commit)


def test_what_the_client_is_asked_for() -> None:
    for name in ("send", "force_metadata_update", "set_topics", "add_topic", "bootstrap", "close"):
        assert callable(getattr(AIOKafkaClient, name)), name
    client = AIOKafkaClient.__init__
    assert "self._topics = set()" in inspect.getsource(client), "Transactions.look_up adds to it"
    assert "self.client = AIOKafkaClient(" in inspect.getsource(AIOKafkaProducer.__init__)
    assert callable(ClusterMetadata.leader_for_partition)
    assert "return None" in inspect.getsource(ClusterMetadata.leader_for_partition)


def test_a_fetch_request_is_what_the_feed_builds() -> None:
    parameters = list(inspect.signature(FetchRequest.__init__).parameters)[1:]
    assert parameters[:5] == ["max_wait_time", "min_bytes", "max_bytes", "isolation_level", "topics"]
    FetchRequest(500, 1, 1 << 20, READ_COMMITTED, [("t", [(0, 0, 1 << 20)])])


def test_errors_that_are_told_apart_exist() -> None:
    for error in transaction._FENCED:
        assert issubclass(error, aiokafka.errors.KafkaError)
    assert not aiokafka.errors.MessageSizeTooLargeError.retriable
    assert aiokafka.errors.UnknownTopicOrPartitionError.retriable


def test_the_sender_asks_a_batch_for_nothing_else() -> None:
    assert "_builder" not in inspect.getsource(Sender)
