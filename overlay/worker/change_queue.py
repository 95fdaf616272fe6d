"""Changes that were handed to a running session, from there until what they record is committed.

The shard waits for each of them (shard.py). The session's reading loop takes them up between two rounds, in the order in which
they came; changes.py says which ones, and what a change is. If a consumer with a machine comes, changes or goes, no step of
the dispatcher may be under way either. So such a change is queued between two steps, and the next step waits until it is taken
up. The reading loop never waits for a step, which may have to read records again.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from overlay.clock import now_ms
from overlay.config import fill_defaults
from overlay.dispatch.dispatcher import Work
from overlay.logs import get_logger
from overlay.output.batch_builder import OutputBatch
from overlay.output.entry import Entry
from overlay.state.shard_state import ConsumerId, Delta, StreamPartition

from .assignment import Assignment
from .changes import Change, Step, can_take_up
from .commit.commits import Commits, CommitUnit
from .commit.counting import Counting
from .cursors.cursors import Cursors, Moved
from .dispatch_loop import DispatchLoop
from .round.pending_estimate import PendingEstimate
from .round.pipeline import Pipeline

log = get_logger(__name__)


@dataclass(slots=True)
class _Queued:
    """A change that the reading loop has still to take up."""

    change: Change
    taken: asyncio.Future[bool]
    """Whether it was taken up and is committed."""
    is_looked_at: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it is taken up or refused."""

    def refuse(self) -> None:
        """Leave the change to a new session."""
        if not self.taken.done():
            self.taken.set_result(False)
        self.is_looked_at.set()


