"""Changes to the state that an operator asks for: a stream begun anew, a consumer forgotten.

A shard's state has one writer, its owner, and so the change is made as an owner: take the shard over, commit one delta,
let go. That fences a running service. Its next transaction fails, it confirms that the shard is its own, takes it again
and reads what was written here, without a restart. We are no member of the group of workers and ask it for nothing; the
generation in the state stays the one of the last worker.

The service may be quicker and take its shard back before the delta is committed. Then nothing has been written and all
of it is tried again; the service waits longer after each loss, so this comes to an end. Where Kafka does not say whether
the transaction was committed, the next attempt finds out: it begins with the state as it is then.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from aiokafka.client import AIOKafkaClient
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, stop_after_delay, wait_random

from overlay.config import ServiceConfig
from overlay.errors import Fenced, SourceUnavailable
from overlay.kafka.admin import Admin
from overlay.kafka.connection import open_client
from overlay.kafka.log_position import LogPosition, TopicPartition
from overlay.output.transaction import Transactions

from .shard_state import ConsumerId, ConsumerState, Delta, ShardState, encode
from .takeover import read_state, state_topic, take_over

ATTEMPTS, PATIENCE_S = 6, 30.0

Change = Callable[[ShardState], Delta]
"""What to write, from the state as its owner finds it; an empty delta leaves the shard alone."""

Work = Callable[[Transactions, ShardState], Awaitable[None]]
"""What to do as the owner of a shard, with its transactions and its state."""


async def read_states(client: AIOKafkaClient, admin: Admin, prefix: str) -> list[ShardState]:
    """The state of every shard by its number; empty when no service has run with this prefix yet.

    Raises SourceUnavailable, StateUnreadable.
    """
    topic = state_topic(prefix)
    facts = (await admin.find_topics([topic], with_config=False)).get(topic)
    shards = facts.partitions if facts else 0
    return [(await read_state(client, admin, topic, shard))[0] for shard in range(shards)]


async def amend(service: ServiceConfig, admin: Admin, change: Change) -> list[int]:
    """Apply `change` to each shard it concerns, one transaction a shard; returns those shards.

    Raises Fenced when the owners keep taking a shard back, SourceUnavailable when Kafka does not answer. The shards
    that were done before that stay done.
    """
    client = await open_client(service.kafka)
    try:
        states = await read_states(client, admin, service.topics.prefix)
        concerned = [shard for shard, state in enumerate(states) if change(state)]
        for shard in concerned:
            await _amend_shard(service, client, admin, shard, change)
        return concerned
    finally:
        await client.close()


async def _amend_shard(
    service: ServiceConfig, client: AIOKafkaClient, admin: Admin, shard: int, change: Change
) -> None:
    async def write(transactions: Transactions, state: ShardState) -> None:
        delta = Delta(generation=state.generation).merge(change(state))
        await transactions.begin()
        await transactions.finish(encode(delta))

    await own_shard(service, client, admin, shard, write)


async def own_shard(service: ServiceConfig, client: AIOKafkaClient, admin: Admin, shard: int, work: Work) -> None:
    """Do something as the owner of a shard, and try again when the owner takes it back meanwhile.

    `work` may be done again after it was: it looks at the state first. Raises Fenced when he keeps taking it back,
    SourceUnavailable.
    """
    async for attempt in AsyncRetrying(
        retry=retry_if_exception_type((Fenced, SourceUnavailable)),
        stop=stop_after_attempt(ATTEMPTS) | stop_after_delay(PATIENCE_S),
        wait=wait_random(0, 0.3),
        reraise=True,
    ):
        with attempt:
            prefix = service.topics.prefix
            transactions, state = await take_over(service.kafka, client, admin, prefix, shard, _keep_generation)
            try:
                await work(transactions, state)
            finally:
                await transactions.close()


async def _keep_generation(state: ShardState) -> int:
    return state.generation


def reset_stream(
    state: ShardState,
    stream: str,
    positions: Mapping[TopicPartition, int],
    snapshots: Mapping[ConsumerId, Mapping[TopicPartition, int]],
) -> Delta:
    """Have the stream's consumers begin anew at `positions`, as if its topics had never been read.

    Every consumer gets positions of its own, for one that is stalled now would otherwise follow the cursor of the
    others. Consumer sequences go on, without a hole. `snapshots`: below which offsets last_per_subject consumers get
    only the last message of each subject.
    """
    own = {source: LogPosition(position) for source, position in positions.items()}
    consumers = {
        consumer: ConsumerState(known.sequence, own, snapshots.get(consumer, {}))
        for consumer, known in state.consumers.items()
        if consumer[0] == stream
    }
    known_here = any(name == stream for name, _ in (*state.cursors, *state.topics))
    return Delta(consumers=consumers, reset=(stream,)) if consumers or known_here else Delta()


def forget_consumer(state: ShardState, consumer: ConsumerId) -> Delta:
    """Drop what is remembered of a consumer."""
    return Delta(forgotten=(consumer,)) if consumer in state.consumers else Delta()
