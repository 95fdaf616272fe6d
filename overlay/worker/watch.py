"""A watch on the topics of a session, for changes that require a new session.

If a source topic is deleted or replaced, the session ends at once: what was read since must not be
committed. If an output topic accepts no more records, it ends at once as well, since a transaction
would wait for that topic and hold up all consumers. The next session creates a deleted output topic
again, and leaves out a faulty one. All other changes wait until what is under way is committed. One of them is the end of
a transaction behind which a stream's ledger is (kept/blocked.py). Such a transaction that begins while the session follows
the ledger is no reason for a new one, and is only told (kept/following.py).
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from overlay.clock import monotonic
from overlay.errors import DeliveryFailed, SourceChanged, SourceUnavailable
from overlay.kafka.admin import Admin, TopicFacts
from overlay.logs import get_logger
from overlay.output.topics import find_fault

from .kept.blocked import find_ended
from .kept.following import Following

log = get_logger(__name__)

EVERY_S = 1.0
"""Seconds between two looks."""
TOPICS_A_SECOND = 200
"""With more topics than this, the looks are less frequent."""


async def watch_topics(admin: Admin, following: Following, until: float) -> str:
    """Look at the session's topics about every second, or less often if there are many, until there is a reason for a
    new session. Return the reason.

    `until`: monotonic time in seconds at which the consumers, streams and indexes that were left out are tried again,
    which is such a reason. Raises SourceChanged if a topic that is being read was deleted or created again, or may
    not be read any more. Raises DeliveryFailed if an output topic, or another topic that consumers need, was deleted
    or accepts no more records. While Kafka does not answer, the looks go on.
    """
    assignment = following.assignment
    while True:
        # outputs come and go with consumers while the session runs
        outputs = dict(assignment.outputs)
        names = {*assignment.topics, *outputs}
        pause = max(EVERY_S, len(names) / TOPICS_A_SECOND)
        await asyncio.sleep(min(pause, max(0.1, until - monotonic())))
        if monotonic() >= until:
            return "stalled consumers and stopped streams are tried again"
        denied: dict[str, str] = {}
        try:
            now = await admin.find_topics(names, with_config=False, denied=denied)
        except SourceUnavailable as error:
            log.warning("topics cannot be looked at", reason=str(error))
            continue
        # a topic that may not be read ends the session at once only if it is in use
        for name, was in assignment.topics.items():
            if name in denied and assignment.is_served(name):
                raise SourceChanged(denied[name])
            if reason := _difference(name, was, now.get(name), assignment.is_served(name)):
                return reason
        for name, output in outputs.items():
            if (
                name in assignment.outputs
                and name not in denied
                and (reason := _judge_output(name, output, now.get(name)))
            ):
                return reason
        if assignment.blocked and (reason := await find_ended(admin, assignment.blocked.values())):
            return reason
        await following.look(admin)


def _difference(name: str, was: TopicFacts | None, now: TopicFacts | None, served: bool) -> str:
    """Return why a change of a source or ledger topic requires a new session, empty if it does not. `was`, `now`:
    None for a missing topic. `served`: whether it is being read; then SourceChanged is raised if it is missing now or
    was replaced.
    """
    if was is None or now is None:
        if served and now is None:
            raise SourceChanged(f"topic {name} was deleted")
        if was is now:
            return ""
        return f"topic {name} was created" if was is None else f"topic {name} was deleted, or may not be read any more"
    if was.identity != now.identity:
        if served:
            raise SourceChanged(f"topic {name} was deleted and created again")
        return f"topic {name} was created again"
    return (
        ""
        if was.partitions == now.partitions
        else f"topic {name} has {now.partitions} partitions, had {was.partitions}"
    )


def _judge_output(name: str, was: TopicFacts, now: TopicFacts | None) -> str:
    """Return why a change of an output topic requires a new session, empty if it does not. Raises
    DeliveryFailed if it was deleted, or accepts no records any more."""
    if now is None:
        raise DeliveryFailed(name, 0, "the topic was deleted", final=False)
    fault, before = find_fault(replace(now, config=was.config)), find_fault(was)
    if fault and not before:
        raise DeliveryFailed(name, 0, fault, final=False)
    if before and not fault:
        return f"output topic {name} takes records again"
    if was.identity != now.identity:
        return f"output topic {name} was created again"
    return (
        ""
        if was.partitions == now.partitions
        else f"output topic {name} has {now.partitions} partitions, had {was.partitions}"
    )
