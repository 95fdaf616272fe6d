"""Takeover: becoming the owner of a shard, and noticing that it has another owner.

The order matters (docs/exactly-once.md#takeover). InitProducerId comes first: it fences the former
owner and ends its open transaction. Then the high watermark of the state partition is requested
with read uncommitted. The partition is read with read committed until the position reaches that
watermark. Requesting only the committed end would be wrong: while a transaction of another producer
is open, it can be anything down to 0. What the former owner's last transaction left open, because
Kafka lost its marker, is ended in between (overlay/output/lost_markers.py).

A worker that was slow between its assignment and this point has fenced the rightful owner. So it
asks the group again after it has read the state, and leaves without changing the state if the shard
is not assigned to it (docs/exactly-once.md#fencing). The rightful owner notices that it was fenced,
confirms that it still owns the shard, and takes it again. The state also records the generation of
its owner, for operators and for the log.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from aiokafka.client import AIOKafkaClient

from overlay.errors import Fenced, OverlayError, SourceChanged
from overlay.kafka.admin import Admin, new_topic
from overlay.kafka.own_topics import STATE_CONFIG, shard_id, state_topic, workers_group
from overlay.kafka.properties import Properties
from overlay.kafka.range_reader import read_records
from overlay.logs import get_logger
from overlay.output.ending import add

from .shard_state import Delta, ShardState, StateReplay, encode
from .state_links import find_void

if TYPE_CHECKING:
    from overlay.output.transaction import Transactions

log = get_logger(__name__)

READS = 5
"""Attempts to read a shard's state if its log is trimmed meanwhile."""


async def ensure_state_topic(admin: Admin, prefix: str, shards: int, replication: int) -> int:
    """Create the state topic with `shards` partitions if it is missing. Return the number of
    shards: that of the topic's partitions. If that is not `shards`, log a warning.

    Raises OverlayError if it cannot be created, SourceUnavailable.
    """
    name = state_topic(prefix)
    facts = await admin.find_topics([name], with_config=False)
    if name not in facts:
        facts, refused = await admin.create_topics([new_topic(name, shards, replication, STATE_CONFIG)])
        if refused:
            raise OverlayError(refused[name])
    found = facts[name].partitions
    if found != shards:
        log.warning("the state topic decides how many shards there are", topic=name, shards=found, configured=shards)
    return found


async def refuse_running_service(admin: Admin, prefix: str) -> None:
    """Raise OverlayError if a service runs with this prefix (the group of workers has members),
    since it keeps the indexes of its streams itself. Raises SourceUnavailable or CredentialsRefused
    if Kafka does not tell."""
    group = workers_group(prefix)
    count = await admin.count_members(group)
    if count:
        raise OverlayError(
            f"a service with topics.prefix {prefix!r} is running ({count} member{'s' if count > 1 else ''} in the group"
            f" {group}), and it keeps the indexes of its streams itself; see `overlay index status`. One that was"
            " killed is forgotten after some seconds"
        )


async def read_state(
    client: AIOKafkaClient, admin: Admin, topic: str, shard: int, *, plain: bool = False
) -> tuple[ShardState, int]:
    """Return a shard's state, read up to the high watermark, and how many records were read.

    If records are lost, the state is the last one that is known as a whole (state_links.py), and the log says so.
    `plain`: read without kernels, for commands. Raises StateUnreadable, SourceUnavailable, CredentialsRefused, and
    SourceChanged if at each of READS attempts the log is trimmed or a batch of it cannot be read.
    """
    for _ in range(READS - 1):
        # its owner, if there still is one, may trim the log behind a checkpoint while it is being read
        with suppress(SourceChanged):
            return await _read_once(client, admin, topic, shard, plain=plain)
    return await _read_once(client, admin, topic, shard, plain=plain)


async def _read_once(
    client: AIOKafkaClient, admin: Admin, topic: str, shard: int, *, plain: bool
) -> tuple[ShardState, int]:
    """Return what `read_state` returns, by one attempt. Raises the same errors."""
    bounds = (await admin.find_bounds([(topic, shard)], committed=False))[topic, shard]
    replay = await _replay(client, topic, shard, bounds, frozenset(), plain=plain)
    if void := find_void(replay.links, bounds[0]):
        log.error(
            "the state has lost records: what was committed since is done again",
            shard=shard, passed_over=len(void), first=min(void), last=max(void),
        )  # fmt: skip
        replay = await _replay(client, topic, shard, bounds, void, plain=plain)
    return replay.state, replay.count


async def _replay(
    client: AIOKafkaClient, topic: str, shard: int, bounds: tuple[int, int], void: frozenset[int], *, plain: bool
) -> StateReplay:
    """Return the replay of a state partition's records between `bounds`, the first offset and the one after
    the last. State records whose offsets are in `void` are passed over. `plain`: read without kernels.
    Raises StateUnreadable, SourceChanged, SourceUnavailable, CredentialsRefused."""
    replay = StateReplay(void)
    async for offset, key, value in read_records(client, topic, shard, *bounds, plain=plain):
        replay.apply(offset, key, value)
    return replay


async def take_over(
    kafka: Properties,
    client: AIOKafkaClient,
    admin: Admin,
    prefix: str,
    shard: int,
    confirm: Callable[[ShardState], Awaitable[int | None]],
) -> tuple[Transactions, ShardState]:
    """Become the owner of the shard, which fences the former one. Return its transactions, of which none is open and
    which the caller has to close, and its state. The new generation is in that state and not yet in the log.

    `confirm` is called after the state was read. It returns the generation by which we own the shard, or None if we
    do not; then Fenced is raised, as it is if another owner fences us meanwhile. Raises also what `read_state` and
    `confirm` raise; after any error the transactions are closed.
    """
    from overlay.output.transaction import Transactions  # commands that read a state alone need none

    topic = state_topic(prefix)
    transactions = Transactions(kafka, shard_id(prefix, shard), topic, shard)
    await transactions.start([topic])
    try:
        await transactions.end_lost([(topic, shard)], encode(Delta()))
        state, count = await read_state(client, admin, topic, shard)
        generation = await confirm(state)
        if generation is None:
            raise Fenced(
                f"shard {shard} is not ours any more (its state is of generation {state.generation}); leaving it alone"
            )
        transactions.know_endings(state.endings)
        state.apply(Delta(generation=generation, endings=add(state.endings, transactions.find_ending())))
        state.length = count
        log.info("shard taken over", shard=shard, generation=generation, state_records=count)
    except BaseException:
        await transactions.close()
        raise
    return transactions, state
