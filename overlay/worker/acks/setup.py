"""A session's desk as its state remembers it, and the clerk who works at it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from aiokafka.client import AIOKafkaClient

from overlay.clock import now_ns
from overlay.config import ConsumerConfig, Loaded, fill_defaults
from overlay.consumer.acks import acks_topic
from overlay.dispatch.ack_decoder import Hearing
from overlay.dispatch.ack_offsets import Since
from overlay.dispatch.dispatcher import Desk
from overlay.dispatch.effect_encoder import Printing
from overlay.dispatch.reply_address import make_rule
from overlay.dispatch.reply_sender import Answering
from overlay.dispatch.served_consumer import Beginning, Seat, seat
from overlay.kafka.admin import Admin, OffsetSpec
from overlay.kafka.log_position import Mark, Source
from overlay.logs import get_logger
from overlay.metrics import Metrics
from overlay.state.shard_state import ConsumerId, ShardState
from overlay.worker.assignment import Roster
from overlay.worker.commit.commits import Commits
from overlay.worker.cursors.positions import Positions

from .ack_starts import find_shared, is_another, is_new, settle
from .ack_topics import Listening, Place
from .dispatch_loop import Clerk
from .refetch import Recall, locate_by, locate_in

log = get_logger(__name__)


async def open_clerk(
    client: AIOKafkaClient,
    admin: Admin,
    metrics: Metrics,
    loaded: Loaded,
    roster: Roster,
    state: ShardState,
    positions: Positions,
    commits: Commits,
    answering: Answering,
) -> Clerk | None:
    """The clerk for the roster's consumers that have a machine; None without any."""
    machines = roster.machines
    if not machines:
        return None
    prefix = loaded.service.topics.prefix
    streams = sorted({stream for stream, _ in machines})
    since, marks = await _find_acks(admin, metrics, prefix, streams, roster, state)
    positions.heard |= {consumer: state.consumers[consumer].heard for consumer in machines}
    hearings = {
        stream: Hearing(
            stream,
            [name for name_of, name in machines if name_of == stream],
            [name for name_of, name in loaded.consumers if name_of == stream],
            make_rule(loaded.service.topics),
        )
        for stream in streams
    }
    locates = {
        stream: locate_by(roster.ledgers[stream])
        if stream in roster.ledgers
        else locate_in(roster.sources[stream].partitions[0])
        for stream in streams
    }
    commits.has_machines = True
    return Clerk(
        Desk(_fill_seats(roster, state, machines, commits.transactions.incarnation), Printing(prefix)),
        client,
        Listening(admin, metrics, since, marks, {topic: facts.identity for topic, facts in roster.outputs.items()}),
        hearings,
        Recall(client, admin, roster.streams, locates),
        positions,
        commits,
        metrics,
        answering,
    )


def _fill_seats(
    roster: Roster, state: ShardState, machines: Mapping[ConsumerId, ConsumerConfig], incarnation: str
) -> dict[ConsumerId, Seat]:
    seats: dict[ConsumerId, Seat] = {}
    for consumer, config in machines.items():
        known = state.consumers[consumer]
        sources = roster.sources[consumer[0]].partitions
        starts = {s: mark.position if (mark := state.mark_of(consumer, s)) else roster.starts[s] for s in sources}
        first = {s: max(at, known.floor.get(s, 0)) for s, at in starts.items()}
        ledger = roster.ledgers.get(consumer[0])
        start = 1 + (
            min(first.values()) if ledger is None else min(ledger.sequence_from(s, at) for s, at in first.items()) - 1
        )
        last, records = known.replay_until or 0, state.machines.pop(consumer, ())
        beginning = Beginning(start, known.sequence, last, records, incarnation)
        reader = roster.readers[consumer]
        seats[consumer] = seat(
            fill_defaults(config),
            beginning,
            now_ns(),
            reader.outlet if config.is_push else None,
            reader.letters,
        )
    return seats


async def _find_acks(
    admin: Admin, metrics: Metrics, prefix: str, streams: Iterable[str], roster: Roster, state: ShardState
) -> tuple[dict[Place, Since], dict[Place, Mark]]:
    """Where to go on reading acks, by stream and partition, for each consumer and for those that share a position; the state
    takes note of it."""
    found: dict[Place, Since] = {}
    marks: dict[Place, Mark] = {}
    for stream in streams:
        topic = acks_topic(prefix, stream)
        facts = roster.outputs[topic]
        sources = [(topic, partition) for partition in range(facts.partitions)]
        ends: dict[Source, int] = {}
        if is_new(state, stream, topic):
            ends = await admin.find_offsets(sources, OffsetSpec.latest())
        elif is_another(state, stream, topic, facts.identity):
            metrics.ack_logs_lost.labels(stream).inc()
            log.error("the ack topic was created again: acks that were not read are lost", stream=stream, topic=topic)
        shared = find_shared(state, stream, sources, facts.identity, ends)
        since, delta = settle(state, stream, shared, facts.identity, roster.machines.keys())
        state.apply(delta)
        found |= {(stream, source): each for source, each in since.items()}
        marks |= delta.acks
    return found, marks
