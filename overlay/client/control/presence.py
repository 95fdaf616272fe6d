"""Whether any service runs that could answer a request: the members of the group of workers.

Every worker is a member of the group `<prefix>.workers` for as long as it runs. Kafka keeps a worker
that was killed in the group until its session times out. A worker that starts is not in it yet.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Future

from overlay.errors import OverlayError
from overlay.jobs import run_apart
from overlay.kafka.own_topics import workers_group
from overlay.kafka.properties import Properties


async def count_workers(kafka: Properties, prefix: str) -> int | None:
    """Return how many workers of the service with this prefix are members of their group now. None
    if that cannot be learnt: Kafka is not reachable, or this user has no right to describe the
    group.
    """
    # most commands get their answer without this client, whose import takes longer than the answer
    from overlay.kafka.admin import Admin

    try:
        async with Admin(kafka) as admin:
            return await admin.count_members(workers_group(prefix))
    except OverlayError:
        return None


class WorkerWatch:
    """A watch, while a caller waits for an answer, over whether any worker runs. It looks in a thread
    of its own.

    `delay_s`: seconds without an answer before the first look. After a look that learnt how many
    workers run, even none, the next one begins `pause_s` seconds later; after one that learnt nothing,
    there is no other.
    """

    def __init__(self, kafka: Properties, prefix: str, delay_s: float, pause_s: float) -> None:
        self._kafka, self._prefix, self._pause_s = kafka, prefix, pause_s
        self._wait_s = delay_s
        self._look: Future[int | None] | None = None
        self._is_over = False

    def finds_none(self, waited_s: float) -> bool:
        """Return True if a look has ended since the last call and has found that no worker runs, else
        False. Begins a look if one is due. Never blocks, so call it again and again.

        `waited_s`: seconds for which the caller has waited for its answer.
        """
        if self._look is None:
            if not self._is_over and waited_s >= self._wait_s:
                self._look = run_apart(lambda: asyncio.run(count_workers(self._kafka, self._prefix)), "overlay-look")
            return False
        if not self._look.done():
            return False
        found, self._look = self._look.result(), None
        self._wait_s = waited_s + self._pause_s
        # where Kafka does not tell once, it will not tell later either
        self._is_over = found is None
        return found == 0
