"""Reports of a running service: readiness, streams, and consumers with their positions, lag and
rates."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

from overlay.clock import now_ms, now_ns
from overlay.config import Loaded
from overlay.config.consumer import Engine
from overlay.control.responses import describe_acks
from overlay.state.lag import Lags
from overlay.state.shard_state import ConsumerId
from overlay.units import format_time

from .cursors.cursor import find_tail
from .job_watch import JobStandings
from .places import find_places
from .rates import Rates
from .stream_report import find_stops, report_streams, report_waits

if TYPE_CHECKING:
    from .assignment import Assignment
    from .session import Session
    from .shard import Shard

PARKED = "too many messages that were read for it wait to be delivered: more are read when there are fewer"
"""The reason of a consumer that is parked (backpressure.py)."""


def report_service(
    loaded: Loaded,
    sessions: list[Session],
    rates: Rates,
    lags: Lags,
    elsewhere: Collection[ConsumerId],
    jobs: JobStandings,
) -> dict[str, Any]:
    """Return the bodies of /streams and /consumers, by the keys `streams` and `consumers`. Sets the
    present places of the consumers in `lags`. `elsewhere`: consumers whose shards other workers
    own. `jobs`: of the consumers that Spark jobs deliver."""
    now = now_ms()
    for session in sessions:
        lags.note(find_places(session, rates.newest), now)
    return {
        "streams": list(report_streams(loaded, sessions, rates, sorted(loaded.streams), elsewhere)),
        "consumers": [
            report_consumer(loaded, sessions, rates, lags, consumer, consumer in elsewhere, jobs)
            for consumer in sorted(loaded.consumers)
        ],
    }


def report_readiness(loaded: Loaded, shards: Iterable[Shard], trouble: str) -> dict[str, Any]:
    """Return the body of /readyz. `trouble`: why the worker serves no shards, empty if it does.

    Ready means that `trouble` is empty and that each of these shards that has consumers is served.
    Stalled consumers and stopped streams are among the reasons, and do not make the worker unready."""
    shards = list(shards)
    sessions = [shard.session for shard in shards if shard.session is not None]
    served = [shard for shard in shards if shard.mine]
    reasons = [trouble] if trouble else []
    reasons += [f"shard {s.number}: {s.trouble or 'starting'}" for s in served if s.session is None]
    stalled = {id: why for session in sessions for id, why in session.assignment.stalled.items()}
    reasons += [f"{id[0]}/{id[1]}: {stalled[id]}" for id in sorted(stalled.keys() & loaded.consumers.keys())]
    stops = find_stops(sessions)
    reasons += [f"{name}: {stops[name]}" for name in sorted(stops.keys() & loaded.streams.keys())]
    return {"ready": not trouble and all(shard.session is not None for shard in served), "reasons": reasons}


def report_consumer(
    loaded: Loaded,
    sessions: list[Session],
    rates: Rates,
    lags: Lags,
    consumer: ConsumerId,
    is_elsewhere: bool,
    jobs: JobStandings,
) -> dict[str, Any]:
    """Return what /consumers says of one consumer of `loaded`. `lags`: have its present places.
    `is_elsewhere`: whether another worker owns its shard. `jobs`: of the consumers that Spark jobs deliver. The `positions`,
    by partition, are the offsets from which the lag counts."""
    now = now_ms()
    config = loaded.consumers[consumer]
    found: dict[str, Any] = {
        "stream": consumer[0],
        "name": consumer[1],
        "deliver_subject": config.deliver_subject,
        "filters": list(config.filters),
        "filter": config.filter.model_dump(exclude_defaults=True),
        "state": "spark" if config.engine is Engine.SPARK else "elsewhere" if is_elsewhere else "starting",
        "reason": "",
        "delivered": rates.delivered[consumer],
        "dead_letters": dict(rates.dead_letters.get(consumer, {})),
        "rate": rates.of_consumer(consumer, now),
    }
    lag = lags.find(consumer, now)
    found["lag_seconds"] = lag.seconds
    if config.engine is Engine.SPARK:
        return found | jobs.describe(consumer, lag, now)
    for session in sessions:
        if trouble := _find_trouble(session.assignment, consumer):
            found |= trouble
        elif consumer in session.assignment.readers:
            found |= _place(session, consumer)
            found["positions"] = {
                f"{topic}-{number}": at for (topic, number), at in lags.list_positions(consumer).items()
            }
        if session.dispatch_loop is not None and (
            info := session.dispatch_loop.machine_facts.find_info(consumer, now_ns())
        ):
            found["acks"] = describe_acks(info)
        if consumer in session.assignment.readers:
            found |= _count_pending(session, consumer)
    if found["state"] in ("running", "catching up", "parked") and (config.pause_until or 0) > now_ns():
        assert config.pause_until is not None
        found |= {"state": "paused", "reason": f"until {format_time(config.pause_until)}"}
    if not is_elsewhere:
        found["lag_records"] = lag.records
    return found


def _find_trouble(assignment: Assignment, consumer: ConsumerId) -> dict[str, str]:
    """Return why a session does not serve a consumer of its shard, by the keys `state` (stalled, stopped or waiting) and
    `reason`; empty if nothing keeps it from that."""
    if consumer in assignment.stalled:
        return {"state": "stalled", "reason": assignment.stalled[consumer]}
    if consumer[0] in assignment.stopped:
        state = "waiting" if consumer[0] in assignment.blocked else "stopped"
        return {"state": state, "reason": assignment.stopped[consumer[0]]}
    return {}


def _place(session: Session, consumer: ConsumerId) -> dict[str, Any]:
    """Return what the cursors tell of a consumer that is being served, by the keys `state` (starting,
    catching up, running, parked, waiting or stopped), `reason`, and `consumer_sequence`."""
    standing, halts = session.cursors.standing(consumer), session.cursors.halts
    held = session.assignment.held.get(consumer[0])
    if standing.parked is not None:
        return {"state": "parked", "reason": PARKED, "consumer_sequence": standing.sequence}
    stops: list[str] = []
    waits = [
        f"{place} waits for schema {wait['schema']} of the registry since {wait['since']}: {wait['reason'] or 'asking'}"
        for place, wait in report_waits([session], consumer[0]).items()
    ]
    is_known, catching_up = True, False
    for (stream, source), cursors in session.cursors.partitions():
        for cursor in cursors:
            if stream == consumer[0] and consumer in cursor.members:
                if cursor.is_halted:
                    stops.append(str(halts[stream, source]))
                # the first response tells where the log ends
                is_known &= cursor.stable_end >= 0
                tail = find_tail(cursors)
                catching_up |= tail is None or cursor.is_alone or cursor.position < tail.position
    state = "starting" if not is_known else "catching up" if catching_up else "running"
    if held is not None:
        state, waits = "waiting", [held]
    return {
        "state": "stopped" if stops else state,
        "reason": "; ".join(dict.fromkeys(stops or waits)),
        "consumer_sequence": standing.sequence,
    }


def _count_pending(session: Session, consumer: ConsumerId) -> dict[str, Any]:
    """Return how many messages a consumer has still to be delivered, under the key `num_pending`, and in `num_pending_is`
    whether that is `exact`, an `estimate`, or only `at least` so many.

    Empty if the number is unknown and no message is known.
    """
    machine_facts = session.dispatch_loop.machine_facts if session.dispatch_loop is not None else None
    has_machine = machine_facts is not None and consumer in machine_facts.facts
    if (known := _count_ahead(session, consumer)) is None:
        least = machine_facts.count_pending(consumer) if machine_facts is not None and has_machine else 0
        return {"num_pending": least, "num_pending_is": "at least"} if least else {}
    count, is_exact = known
    if machine_facts is not None and has_machine:
        count += machine_facts.count_offered(consumer)
    return {"num_pending": count, "num_pending_is": "exact" if is_exact else "estimate"}


def _count_ahead(session: Session, consumer: ConsumerId) -> tuple[int, bool] | None:
    """Return how many matching records the consumer's cursors have still to read, and whether that is exact; None if
    unknown, as for a consumer without cursors."""
    count, is_exact = 0, True
    for (stream, source), cursors in session.cursors.partitions():
        if stream != consumer[0]:
            continue
        cursor = next((cursor for cursor in cursors if consumer in cursor.members), None)
        if cursor is None or cursor.stable_end < 0:
            return None
        if cursor.position < cursor.stable_end:
            if (sight := session.pending_estimate.find(consumer, source)) is None:
                return None
            count += sight.count
            is_exact &= sight.is_exact and sight.end >= cursor.stable_end
    return count, is_exact