@dataclass(slots=True)
class ChangeQueue:
    """The changes of one session, and the parts of it that they change."""

    assignment: Assignment
    cursors: Cursors
    commits: Commits
    pending_estimate: PendingEstimate
    counting: Counting
    dispatch_loop: DispatchLoop | None = None
    """The loop that serves the consumers with machines; None if the session has none."""
    wake: Callable[[], None] = lambda: None
    """Has the reading loop look again; does nothing while it does not run."""
    _queued: deque[_Queued] = field(default_factory=deque)
    """Changes that the reading loop has still to take up."""
    _open: set[asyncio.Future[bool]] = field(default_factory=set)
    """What waits for changes to be taken up and committed."""
    _waiting: set[asyncio.Future[bool]] = field(default_factory=set)
    """What waits for a step of the dispatcher to end, and is not queued yet."""
    _is_closed: bool = False

    async def put(self, change: Change) -> bool:
        """Have the reading loop take up a change, and wait until what it must record is committed. Return whether that was
        done: False if the session ends before, or has become such that a new one has to take it up. It may be done later if
        the caller does not wait any more."""
        if self._has_ended():
            return False
        taken = asyncio.get_running_loop().create_future()
        try:
            self._open.add(taken)
            async with self._between_steps(change.step, taken):
                if self._has_ended():
                    return False
                queued = _Queued(change, taken)
                self._queued.append(queued)
                self.wake()
                await queued.is_looked_at.wait()
            return bool(await taken)
        finally:
            self._open.discard(taken)
            taken.cancel()  # nothing if it is done

    @contextlib.asynccontextmanager
    async def _between_steps(self, step: Step, taken: asyncio.Future[bool]) -> AsyncIterator[None]:
        """Keep the dispatcher from its next step if consumers with machines come, change or go. Wait for the step that is
        under way, unless `taken` is done before."""
        if self.dispatch_loop is None or not step.with_machines:
            yield
            return
        lock = self.dispatch_loop.between_steps
        acquiring = asyncio.ensure_future(lock.acquire())
        try:
            self._waiting.add(taken)
            await asyncio.wait((acquiring, taken), return_when=asyncio.FIRST_COMPLETED)
            self._waiting.discard(taken)
            yield
        finally:
            self._waiting.discard(taken)
            if not acquiring.cancel():  # it is done, so the lock is held here
                lock.release()

    def _has_ended(self) -> bool:
        """Return whether `close` was called, maybe since it was asked last."""
        return self._is_closed

    def close(self) -> None:
        """Take no more changes up, since the session is to end: what is under way may take seconds to be committed. Those
        that the reading loop has not taken up are refused."""
        self._is_closed = True
        waiting = list(self._queued)
        self._queued.clear()
        for queued in waiting:
            queued.refuse()
        for taken in [each for each in self._waiting if not each.done()]:
            taken.set_result(False)

    def give_up(self) -> None:
        """Refuse every change that is not committed, since the session has ended."""
        self.close()
        for taken in self._open:
            if not taken.done():
                taken.set_result(False)

    async def take_up(self, pipeline: Pipeline) -> None:
        """Take up the changes that wait for it, and queue the commit units of those that have something to record. No round
        may be under way in the pipeline."""
        while self._queued:
            queued = self._queued.popleft()
            change, taken = queued.change, queued.taken
            if taken.done():
                continue
            if not can_take_up(self.assignment, self.cursors, self.commits.state, change.step):
                queued.refuse()
                continue
            try:
                last = self._dismiss_machines(change)
                delta = self._change(change, pipeline)
            except BaseException:
                queued.refuse()  # the session ends by it
                raise
            log.info("consumers change while the session runs", **change.step.describe())
            # the one who waits, and so the next step of the dispatcher, goes on when this task waits: the unit is queued then
            queued.is_looked_at.set()
            if not delta and not change.unused and not last:
                taken.set_result(True)
                continue
            await self.commits.put(self._make_unit(change, taken, delta, last))

    def _dismiss_machines(self, change: Change) -> list[tuple[ConsumerId, Work]]:
        """Have the dispatcher serve the deleted consumers no more. Return the last that each has to say."""
        if (loop := self.dispatch_loop) is None:
            return []
        last = [(id, loop.dismiss(id)) for id in change.step.removed if id in change.step.with_machines]
        return [(id, work) for id, work in last if work]

    def _admit_machines(self, change: Change) -> Moved:
        """Have the dispatcher serve the new consumers, and those that want something else from what they were offered and
        have not delivered. Return what the state must record for that."""
        partitions, consumers = set[StreamPartition](), set[ConsumerId]()
        if (loop := self.dispatch_loop) is None:
            return Moved(partitions, consumers)
        for id, config in change.step.changed.items():
            if config.needs_machine:
                moved = self.cursors.rewind(id)
                partitions, consumers = partitions | moved.partitions, consumers | moved.consumers
                loop.renew(id, fill_defaults(config), change.readers[id].output_topic if config.is_push else None)
        for id, slot in change.slots.items():
            loop.admit(id, slot)
        for stream, names in change.names.items():
            loop.know(stream, names)
        return Moved(partitions, consumers)

    def _make_unit(
        self, change: Change, taken: asyncio.Future[bool], delta: Delta, last: Sequence[tuple[ConsumerId, Work]]
    ) -> CommitUnit:
        """Return the unit of a change: what it records, and the `last` that deleted consumers have to say."""
        answers = [answer for _, work in last for _, answer in work.answers]
        if self.dispatch_loop is not None:
            self.dispatch_loop.reply_sender.announce(answers)
        batches = [((id,), outgoing) for id, work in last for _, outgoing in work.batches]
        finish = functools.partial(self._finish, change, taken, answers)
        return CommitUnit(delta, batches, answers=answers, on_commit=finish, is_awaited=True)

    def _change(self, change: Change, pipeline: Pipeline) -> Delta:
        """Change what the session serves. Return what the state must record: the states of new consumers, and the positions
        of others that have changed thereby; those that are deleted are forgotten."""
        step, gone = change.step, change.step.removed.keys()
        forgotten = Delta(forgotten=tuple(sorted(step.forget)))
        if not step.touches_readers:
            return forgotten
        left = self.cursors.dismiss(gone)
        machines = {id: config for id, config in step.renewed.items() if config.needs_machine}
        self.assignment.take_up(change.readers, machines, gone)
        self.assignment.outputs.update(change.outputs)
        for topic in change.unused:
            self.assignment.outputs.pop(topic, None)
        self.commits.partitions = self.assignment.output_partitions
        for consumer, state in change.begun.items():
            self.cursors.admit(consumer, state)
        back = self._admit_machines(change)
        came = self.cursors.renew(change.readers.keys(), now_ms())
        self.pending_estimate.forget({*change.readers, *gone})
        self.counting.forget({*change.readers, *gone})
        pipeline.renew(self.cursors.sequences)
        partitions = left.partitions | back.partitions | came.partitions
        delta = self.cursors.delta(partitions, left.consumers | back.consumers | came.consumers)
        return forgotten.merge(delta)

    def _finish(
        self, change: Change, taken: asyncio.Future[bool], answers: Sequence[Entry | OutputBatch], _: Sequence[int]
    ) -> None:
        """Tell the one who waits for a change that it is committed. What was written to its unused topics is as well.
        Have the `answers` sent."""
        if self.dispatch_loop is not None:
            self.dispatch_loop.reply_sender.put_announced(answers)
        self.commits.transactions.drop_topics(change.unused)
        if not taken.done():
            taken.set_result(True)
