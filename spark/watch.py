"""A watch on how far the consumers of a job are behind, as the service watches its own: beside the query, so that the lag of a
job that hangs goes on growing.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from overlay.clock import now_ms
from overlay.errors import OverlayError
from overlay.kafka.admin import Admin
from overlay.kafka.properties import Properties
from overlay.logs import get_logger
from overlay.state.job_plan import BatchPlan
from overlay.state.job_positions import InJob, find_in_jobs, find_job_places
from overlay.state.lag import Lag, Lags
from overlay.state.lag_watch import LagWatch, find_ends
from overlay.state.plan_reader import PlanReader
from overlay.state.shard_state import ConsumerId
from overlay.waits import is_set_within, unless

log = get_logger(__name__)

LOOK_S = 5.0
"""Seconds between two looks."""

Show = Callable[[BatchPlan, dict[str, Lag]], None]
"""Is given the last plan of the job, and the lag of each of its consumers by name."""


@dataclass(slots=True)
class LagWatcher:
    """Looks at the last plan of a job in Kafka and at the ends of the logs that the job reads, every LOOK_S seconds in a thread
    of its own. `show`: called in that thread after each look, also if the look has failed once there is a plan.
    """

    kafka: Properties
    prefix: str
    job: str
    show: Show
    _lags: Lags = field(default_factory=Lags)
    _plan: BatchPlan | None = None

    @contextmanager
    def run(self) -> Iterator[None]:
        """Watch within the block. The end of the block waits for the thread."""
        loop, stop = asyncio.new_event_loop(), asyncio.Event()
        thread = threading.Thread(target=loop.run_until_complete, args=[self._watch(stop)], name="lag", daemon=True)
        thread.start()
        try:
            yield
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join()
            loop.close()

    async def _watch(self, stop: asyncio.Event) -> None:
        """Look until `stop`. An error is logged, and the next look tries again: an unknown lag ends no job."""
        while not stop.is_set():
            try:
                async with Admin(self.kafka) as admin:
                    reader = PlanReader(self.kafka, admin, self.prefix)
                    while await unless(stop, self._look(admin, reader)):
                        self._show()
                        await is_set_within(stop, LOOK_S)
            except OverlayError as error:
                log.debug("the lag is not known for now", job=self.job, reason=str(error))
            except Exception as error:  # noqa: BLE001 - of any library; deliveries do not depend on the lag
                log.warning("the lag is not known for now", job=self.job, reason=f"{type(error).__name__}: {error}")
            self._show()
            await is_set_within(stop, LOOK_S)

    async def _look(self, admin: Admin, reader: PlanReader) -> None:
        """Ask Kafka once where the consumers are and how old the records are that they wait for. Raises OverlayError."""
        plans = await reader.read([self.job])
        self._plan = plans.get(self.job)
        if self._plan is None:
            return
        found = _list_consumers(self.job, self._plan)
        ends = await find_ends(admin, {source for each in found.values() for source in each.position.offsets})
        self._lags.note(find_job_places(found, ends), now_ms())
        await LagWatch(self.kafka, admin, self._lags, lambda: None).look()

    def _show(self) -> None:
        if (plan := self._plan) is not None:
            now = now_ms()
            self.show(plan, {name: self._lags.find((plan.name, name), now) for name in plan.consumers})


def _list_consumers(job: str, plan: BatchPlan) -> dict[ConsumerId, InJob]:
    """Return the consumers that a job delivers by its last plan."""
    ids = [(plan.name, name) for name in plan.consumers]
    return {id: found for id in ids if (found := find_in_jobs(id, None, {job: plan})) is not None}
