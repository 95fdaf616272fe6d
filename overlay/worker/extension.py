"""`overlay stream extend`: gives a stream of one partition a ledger, so that partitions that were
added are read too.

Until then a record's sequence is its offset + 1, and every shard with a consumer of the stream
computes it by itself. From an offset on, the cut, only the ledger says what the sequences are. So
no shard may deliver a record from the cut on as if there were no ledger. Nor may correctness depend
on a shard noticing it in time. There are three steps, each made as the owner of the shards
(state/amend.py), which fences their workers (docs/exactly-once.md#several-partitions):

1. The state of every shard records that the stream has a ledger, and in which topic. A session that
   reads this and finds no ledger there stops the stream, rather than going on by offsets.
2. The cut is taken: the committed end of the log. Everything that was delivered by offsets was
   delivered before step 1, and is below it. The shard that keeps the stream commits the first
   ledger entry: offsets 0 to the cut, with their old sequences.
3. Every shard is taken over once more. Sessions that stopped the stream begin again and find the
   ledger.

If the command is killed between two steps, running it again continues there. Until then the stream
is stopped and says so. With one shard, the first two steps are one transaction.

Consumers with `delivery: at_least_once` are not protected by transactions. What a fenced session
was still sending to their outputs is delivered again, with the valid sequences.
"""

from __future__ import annotations

from dataclasses import dataclass

from aiokafka.client import AIOKafkaClient

from overlay.clock import now_ms
from overlay.config import Loaded, StreamConfig
from overlay.errors import OverlayError
from overlay.index.ledger.allocate import extend
from overlay.index.retention import index_config
from overlay.index.topic import Index
from overlay.kafka.admin import Admin, connect
from overlay.kafka.log_position import TopicPartition
from overlay.kafka.own_topics import index_topic, shard_of
from overlay.output.transaction import Transactions
from overlay.state.amend import amend, own_shard, read_states
from overlay.state.partitions import list_sources
from overlay.state.shard_state import Delta, ShardState, encode

from .kept.indexes import create_topics
from .kept.ledgers import find_ends
from .round.sequencing import write_round


@dataclass(frozen=True, slots=True)
class Extension:
    """A plan to read the partitions that were added to a stream of one partition, by giving it a
    ledger: the record of which offsets have which stream sequences. `is_begun`: whether the ledger
    has an entry already. `shards`: the number of shards."""

    stream: StreamConfig
    topic: str
    """The index topic."""
    identity: str
    """Kafka's id of the index topic; empty if it does not exist."""
    shards: int
    first: TopicPartition | None
    """The partition that the stream had; None if that is not known any more."""
    added: tuple[TopicPartition, ...]
    is_begun: bool


async def plan_extension(loaded: Loaded, name: str) -> Extension:
    """Return how stream `name` is to be extended by the partitions that were added to its topics.
    Changes nothing. The stream must be in `loaded`. Raises SourceUnavailable; raises OverlayError
    if no partition was added or no shard has read the stream yet, unless its ledger has an entry
    already; also if a topic is missing or not the one that was read (SourceChanged)."""
    service, stream = loaded.service, loaded.streams[name]
    async with connect(service.kafka) as (admin, client):
        topic = index_topic(service.topics.prefix, name)
        topics = await admin.find_topics([*stream.topic_names, topic])
        states = await read_states(client, admin, service.topics.prefix)
        index = await _read_index(client, admin, stream, topic) if topic in topics else Index(stream)
    # a shard that has read the stream by offsets lists the added partitions as unread
    found = [list_sources(stream, topics, state) for state in states]
    divided = next((sources for sources in found if sources.unread), None)
    is_begun = index.ledger.next_sequence > 1
    if divided is None and not is_begun:
        count = len(found[0].partitions) if found else 0
        raise OverlayError(
            f"stream {name} has one partition, and nothing was added to it"
            if count == 1
            else f"nothing is remembered of stream {name} that was read by offsets: a service gives it a ledger by itself"
        )
    identity = topics[topic].identity if topic in topics else ""
    first = divided.partitions[0] if divided else None
    return Extension(stream, topic, identity, len(states), first, divided.unread if divided else (), is_begun)


async def carry_out(loaded: Loaded, plan: Extension) -> int:
    """Give the planned stream its ledger, and record that in the state of every shard. Each shard is taken over for
    it, so its worker is fenced and has to begin again.

    Return the last stable offset of the stream's first partition: sequences up to this number stay offset + 1. Return
    -1 if the ledger existed before. Raises Fenced if the service keeps taking a shard back, SourceUnavailable,
    OverlayError. Finished steps stay done, and another call continues after them.
    """
    service, name = loaded.service, plan.stream.name
    async with connect(service.kafka) as (admin, client):
        identity = plan.identity or await _make_topic(admin, loaded, plan)
        mark = Delta(topics={(name, plan.topic): identity})

        def join(state: ShardState) -> Delta:
            return mark if state.topics.get((name, plan.topic)) != identity else Delta()

        cut = -1
        if plan.shards > 1:
            await amend(service, admin, join)
        if not plan.is_begun:
            cut = await _cut(client, admin, loaded, plan, mark)
        if plan.shards > 1 or plan.is_begun:
            await amend(service, admin, lambda state: mark)
        return cut


async def _cut(client: AIOKafkaClient, admin: Admin, loaded: Loaded, plan: Extension, mark: Delta) -> int:
    """Take over the shard that keeps the stream and commit the first ledger entry, by which sequences stay offset + 1
    up to the last stable offset. `mark`: recorded in the state in the same transaction.

    Return that offset, or -1 if the ledger already has an entry, which another process has written.
    """
    cut = -1

    async def write(transactions: Transactions, state: ShardState) -> None:
        """Commit the first ledger entry and set `cut`; do nothing if there is an entry already."""
        nonlocal cut
        assert plan.first is not None
        await transactions.end_lost(await transactions.find_partitions([plan.topic]))
        if (await _read_index(client, admin, plan.stream, plan.topic, whole=True)).ledger.next_sequence > 1:
            return
        end = (await find_ends(client, admin, (plan.first,)))[plan.first]
        first = write_round(plan.topic, plan.stream.name, extend(plan.first, end), now_ms())
        await transactions.begin()
        value = encode(state.sign().merge(mark), after=state.end)
        await transactions.finish(value, [first], after=state.end)
        cut = end.position

    await own_shard(loaded.service, client, admin, shard_of((plan.stream.name,), plan.shards), write)
    return cut


async def _read_index(
    client: AIOKafkaClient, admin: Admin, stream: StreamConfig, topic: str, *, whole: bool = False
) -> Index:
    """Read the stream's index topic up to its last stable offset, and return its chunk headers and
    ledger. Unless the caller owns the shard that keeps the stream, another process may add entries
    meanwhile. `whole`: read up to the high watermark, and wait for what is not committed yet. Raises SourceUnavailable."""
    index = Index(stream)
    index.position, end = (await admin.find_bounds([(topic, 0)], committed=not whole))[topic, 0]
    await index.read(client, topic, end)
    return index


async def _make_topic(admin: Admin, loaded: Loaded, plan: Extension) -> str:
    """Create the stream's index topic and return Kafka's id of it. Raises OverlayError if Kafka
    refuses."""
    sources = await admin.find_topics(plan.stream.topic_names)
    made, refused = await create_topics(admin, loaded.service, {plan.topic: index_config(sources.values())})
    if plan.topic in refused:
        raise OverlayError(f"topic {plan.topic} is needed for the ledger: {refused[plan.topic]}")
    return made[plan.topic].identity
