"""Retention of index topics while a session runs.

A session notices if a source's retention is raised, and raises that of the index topic
(overlay/index/retention.py). It never lowers it: an operator may want to keep more.
"""

from __future__ import annotations

import asyncio

from overlay.errors import OverlayError
from overlay.index.retention import find_changes
from overlay.kafka.admin import Admin
from overlay.logs import get_logger
from overlay.worker.assignment import Assignment

log = get_logger(__name__)

EVERY_S = 300.0
"""Seconds between two looks at the sources' retention."""


async def follow_retention(
    admin: Admin, assignment: Assignment, told: dict[str, str], every_s: float = EVERY_S
) -> None:
    """Every `every_s` seconds, raise the retention of the index topics that are kept here if it is shorter than their
    stream's topics need (overlay/index/retention.py), and lift a limit of their size. Runs until cancelled. An
    OverlayError is logged, and the topics are looked at again the next time.

    `told`: by topic, the refusal by Kafka that was logged last; updated here. A refusal is logged again when its
    reason or the wanted settings are others.
    """
    while True:
        for stream, topic in assignment.index_topics.items():
            try:
                await _extend(admin, assignment, stream, topic, told)
            except OverlayError as error:
                log.warning("the retention of an index topic is not known", stream=stream, reason=str(error))
        await asyncio.sleep(every_s)


async def _extend(admin: Admin, assignment: Assignment, stream: str, topic: str, told: dict[str, str]) -> None:
    """Raise the retention of one index topic if it is shorter than its stream's topics need, and lift a limit of its
    size. A refusal by Kafka is logged if it differs from the one in `told`, by topic. Raises OverlayError if the
    topics cannot be looked up.
    """
    names = assignment.streams[stream].topic_names
    found = await admin.find_topics([topic, *names])
    if topic not in found or not all(name in found for name in names):
        return  # the session is about to end for it
    changes = find_changes(found[topic], [found[name] for name in names])
    if not changes:
        told.pop(topic, None)
        return
    if refusal := await admin.alter_topic(topic, changes):
        cause = f"{refusal}: {changes}"
        if told.get(topic) == cause:
            return
        told[topic] = cause
        tell = log.error if stream in assignment.ledgers else log.info
        event = "the index topic forgets earlier than the stream's topics do, and may not be altered"
        tell(event, stream=stream, topic=topic, wanted=changes, reason=refusal)
        return
    told.pop(topic, None)
    log.info(
        "the index topic keeps longer now what its stream's topics keep", stream=stream, topic=topic, config=changes
    )
