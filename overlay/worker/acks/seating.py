"""A session's desk as its state remembers it, and the clerk who works at it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from aiokafka.client import AIOKafkaClient

from overlay.admin import Admin, OffsetSpec
from overlay.clock import now_ns
from overlay.config import ConsumerConfig, Loaded, fill_defaults
from overlay.consumer.acks import acks_topic
from overlay.deliver.answering import Answering
from overlay.deliver.replies import make_rule
from overlay.deliver.state import ConsumerId, ShardState
from overlay.desk.desk import Desk
from overlay.desk.hearing import Hearing
from overlay.desk.printing import Printing
from overlay.desk.seat import Beginning, Seat, seat
from overlay.metrics import Metrics
from overlay.source.mark import Source

from ..commits import Commits
from ..roster import Roster
from ..round.positions import Positions
from .clerk import Clerk
from .listening import Listening
from .recall import Recall, locate_by, locate_in


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
    heard = await _find_acks(admin, prefix, streams, roster, state)
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
        Listening(admin, metrics, heard),
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
    admin: Admin, prefix: str, streams: Iterable[str], roster: Roster, state: ShardState
) -> dict[tuple[str, Source], int]:
    """Where to go on reading acks: where the state says, else at the end."""
    places = {}
    for stream in streams:
        topic = acks_topic(prefix, stream)
        for partition in range(roster.outputs[topic].partitions):
            places[stream, (topic, partition)] = state.acks.get((stream, (topic, partition)))
    ends = await admin.find_offsets((s for (_, s), at in places.items() if at is None), OffsetSpec.latest())
    return {place: ends[place[1]] if at is None else at for place, at in places.items()}
