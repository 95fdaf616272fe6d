"""Watching what a session was built on: topics that change, and reasons to begin a new session."""

from __future__ import annotations

import asyncio
import time

import structlog

from overlay.admin import Admin, TopicFacts
from overlay.errors import SourceChanged, SourceUnavailable

from .roster import Roster

log = structlog.get_logger(__name__)

EVERY_S = 5.0


async def watch_topics(admin: Admin, roster: Roster, until: float) -> str:
    """Look at the source topics every few seconds; returns the reason for a new session once there is one.

    `until`: monotonic time at which stalled consumers are tried again. Raises SourceChanged when a topic that is being read
    has gone or was created again: what was read since then must not be committed.
    """
    before = roster.topics
    while True:
        await asyncio.sleep(min(EVERY_S, max(0.1, until - time.monotonic())))
        if time.monotonic() >= until:
            return "stalled consumers are tried again"
        try:
            now = await admin.find_topics(before, with_config=False, denied={})
        except SourceUnavailable as error:
            log.warning("topics cannot be looked at", reason=str(error))
            continue
        for name, was in before.items():
            if reason := _difference(name, was, now.get(name), roster.is_served(name)):
                return reason


def _difference(name: str, was: TopicFacts | None, now: TopicFacts | None, served: bool) -> str:
    """Why a topic calls for a new session; empty when it does not."""
    if was is None or now is None:
        if served and now is None:
            raise SourceChanged(f"topic {name} was deleted")
        return "" if was is now else f"topic {name} was created"
    if was.identity != now.identity:
        if served:
            raise SourceChanged(f"topic {name} was deleted and created again")
        return f"topic {name} was created again"
    return (
        ""
        if was.partitions == now.partitions
        else f"topic {name} has {now.partitions} partitions, had {was.partitions}"
    )
