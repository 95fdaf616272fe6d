"""Becoming the owner of a shard, and what it means to be late.

The order matters (design 11.2). InitProducerId comes first: it fences the former owner and ends its open transaction. Then
the state partition's high watermark is taken with read uncommitted, and the partition is read with read committed until the
position reaches it. Asking for the committed end alone would be wrong: it can be anything down to 0 while somebody else's
transaction is open.

A worker that was slow between being told that it owns a shard and getting here has fenced the rightful owner. So it asks
the group again, after it has read the state, and leaves without writing when the shard is not its own (design 11.3); the
owner notices that it was fenced, confirms that it is still a member, and takes its shard again. The state also remembers the
generation of its owner, for people and for the log.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiokafka.client import AIOKafkaClient
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt

from overlay.errors import Fenced, OverlayError, SourceChanged
from overlay.kafka.admin import Admin, new_topic
from overlay.kafka.connection import Properties
from overlay.kafka.range_reader import read_records
from overlay.logs import get_logger
from overlay.output.transaction import Transactions

from .shard_state import Delta, Replay, ShardState

log = get_logger(__name__)

READS = 5
"""How often a shard's state is read that is trimmed meanwhile."""
STATE_CONFIG = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    # a checkpoint is one record, with some 40 bytes for each position
    "max.message.bytes": str(16 << 20),
}


def state_topic(prefix: str) -> str:
    return f"{prefix}.state"


def transactional_id(prefix: str, shard: int) -> str:
    return f"{prefix}.shard.{shard}"


async def ensure_state_topic(admin: Admin, prefix: str, shards: int, replication: int) -> int:
    """Create the state topic when it is missing; returns how many shards it has."""
    name = state_topic(prefix)
    if name not in await admin.find_topics([name], with_config=False):
        refused = await admin.create_topics([new_topic(name, shards, replication, STATE_CONFIG)])
        if refused:
            raise OverlayError(refused[name])
    facts = (await admin.find_topics([name], with_config=False)).get(name)
    found = facts.partitions if facts else shards
    if found != shards:
        log.warning("the state topic decides how many shards there are", topic=name, shards=found, configured=shards)
    return found


async def read_state(client: AIOKafkaClient, admin: Admin, topic: str, shard: int) -> tuple[ShardState, int]:
    """A shard's state, read to the high watermark, and how many records that took. Raises StateUnreadable."""
    replay = Replay()
    # its owner, if there is one still, may trim the log behind a checkpoint while it is being read
    async for attempt in AsyncRetrying(
        retry=retry_if_exception_type(SourceChanged), stop=stop_after_attempt(READS), reraise=True
    ):
        with attempt:
            replay = Replay()
            log_start, end = (await admin.find_bounds([(topic, shard)], committed=False))[topic, shard]
            async for _, key, value in read_records(client, topic, shard, log_start, end):
                replay.apply(key, value)
    return replay.state, replay.count


async def take_over(
    kafka: Properties,
    client: AIOKafkaClient,
    admin: Admin,
    prefix: str,
    shard: int,
    confirm: Callable[[ShardState], Awaitable[int | None]],
) -> tuple[Transactions, ShardState]:
    """Own the shard: its transactions, in which nothing is written yet, and its state.

    `confirm` says, after the state has been read, by which generation we own the shard; None means that we do not, and
    Fenced is raised.
    """
    topic = state_topic(prefix)
    transactions = Transactions(kafka, transactional_id(prefix, shard), topic, shard)
    await transactions.start([topic])
    try:
        state, count = await read_state(client, admin, topic, shard)
        generation = await confirm(state)
        if generation is None:
            raise Fenced(
                f"shard {shard} is not ours any more (its state is of generation {state.generation}); leaving it alone"
            )
        state.apply(Delta(generation=generation))
        state.length = count
        log.info("shard taken over", shard=shard, generation=generation, state_records=count)
    except BaseException:
        await transactions.close()
        raise
    return transactions, state
