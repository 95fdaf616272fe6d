"""Changes to the state that an operator orders: resetting a stream, dropping a consumer.

A shard's state has one writer, its owner. So a change is made as an owner: take the shard over,
commit one delta, release it. That fences a running service. Its next transaction fails; it confirms
that the shard is still assigned to it, takes the shard again and reads the change, without a
restart. We do not join the group of workers. The generation in the state stays that of the last
worker.

The service may take its shard back before our delta is committed. Then nothing was written, and
everything is tried again. The service waits longer after each loss, so this ends. If Kafka does not
tell whether the transaction was committed, the next attempt finds out: it begins with the state as
it is then (docs/exactly-once.md#unknown-outcomes).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

from aiokafka.client import AIOKafkaClient

from overlay.config import ServiceConfig
from overlay.errors import Fenced, SourceUnavailable
from overlay.kafka.admin import Admin
from overlay.kafka.connection import open_client
from overlay.kafka.log_position import LogPosition, TopicPartition
from overlay.kafka.own_topics import state_topic

from .shard_state import ConsumerId, ConsumerState, Delta, ShardState, encode
from .takeover import read_state, take_over

if TYPE_CHECKING:
    from overlay.output.transaction import Transactions

ATTEMPTS, PATIENCE_S = 6, 30.0
"""Attempts to change a shard, and the seconds after which no further one is made."""

Change = Callable[[ShardState], Delta]
"""Returns what to write, given the state as its owner finds it. It is called again for each
attempt, and by `amend` once before: if that call returns an empty delta, the shard is left
alone."""

Confirm = Callable[[ShardState], Awaitable[int | None]]
"""Returns the generation to write with, once the shard is taken over (`take_over`). If it returns
None, the change is tried again; an OverlayError of its own ends the attempts."""

Work = Callable[["Transactions", ShardState], Awaitable[None]]
"""What to do as the owner of a shard, with its transactions and its state."""


async def count_shards(admin: Admin, prefix: str) -> int:
    """Return how many shards there are: the partitions of the state topic; 0 if that is missing, since
    no service has run with this prefix yet. Raises SourceUnavailable, CredentialsRefused."""
    topic = state_topic(prefix)
    facts = (await admin.find_topics([topic], with_config=False)).get(topic)
    return facts.partitions if facts else 0


async def read_states(client: AIOKafkaClient, admin: Admin, prefix: str) -> list[ShardState]:
    """Return the state of every shard, in the order of their numbers; empty if no service has run with
    this prefix yet. No shard is taken over.

    Raises SourceUnavailable, CredentialsRefused, StateUnreadable, SourceChanged (`read_state`).
    """
    topic, shards = state_topic(prefix), await count_shards(admin, prefix)
    return [(await read_state(client, admin, topic, shard, plain=True))[0] for shard in range(shards)]


async def _keep_generation(state: ShardState) -> int:
    return state.generation


async def amend(service: ServiceConfig, admin: Admin, change: Change, confirm: Confirm = _keep_generation) -> list[int]:
    """Commit what `change` returns to each shard for whose state, as it is read first, that is not
    empty; as its owner and in a transaction of its own. Return the numbers of these shards,
    ascending.

    `confirm` returns the generation to write with, or None to try again (`Confirm`); without it, the generation
    stays. Raises Fenced if the owners keep taking a shard back, SourceUnavailable if Kafka does not answer,
    CredentialsRefused, StateUnreadable, SourceChanged, and what `change` and `confirm` raise. Shards that were changed
    before stay changed.
    """
    client = await open_client(service.kafka)
    try:
        states = await read_states(client, admin, service.topics.prefix)
        concerned = [shard for shard, state in enumerate(states) if change(state)]
        for shard in concerned:
            await amend_shard(service, client, admin, shard, change, confirm)
        return concerned
    finally:
        await client.close()


async def amend_shard(
    service: ServiceConfig,
    client: AIOKafkaClient,
    admin: Admin,
    shard: int,
    change: Change,
    confirm: Confirm = _keep_generation,
) -> None:
    """Take over one shard and commit what `change` returns for its state, also an empty delta. `confirm`: as in
    `amend`. Raises Fenced, SourceUnavailable, StateUnreadable, SourceChanged, and what `change` and `confirm` raise."""

    async def write(transactions: Transactions, state: ShardState) -> None:
        delta = state.sign().merge(change(state))
        await transactions.begin()
        await transactions.finish(encode(delta, after=state.end), after=state.end)

    await own_shard(service, client, admin, shard, write, confirm)


async def own_shard(
    service: ServiceConfig,
    client: AIOKafkaClient,
    admin: Admin,
    shard: int,
    work: Work,
    confirm: Confirm = _keep_generation,
) -> None:
    """Take over a shard and run `work` as its owner; the shard is released afterwards. Try again if the service takes
    the shard back meanwhile (Fenced) or Kafka does not answer (SourceUnavailable): at most ATTEMPTS attempts in all,
    none begun after PATIENCE_S. The last of these errors is raised.

    `work` may run again although it has succeeded, so it has to look at the state first. A `confirm` that returns
    None counts as Fenced (`Confirm`). Any other error is raised at once.
    """
    # commands that only read states do not wait for it
    from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, stop_after_delay, wait_random

    async for attempt in AsyncRetrying(
        retry=retry_if_exception_type((Fenced, SourceUnavailable)),
        stop=stop_after_attempt(ATTEMPTS) | stop_after_delay(PATIENCE_S),
        wait=wait_random(0, 0.3),
        reraise=True,
    ):
        with attempt:
            prefix = service.topics.prefix
            transactions, state = await take_over(service.kafka, client, admin, prefix, shard, confirm)
            try:
                await work(transactions, state)
            finally:
                await transactions.close()


def reset_stream(
    state: ShardState,
    stream: str,
    positions: Mapping[TopicPartition, int],
    snapshots: Mapping[ConsumerId, Mapping[TopicPartition, int]],
) -> Delta:
    """Return the delta with which the stream's consumers begin anew at `positions` (offsets), as if its
    topics had never been read. `state` is not changed.

    Every consumer gets positions of its own, since one that is stalled now would otherwise follow
    the position of the others. Consumer sequences continue without a gap. Consumers of Spark jobs
    are left alone: their positions are in the plans of the jobs. `snapshots`: by last_per_subject
    consumer, the offsets below which it gets only the last message of each subject. The delta is
    empty if the state has no position and no topic id of the stream, and no consumer of it that the
    service delivers.
    """
    own = {source: LogPosition(position) for source, position in positions.items()}
    consumers = {
        consumer: ConsumerState(known.sequence, own, snapshots.get(consumer, {}), policy=known.policy)
        for consumer, known in state.consumers.items()
        if consumer[0] == stream and not known.job
    }
    known_here = any(name == stream for name, _ in (*state.cursors, *state.topics))
    return Delta(consumers=consumers, reset=(stream,)) if consumers or known_here else Delta()


def forget_consumer(state: ShardState, consumer: ConsumerId) -> Delta:
    """Return the delta that drops a consumer from the state; empty if `state` does not have it."""
    return Delta(forgotten=(consumer,)) if consumer in state.consumers else Delta()
