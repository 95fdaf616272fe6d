"""What we reach of aiokafka beyond its public interface: a minor version that changes it has to fail here, and loudly.

Deliver takes ids, sequence numbers and transactions from aiokafka's producer and sends its own produce requests; source and
deliver send requests and look up topics through AIOKafkaClient.
"""

from __future__ import annotations

import inspect
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import aiokafka.errors
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.client import AIOKafkaClient
from aiokafka.cluster import ClusterMetadata
from aiokafka.errors import TopicAuthorizationFailedError
from aiokafka.producer.message_accumulator import MessageAccumulator
from aiokafka.producer.sender import AddPartitionsToTxnHandler, Sender
from aiokafka.producer.transaction_manager import TransactionManager
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.structs import TopicPartition

from overlay.kafka.fetch_response import READ_COMMITTED
from overlay.output.produce import ACKS_ALL, FENCED, TIMEOUT_MS, _Request


def test_the_version_is_the_one_that_was_read() -> None:
    assert version("aiokafka").startswith("0.14."), "read this file's tests before you allow another minor version"


async def test_sequence_numbers_belong_to_the_transaction_manager() -> None:
    numbers, tp = TransactionManager(None, 1000), TopicPartition("t", 0)
    assert numbers.sequence_number(tp) == 0
    numbers.increment_sequence_number(tp, 2**31 - 3)
    numbers.increment_sequence_number(tp, 5)
    assert numbers.sequence_number(tp) == 2**31 + 2 - 2**32  # wraps around as Java's ints do


async def test_a_partition_is_told_to_the_transaction() -> None:
    numbers, tp = TransactionManager("id", 1000), TopicPartition("t", 0)
    numbers.set_pid_and_epoch(7, 2)
    numbers.begin_transaction()
    numbers.maybe_add_partition_to_txn(tp)
    assert (numbers.partitions_to_add(), numbers.txn_partitions) == ({tp}, set())
    numbers.partition_added(tp)
    assert (numbers.partitions_to_add(), numbers.txn_partitions) == (set(), {tp})
    numbers.error_transaction(TopicAuthorizationFailedError({"t"}))
    with pytest.raises(TopicAuthorizationFailedError):
        numbers.wait_for_transaction_end().result()


def test_the_sender_asks_for_partitions_by_a_method_of_its_own() -> None:
    """Transactions listens in there."""
    assert "self._do_add_partitions_to_txn(tps)" in inspect.getsource(Sender._maybe_do_transactional_request)
    assert "partition_added" in inspect.getsource(AddPartitionsToTxnHandler.handle_response)


@pytest.mark.parametrize("transactional_id", ["overlay.shard.0", None])
@pytest.mark.parametrize("newest", [3, 7, 12])
def test_a_produce_request_is_written_as_aiokafka_would(transactional_id: str | None, newest: int) -> None:
    loads = {("a", 0): b"one", ("b", 3): b"three", ("a", 1): b""}
    parcels: Any = {TopicPartition(*tp): SimpleNamespace(data=data) for tp, data in loads.items()}
    ours = _Request(transactional_id, parcels).prepare({0: (3, newest)})
    topics = [(topic, [(partition, data)]) for (topic, partition), data in loads.items()]
    theirs = ProduceRequest(transactional_id, ACKS_ALL, TIMEOUT_MS, topics).prepare({0: (3, newest)})
    assert ours.encode() == theirs.encode()
    assert ours.RESPONSE_TYPE is theirs.RESPONSE_TYPE


def test_a_commit_does_not_look_at_batches() -> None:
    """Why every batch is awaited before it (docs/exactly-once.md#transactions)."""
    assert "raise" not in inspect.getsource(MessageAccumulator.flush_for_commit)


def test_what_the_client_is_asked_for() -> None:
    for name in ("send", "force_metadata_update", "set_topics", "add_topic", "bootstrap", "close"):
        assert callable(getattr(AIOKafkaClient, name)), name
    client = AIOKafkaClient.__init__
    assert "self._topics = set()" in inspect.getsource(client), "Transactions.look_up adds to it"
    assert "shield(self._md_update_fut)" in inspect.getsource(AIOKafkaClient._maybe_wait_metadata)
    assert "self.client = AIOKafkaClient(" in inspect.getsource(AIOKafkaProducer.__init__)
    assert callable(ClusterMetadata.leader_for_partition)
    assert "return None" in inspect.getsource(ClusterMetadata.leader_for_partition)


def test_a_fetch_request_is_what_the_feed_builds() -> None:
    parameters = list(inspect.signature(FetchRequest.__init__).parameters)[1:]
    assert parameters[:5] == ["max_wait_time", "min_bytes", "max_bytes", "isolation_level", "topics"]
    FetchRequest(500, 1, 1 << 20, READ_COMMITTED, [("t", [(0, 0, 1 << 20)])])


def test_errors_that_are_told_apart_exist() -> None:
    for error in FENCED:
        assert issubclass(error, aiokafka.errors.KafkaError)
    assert not aiokafka.errors.MessageSizeTooLargeError.retriable
    assert aiokafka.errors.UnknownTopicOrPartitionError.retriable


def test_the_sender_repeats_init_producer_id_until_it_succeeds() -> None:
    """Transactions looks at the last transaction before each, and asks for another try if it could not."""
    loop = inspect.getsource(Sender._maybe_wait_for_pid)
    assert "success = await self._do_init_pid(node_id)" in loop
    assert "if not success" in loop
    assert "self._coordinators.pop" in inspect.getsource(Sender._coordinator_dead)
