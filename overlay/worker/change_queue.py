"""Changes that were handed to a running session, from there until what they record is committed.

The shard waits for each of them (shard.py). The session's reading loop takes them up between two rounds, in the order in which
they came; changes.py says which ones, and what a change is.
"""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from overlay.clock import now_ms
from overlay.logs import get_logger
from overlay.state.shard_state import Delta

from .assignment import Assignment
from .changes import Change, can_take_up
from .commit.commits import Commits, CommitUnit
from .commit.counting import Counting
from .cursors.cursors import Cursors
from .round.pending_estimate import PendingEstimate
from .round.pipeline import Pipeline

log = get_logger(__name__)


@dataclass(slots=True)
class ChangeQueue:
    """The changes of one session, and the parts of it that they change."""

    assignment: Assignment
    cursors: Cursors
    commits: Commits
    pending_estimate: PendingEstimate
    counting: Counting
    wake: Callable[[], None] = lambda: None
    """Has the reading loop look again; does nothing while it does not run."""
    _queued: deque[tuple[Change, asyncio.Future[bool]]] = field(default_factory=deque)
    """Changes that the reading loop has still to take up."""
    _open: set[asyncio.Future[bool]] = field(default_factory=set)
    """What waits for changes to be taken up and committed."""
    _is_closed: bool = False

    async def put(self, change: Change) -> bool:
        """Have the reading loop take up a change, and wait until what it must record is committed. Return whether that was
        done: False if the session ends before, or has become such that a new one has to take it up. It may be done later if
        the caller does not wait any more."""
        if self._is_closed:
            return False
        taken = asyncio.get_running_loop().create_future()
        self._queued.append((change, taken))
        self._open.add(taken)
        self.wake()
        try:
            return bool(await taken)
        finally:
            self._open.discard(taken)

    def close(self) -> None:
        """Take no more changes up, since the session is to end: what is under way may take seconds to be committed. Those
        that the reading loop has not taken up are refused."""
        self._is_closed = True
        waiting = [taken for _, taken in self._queued if not taken.done()]
        self._queued.clear()
        for taken in waiting:
            taken.set_result(False)

    def give_up(self) -> None:
        """Refuse every change that is not committed, since the session has ended."""
        self._is_closed = True
        for taken in self._open:
            if not taken.done():
                taken.set_result(False)

    async def take_up(self, pipeline: Pipeline) -> None:
        """Take up the changes that wait for it, and queue the commit units of those that have something to record. No round
        may be under way in the pipeline."""
        while self._queued:
            change, taken = self._queued.popleft()
            if taken.done():
                continue
            if not can_take_up(self.assignment, self.cursors, self.commits.state, change.step):
                taken.set_result(False)
                continue
            delta = self._change(change, pipeline)
            log.info("consumers change while the session runs", **change.step.describe())
            if not delta and not change.unused:
                taken.set_result(True)
                continue
            unit = CommitUnit(delta, on_commit=functools.partial(self._finish, change, taken), is_awaited=True)
            await self.commits.put(unit)

    def _change(self, change: Change, pipeline: Pipeline) -> Delta:
        """Change what the session serves. Return what the state must record: the states of new consumers, and the positions
        of others that have changed thereby; those that are deleted are forgotten."""
        step, gone = change.step, change.step.removed.keys()
        forgotten = Delta(forgotten=tuple(sorted(step.forget)))
        if not step.touches_readers:
            return forgotten
        left = self.cursors.dismiss(gone)
        self.assignment.take_up(change.readers, gone)
        self.assignment.outputs.update(change.outputs)
        for topic in change.unused:
            self.assignment.outputs.pop(topic, None)
        self.commits.partitions = self.assignment.output_partitions
        for consumer, state in change.begun.items():
            self.cursors.admit(consumer, state)
        came = self.cursors.renew(change.readers.keys(), now_ms())
        self.pending_estimate.forget({*change.readers, *gone})
        self.counting.forget({*change.readers, *gone})
        pipeline.renew(self.cursors.sequences)
        delta = self.cursors.delta(left.partitions | came.partitions, left.consumers | came.consumers)
        return forgotten.merge(delta)

    def _finish(self, change: Change, taken: asyncio.Future[bool], _: Sequence[int]) -> None:
        """Tell the one who waits for a change that it is committed. What was written to its unused topics is as well."""
        self.commits.transactions.drop_topics(change.unused)
        if not taken.done():
            taken.set_result(True)
