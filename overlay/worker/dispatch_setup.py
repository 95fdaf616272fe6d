"""Setup of a session's dispatcher from the shard's state, and of the dispatch loop around it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from aiokafka.client import AIOKafkaClient

from overlay.chance import draw_secret
from overlay.clock import now_ns
from overlay.config import ConsumerConfig, Loaded, fill_defaults
from overlay.dispatch.ack_decoder import AckDecoder
from overlay.dispatch.ack_offsets import AckOffsets
from overlay.dispatch.ack_starts import find_shared, is_another, is_new, settle
from overlay.dispatch.dispatcher import Dispatcher
from overlay.dispatch.effect_encoder import EffectEncoder
from overlay.dispatch.served_consumer import Beginning, ConsumerSlot, slot
from overlay.kafka.admin import Admin, OffsetSpec
from overlay.kafka.log_position import LogPosition, TopicPartition
from overlay.kafka.own_topics import acks_topic
from overlay.kafka.passed_over import OnPassedOver
from overlay.logs import get_logger
from overlay.metrics import Metrics
from overlay.output.transaction import PlainSender
from overlay.replies.reply_address import make_rule
from overlay.replies.reply_sender import ReplySender
from overlay.state.shard_state import ConsumerId, ConsumerState, ShardState, StreamPartition

from .assignment import Assignment
from .commit.commits import Commits
from .cursors.cursors import Cursors
from .dispatch_io.ack_topics import AckTopics
from .dispatch_io.refetch import Refetch, locate_by, locate_in
from .dispatch_loop import DispatchLoop

log = get_logger(__name__)


async def open_dispatch_loop(
    client: AIOKafkaClient,
    admin: Admin,
    metrics: Metrics,
    loaded: Loaded,
    assignment: Assignment,
    state: ShardState,
    cursors: Cursors,
    commits: Commits,
    reply_sender: ReplySender,
    plain: PlainSender | None,
    on_passed_over: OnPassedOver,
) -> DispatchLoop | None:
    """Return the dispatch loop for the assignment's consumers with machines, ready to run; None if
    there are none.

    Moves the machines' saved records from `state` into the loop, and records in `state` where
    reading of the ack topics begins. Tells `commits` that there are machines. Raises
    SourceUnavailable.
    """
    machines = assignment.machines
    if not machines:
        return None
    prefix = loaded.service.topics.prefix
    streams = sorted({stream for stream, _ in machines})
    since, log_positions = await _find_acks(admin, metrics, prefix, streams, assignment, state)
    for consumer in machines:
        cursors.note_heard(consumer, state.consumers[consumer].heard)
    ack_decoders = {
        stream: AckDecoder(
            stream,
            [name for name_of, name in machines if name_of == stream],
            [name for name_of, name in loaded.consumers if name_of == stream],
            make_rule(loaded.service.topics),
        )
        for stream in streams
    }
    locates = {
        stream: locate_by(assignment.ledgers[stream])
        if stream in assignment.ledgers
        else locate_in(assignment.sources[stream].partitions[0])
        for stream in streams
    }
    commits.has_machines = True
    assignment.heard.update(streams)
    return DispatchLoop(
        Dispatcher(_fill_slots(assignment, state, machines, commits.transactions.owner), EffectEncoder(prefix)),
        client,
        AckTopics(
            admin, metrics, since, log_positions, {topic: facts.identity for topic, facts in assignment.outputs.items()}
        ),
        ack_decoders,
        Refetch(client, admin, assignment.streams, locates),
        cursors,
        commits,
        metrics,
        reply_sender,
        plain,
        on_passed_over,
    )


def _fill_slots(
    assignment: Assignment, state: ShardState, machines: Mapping[ConsumerId, ConsumerConfig], owner: str
) -> dict[ConsumerId, ConsumerSlot]:
    """Return the dispatcher's slot of each consumer with a machine: its config, its saved state and
    where it begins. Removes the machines' saved records from `state`.

    `owner`: the name of this ownership of the shard. With a secret of the consumer it becomes the
    incarnation that tokens name. No two are the same, whatever is drawn, since no two owners are.
    """
    slots: dict[ConsumerId, ConsumerSlot] = {}
    for consumer, config in machines.items():
        starts = {
            s: log_position.position if (log_position := state.log_position_of(consumer, s)) else assignment.starts[s]
            for s in assignment.sources[consumer[0]].partitions
        }
        records = state.machines.pop(consumer, ())
        slots[consumer] = make_slot(assignment, config, state.consumers[consumer], starts, records, owner)
    return slots


def make_slot(
    assignment: Assignment,
    config: ConsumerConfig,
    known: ConsumerState,
    starts: Mapping[TopicPartition, int],
    records: Sequence[bytes],
    owner: str,
) -> ConsumerSlot:
    """Return the dispatcher's slot of one consumer among the readers of `assignment`. `known`: what the state has of it.
    `starts`: its offset in each partition of its stream. `records`: of its machine, none if it is new. `owner`: as in
    `_fill_slots`.
    """
    first = {s: max(at, known.floor.get(s, 0)) for s, at in starts.items()}
    ledger = assignment.ledgers.get(config.stream)
    start = 1 + (
        min(first.values()) if ledger is None else min(ledger.sequence_from(s, at) for s, at in first.items()) - 1
    )
    beginning = Beginning(start, known.sequence, known.replay_until or 0, records, f"{owner}-{draw_secret()}")
    reader = assignment.readers[config.id]
    return slot(
        fill_defaults(config),
        beginning,
        now_ns(),
        reader.output_topic if config.is_push else None,
        reader.dead_letter_topic,
    )


async def _find_acks(
    admin: Admin, metrics: Metrics, prefix: str, streams: Iterable[str], assignment: Assignment, state: ShardState
) -> tuple[dict[StreamPartition, AckOffsets], dict[StreamPartition, LogPosition]]:
    """Find where to go on reading the ack topics of `streams`, and record it in `state`. Return two mappings by
    stream and partition of its ack topic: the first offset that is new for each consumer, and the log position that
    the consumers which are not behind share.

    A topic that is new here is read from its last stable offsets, one that was created again from its start.
    """
    found: dict[StreamPartition, AckOffsets] = {}
    log_positions: dict[StreamPartition, LogPosition] = {}
    for stream in streams:
        topic = acks_topic(prefix, stream)
        facts = assignment.outputs[topic]
        sources = [(topic, partition) for partition in range(facts.partitions)]
        ends: dict[TopicPartition, int] = {}
        if is_new(state, stream, topic):
            ends = await admin.find_offsets(sources, OffsetSpec.latest())
        elif is_another(state, stream, topic, facts.identity):
            metrics.ack_logs_lost.labels(stream).inc()
            log.error("the ack topic was created again: acks that were not read are lost", stream=stream, topic=topic)
        shared = find_shared(state, stream, sources, facts.identity, ends)
        since, delta = settle(state, stream, shared, facts.identity, assignment.machines.keys())
        state.apply(delta)
        found |= {(stream, source): each for source, each in since.items()}
        log_positions |= delta.acks
    return found, log_positions
