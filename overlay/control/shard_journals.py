"""Writing to the control topic as the owner of shards: a journal for each shard, and the order of
what is written and what is read.

Only the owner of a shard writes about its consumers. What it writes follows from the registry, so it
decides only with a registry that has all that was written before, by itself and by former owners.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from overlay.clock import monotonic
from overlay.errors import DeliveryFailed, Fenced, SourceUnavailable
from overlay.kafka.own_topics import events_topic
from overlay.kafka.properties import Properties
from overlay.logs import get_logger
from overlay.output.entry import Entry
from overlay.output.record import Record
from overlay.replies.reply_sender import ReplySender
from overlay.waits import unless

from .event_gate import EventGate
from .journal import Journal
from .records import ConsumerId
from .tail import Tail

log = get_logger(__name__)


class Ownership(Protocol):
    """What tells which shards are this worker's."""

    def find_shard(self, about: ConsumerId) -> int | None:
        """Return the shard of a consumer, None if this worker does not own it.

        With an empty consumer name, return the shard of the stream; with both empty, shard 0.
        """

    async def is_owner(self, shard: int) -> bool:
        """Return whether the group of workers still assigns the shard to this worker. May ask
        Kafka."""


@dataclass(slots=True)
class ShardJournals:
    """The journals of this worker's shards. `prefix`: of the overlay's own topics. `tail`: reads the
    topic that they write to. `outbox`: sends the answers that go with what is written. Set `host` before
    the first use.
    """

    kafka: Properties
    prefix: str
    tail: Tail
    outbox: ReplySender
    host: Ownership = field(init=False)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the worker is to end."""
    hold: int = 0
    """The offset that must have been read before anything more is decided."""
    _gate: EventGate = field(init=False)
    _journals: dict[int, Journal] = field(default_factory=dict)
    _decided_with: Journal | None = None
    """The journal of the shard that is decided about: while it is open, no other worker has written."""
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while writing: a journal has one transaction at a time."""

    def __post_init__(self) -> None:
        self._gate = EventGate(events_topic(self.prefix))

    @property
    def is_read_back(self) -> bool:
        """Whether all that has to be read before a decision was read."""
        return self.tail.seen >= self.hold

    def sort_by_shard(self, ids: Iterable[ConsumerId]) -> dict[int, list[ConsumerId]]:
        """Return those of these consumers that belong to our shards, by shard."""
        found: dict[int, list[ConsumerId]] = {}
        for id in ids:
            if (shard := self.host.find_shard(id)) is not None:
                found.setdefault(shard, []).append(id)
        return found

    async def write(
        self,
        about: ConsumerId,
        records: Sequence[Record],
        entries: Sequence[Entry] = (),
        *,
        decided: bool = False,
        is_whole: bool = False,
    ) -> None:
        """Commit records and entries as the owner of a consumer's or stream's shard. Write nothing
        if the shard is not ours any more.

        `decided`: they follow from what the registry contained at the last `knows_all`. Raises
        SourceUnavailable if the journal of that time is closed: another worker may have written
        since, and this has to be decided anew.

        If the events topic refuses its part for good, or for the second time, the rest is written
        without events, or without large ones. But if `is_whole`, and a single event may be the
        reason, nothing is written, and DeliveryFailed is raised. Other errors are those of
        `_leave_out`, `_open_journal` and `Journal.commit`.

        Answers are sent after the commit, outside of it: clients choose their topics, and a topic
        that refuses must not block anything.
        """
        shard = self.host.find_shard(about)
        if shard is None:
            return
        own = {self.tail.topic, events_topic(self.prefix)}
        answers = [entry for entry in entries if entry.topic not in own]
        wanted = [Entry(self.tail.topic, record) for record in records]
        wanted += [entry for entry in entries if entry.topic in own]
        async with self._lock:
            if decided and (shard not in self._journals or self._journals[shard] is not self._decided_with):
                raise SourceUnavailable(
                    f"shard {shard} may have had another owner since: what it asks for is decided anew"
                )
            while wanted := self._gate.pass_on(wanted, monotonic()):
                await self._open_journal(shard)
                try:
                    last = await self._journals[shard].commit(wanted)
                    self.hold = max(self.hold, last + 1)
                    self._gate.accept(wanted)
                    break
                except DeliveryFailed as error:
                    await self._journals.pop(shard).close()
                    wanted = self._leave_out(error, wanted, is_whole=is_whole)
                except BaseException:
                    # the journal is unusable now, and other tasks may wait here to write
                    await self._journals.pop(shard).close()
                    raise
            self.outbox.put(answers)

    def _leave_out(self, error: DeliveryFailed, wanted: Sequence[Entry], *, is_whole: bool) -> list[Entry]:
        """Return what is to be written after a refusal. If the events topic refuses everything, that is all of it,
        and the gate leaves the events out. If it may have refused a large one, log that, and return the other
        entries: an audit repeats the request, and may be larger than the topic accepts.

        Raises SourceUnavailable if the refusal may pass, and the error itself if the control topic
        refuses, or if one event may be the reason and `is_whole`.
        """
        is_of_events = error.topics == {self._gate.topic}
        if is_of_events and self._gate.refuse(error, wanted, monotonic()):
            return list(wanted)
        if not error.final:
            raise SourceUnavailable(str(error)) from error
        if is_whole or not is_of_events:
            raise error
        log.warning("something is written without what goes to a topic", topic=error.topic, reason=error.reason)
        return self._gate.leave_out_large(wanted)

    async def _open_journal(self, shard: int) -> None:
        """Open the shard's journal, which fences the former owner, and have decisions wait until
        all that owner wrote was read.

        The shard may have been given to another worker without our knowledge. So the group is asked
        before the journal fences its former owner, and again afterwards. Raises Fenced if the shard
        is not ours, SourceUnavailable if the worker is about to end, and the errors of
        `Journal.start`.
        """
        if shard in self._journals:
            return
        await self._confirm(shard)
        journal = Journal(self.kafka, self.prefix, shard)
        if not await unless(self.stop, journal.start()):
            raise SourceUnavailable("the worker is about to end")
        try:
            await self._confirm(shard)
        except BaseException:
            await journal.close()
            raise
        self._journals[shard] = journal
        self.hold = max(self.hold, await self.tail.find_end())

    async def _confirm(self, shard: int) -> None:
        """Ask whether the group of workers still assigns the shard to us. Raises Fenced if it does not."""
        if not await self.host.is_owner(shard):
            raise Fenced(
                f"the group of workers does not confirm that shard {shard} is ours: requests are left to its owner"
            )

    async def knows_all(self, shard: int) -> bool:
        """Open the shard's journal if needed, which fences its former owners. Return whether the
        registry contains everything that was written about the shard before. If not, more has to be
        read. Raises Fenced if the shard is not ours.
        """
        await self._confirm(shard)
        if shard not in self._journals:
            async with self._lock:
                await self._open_journal(shard)
        self._decided_with = self._journals.get(shard)
        return self.is_read_back

    async def drop(self) -> None:
        """Close all journals. They are opened again when needed."""
        async with self._lock:
            journals = list(self._journals.values())
            self._journals.clear()
            for journal in journals:
                await journal.close()

    async def end_open(self, shards: Collection[int]) -> None:
        """End what journals of these shards have left open in the topic, in this process or another, by opening each
        anew, and close all. A shard whose journal cannot be opened is logged. Raises Fenced if a shard is not
        ours.
        """
        await self.drop()
        for shard in sorted(shards):
            try:
                async with self._lock:
                    await self._open_journal(shard)
            except SourceUnavailable as error:
                log.warning("it may hold up the control topic longer", shard=shard, reason=str(error))
        await self.drop()
