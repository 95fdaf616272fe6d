"""The service's side of the control topic: reads all of it, takes up changes, and answers requests.

Every worker reads the topic from its start, so every worker knows the same definitions and
requests. A request is answered by the worker that owns the shard of the request's consumer or
stream. Only that worker writes about it (shard_journals.py). Requests are decided on a registry that
includes every earlier decision: after something is written, the next request waits until it has
been read back. Creates, updates and deletes that do not depend on each other are decided together
(deciding.py). Slow answers do not hold up other requests (answering.py).

Requests of clients with few rights come through a topic of their own. The owner of the first shard
copies those that are allowed into the control topic (relay.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from aiokafka.errors import KafkaError

from overlay.clock import monotonic, now_ns
from overlay.config import Loaded
from overlay.config.consumer import AckPolicy
from overlay.consumer.effects import Advise, Advisory
from overlay.errors import Fenced, OverlayError
from overlay.kafka.admin import Admin
from overlay.kafka.passed_over import OnPassedOver, PassedOver, ignore
from overlay.kafka.properties import Properties
from overlay.logs import get_logger
from overlay.metrics import Metrics
from overlay.output.entry import Entry
from overlay.output.record import Record
from overlay.replies.event_topic import encode_notices
from overlay.replies.reply_address import make_rule
from overlay.replies.reply_sender import ReplySender
from overlay.replies.reply_topics import ReplyTopics
from overlay.waits import Backoff, is_cancelled, is_set_within, until

from . import decide as rules
from .answering import Answers, ServedAnswers, refuse_deleted
from .deciding import Decider
from .file_definitions import FileDefinitions
from .records import ConsumerId, Definition, Origin, Subject, make_key
from .registry import Registry
from .relay import Relay
from .requests import Op, Request, respond
from .shard_journals import Ownership, ShardJournals
from .tail import Tail
from .undropped import Undropped

log = get_logger(__name__)

LOOK_S = 0.02
"""Seconds between two looks at whether the host serves what the topic says."""
RECENT_S = 4.0
"""Seconds for which shards that were assigned to us wait until the control topic is read to its
end."""
HELD_S = 30.0
"""Seconds for which an open transaction may keep the control topic from being read on, before it is taken for one that
has lost its marker. A journal gives its transactions up after 20 s."""
REST_S = (0.5, 30.0)
"""Shortest and longest pause in seconds after an error; it doubles with each error in a row."""
LONG_REST_S = (1.0, 60.0)
"""The same after an error that was not foreseen, which an operator has to mend or report."""
STEADY_S = 30.0
"""After so long without an unforeseen error, the next pause is the shortest again."""
DEFINED = Subject.CONSUMER, Subject.PAUSE
"""The kinds of records that a consumer has in the topic."""
ALL_STREAMS = "", ""
"""What requests about no stream are about; the owner of the first shard answers them."""


class Host(rules.Host, Ownership, Protocol):
    """The worker that runs the request server."""

    def tend(self) -> Collection[ConsumerId]:
        """Pause and resume consumers when their configs ask for it now. Return the worker's
        consumers that inactive_threshold has ended.
        """

    def find_kept_policies(self) -> Mapping[ConsumerId, AckPolicy]:
        """Return the ack policies with which consumers of the worker were delivered whose configs
        say another one now."""

    async def take_up(self, loaded: Loaded, forget: Collection[ConsumerId] = ()) -> None:
        """Serve `loaded` from now on, and drop the state of those consumers in `forget` that belong
        to the worker's shards. Raises StateKept if some could not be dropped, once `loaded` is served."""

    def drain(self, *, drained: bool) -> None:
        """Give the worker's shards to other workers, or have the group give it some again."""


@dataclass(slots=True)
class RequestServer:
    """Reads the control topic, and answers requests for the shards that this worker owns. Good for
    one connection to Kafka: call `open`, then `run`, then `close`.
    """

    kafka: Properties
    admin: Admin
    registry: Registry
    name: str
    """The worker's name, for audits."""
    worker: tuple[str, str] = "", ""
    """The worker's name in the fleet, and what tells the starts of its process apart."""
    metrics: Metrics = field(default_factory=Metrics)
    on_passed_over: OnPassedOver = ignore
    """Called for each reason for which records of the control topic or the requests topic could not be read."""
    host: Host = field(init=False)
    _tail: Tail = field(init=False)
    _relay: Relay | None = None
    """Reads open requests, if the config asks for it."""
    _outbox: ReplySender = field(init=False)
    _journals: ShardJournals = field(init=False)
    _answers: Answers = field(init=False)
    _answering: ServedAnswers = field(init=False)
    _files: FileDefinitions = field(init=False)
    _decider: Decider = field(init=False)
    _held: tuple[int, float] = (-1, 0.0)
    """The open transaction behind which the topic is not read on, as its offset, and since when, monotonic seconds;
    -1 if there is none."""
    _beginnings: int = 0
    """Those of the tail that we have taken note of."""
    _forgotten: set[ConsumerId] = field(default_factory=set)
    """Deleted consumers whose state is dropped already."""
    _lapsed: set[ConsumerId] = field(default_factory=set)
    """Deleted consumers that inactive_threshold has ended."""
    _ended: set[ConsumerId] = field(default_factory=set)
    """Consumers of files that it has ended, and that are not stopped yet."""
    _undropped: Undropped = field(default_factory=Undropped)
    _reloaded: Loaded | None = None
    """Changed files that are to be taken up."""
    _told: set[str] = field(default_factory=set)
    """Problems that were logged."""
    _is_astray: bool = False
    """Whether an unforeseen error may have left half done what the topic says."""
    _taken_up: int = -1
    """The offset up to which the host serves what the topic says; -1 while `run` does not run."""

    def __post_init__(self) -> None:
        self._outbox = ReplySender(self.kafka, ReplyTopics(self.admin), self._count_refused)
        self._tail = Tail(self.kafka, self.admin, self.registry, self._count_passed_over)
        self._journals = ShardJournals(self.kafka, self.prefix, self._tail, self._outbox)
        self._answers = Answers(self.name, self._journals)
        self._answering = ServedAnswers(self.registry, self._journals, self._answers, lambda: self._taken_up)
        self._files = FileDefinitions(self.registry, self.admin, self._journals)
        self._decider = Decider(self.registry, self.admin, self._journals, self._answers, self._answering, self.metrics)
        topics = self.registry.files.service.topics
        if topics.requests:
            self._relay = Relay(self.kafka, self.admin, make_rule(topics), self.wake, self._count_passed_over)

    @property
    def prefix(self) -> str:
        """The prefix of the overlay's own topics."""
        return self.registry.prefix

    @property
    def is_drained(self) -> bool:
        """Whether this start of the worker is to have no shards."""
        name, boot = self.worker
        return bool(name) and self.registry.drained.get(name) == boot

    def _count_passed_over(self, found: PassedOver) -> None:
        topic = "control" if found.topic == self._tail.topic else "requests"
        self.metrics.control_records_unreadable.labels(topic, found.reason).inc(found.count)
        self.on_passed_over(found)

    def _count_refused(self, reason: str, count: int) -> None:
        self.metrics.replies_refused.labels(reason).inc(count)

    async def open(self) -> None:
        """Read the topic up to its present last stable offset, and log the problems found. Raises
        SourceUnavailable, CredentialsRefused.
        """
        await self._tail.open()
        self._tell_problems()

    async def close(self) -> None:
        """Cancel open answers and disconnect. Requests without an answer stay in the topic, for the
        next owner of their shard.
        """
        await self._answering.cancel()
        if self._relay is not None:
            await self._relay.close()
        await self._journals.drop()
        await self._outbox.close()
        await self._tail.close()

    async def run(self, host: Host, stop: asyncio.Event) -> None:
        """Read the topic and answer requests until `stop` is set. After an error, log it, close the journals and try
        again after a pause; consumers are served meanwhile. After one that was not foreseen, read the topic anew.
        """
        self._attach(host)
        self._journals.stop = stop
        backoff, unforeseen = Backoff(*REST_S), Backoff(*LONG_REST_S)
        began_at = monotonic()
        self._taken_up = 0
        self.wake()  # shards may wait for the first turn
        stopping = asyncio.create_task(self._wake_after(stop), name="stopping")
        try:
            while not stop.is_set():
                try:
                    await self._turn_or_wait(stop, backoff)
                except (Exception, asyncio.CancelledError) as error:
                    if is_cancelled():
                        raise
                    if monotonic() - began_at >= STEADY_S:
                        unforeseen.reset()
                    # a bug: if it ended this task, it would end all shards of the worker
                    self._note_unforeseen(error)
                    await unforeseen.rest(stop)
                    began_at = monotonic()
        finally:
            self._taken_up = -1
            stopping.cancel()

    def _attach(self, host: Host) -> None:
        """Answer for the shards of this worker. Call it before the first turn."""
        self.host = self._journals.host = self._answering.host = self._decider.host = host

    async def _turn_or_wait(self, stop: asyncio.Event, backoff: Backoff) -> None:
        """Take a turn. After an error of Kafka, log it, close the journals and wait, until `stop` at most."""
        try:
            await self._turn()
            backoff.reset()
        except Fenced as error:
            # no error of Kafka: the group soon tells whose the shard is, or that it is ours
            log.warning("requests wait", reason=str(error))
            await self._journals.drop()
            await is_set_within(stop, REST_S[0])
        except (OverlayError, KafkaError) as error:
            log.warning("requests wait", reason=str(error))
            await self._journals.drop()
            await backoff.rest(stop)

    def _note_unforeseen(self, error: BaseException) -> None:
        """Log and count an error that was not foreseen, and have the next turn begin from what the topic says."""
        self._is_astray = True
        self.metrics.unforeseen_errors.labels("control").inc()
        log.exception("an error that was not foreseen: requests wait", cause=type(error).__name__, reason=str(error))

    async def _recover(self) -> None:
        """Forget what an unforeseen error may have left half done: cancel open answers, close the journals, and read the
        topic again from its start. Raises errors of Kafka."""
        # a consumer that the registry lacks until then would be taken for deleted
        self._taken_up = 0
        await self._answering.cancel()
        await self._journals.drop()
        await self._tail.read_anew("an error that was not foreseen may have left out what it says")
        self._is_astray = False

    async def _wake_after(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self.wake()

    def wake(self) -> None:
        """Have `run` look again at once: the shards of this worker, or something else that decides
        about requests, has changed."""
        self._tail.wake()

    async def catch_up(self) -> None:
        """Wait until the host serves everything that the topic says at the time of this call, for
        RECENT_S at most. If that fails, log it and return. There is no wait while `run` is not
        running.

        A worker that was suspended may be assigned shards before it reads that their consumers were
        deleted. If it served them once more, they would begin anew.
        """
        try:
            async with asyncio.timeout(RECENT_S):
                end = await self._tail.find_end()
                await until(lambda: not 0 <= self._taken_up < end, pause_s=LOOK_S)
        except (TimeoutError, OverlayError) as error:
            log.warning(
                "shards are served by what was known of the control topic", reason=str(error) or "it is not read"
            )

    def reload(self, files: Loaded) -> None:
        """Keep changed files of the folder; the next turn of `run` adds them to the registry and
        has them served.
        """
        self._reloaded = files
        self.wake()

    async def _turn(self) -> None:
        """Read new records, have the host serve changes, and decide the requests of our shards.
        Stops early if something that was written has to be read back first.
        """
        if self._is_astray:
            await self._recover()
        await self._outbox.make_room()
        subjects = await self._tail.read()
        # while the topic is read again from its start, the registry is incomplete
        if self._tail.is_behind:
            self._taken_up = 0
            return
        if self._tail.beginnings != self._beginnings:
            await self._begin_again()
        await self._end_held_up()
        # changed files, and changed definitions and pauses, are served before requests are decided
        if self._reloaded is not None:
            self.registry.reload(self._reloaded)
            self._reloaded = None
            subjects.add(Subject.CONSUMER)
        if self.registry.keep_policies(self.host.find_kept_policies()):
            subjects.add(Subject.CONSUMER)
        if subjects & {Subject.CONSUMER, Subject.PAUSE}:
            self._files.compare_again()
            self._tell_problems()
            await self._take_up()
        self.host.drain(drained=self.is_drained)
        self._taken_up = self._tail.seen
        await self._keep_registry()
        if await self._decider.decide_waiting() and self._relay is not None:
            await self._take_open(self._relay)

    async def _take_up(self) -> None:
        """Have the host serve what the registry says, and drop the state of deleted consumers, once each: a shard
        whose consumers' state is dropped may begin a new session. What cannot be dropped is tried again later."""
        deleted = self.registry.find_deleted()
        self._undropped.keep({*deleted, *self._ended})
        # a former owner's knowledge is of no use, nor is that of a consumer that was created again
        self._forgotten = {id for id in self._forgotten.intersection(deleted) if self.host.find_shard(id) is not None}
        if self._journals.is_read_back:
            self._lapsed.intersection_update(deleted)
        try:
            dropped = await self._drop_states(self._undropped.choose(id for id in deleted if id not in self._forgotten))
        except OverlayError:
            # everything is served, and answers need not wait for a state that could not be dropped
            self._taken_up = self._tail.seen
            raise
        self._forgotten |= dropped

    async def _drop_states(self, ids: Collection[ConsumerId]) -> set[ConsumerId]:
        """Have the host serve what the registry says, and drop the state of these consumers. Return the consumers whose
        state is dropped: nothing was tried for one whose shard has left this worker meanwhile."""
        dropped = await self._undropped.drop(ids, self.host.take_up(self.registry.effective(), ids))
        return {id for id in dropped if self.host.find_shard(id) is not None}

    async def _begin_again(self) -> None:
        """Drop everything that depends on the former log: open answers, journals, and notes of
        deletions. Call it once the topic was read again from its start. Requests are decided only
        once everything was read that the topic has at this call.
        """
        await self._answering.cancel()
        await self._journals.drop()
        self._forgotten.clear()
        self._lapsed.clear()
        self._files.compare_again()
        self._journals.hold = await self._tail.find_end()
        self._beginnings = self._tail.beginnings

    async def _end_held_up(self) -> None:
        """End what journals of our shards have left open in the topic, if it could not be read on for
        HELD_S.

        Kafka may lose the marker of a journal's transaction (output/lost_markers.py). Its own journal
        then waits to read it back, and no worker reads a request behind it, so none has a reason to
        open a journal, which would end it. All workers do this, each for its own shards. Raises
        Fenced if a shard is not ours.
        """
        now, held_at = monotonic(), self._tail.held_at
        if held_at < 0 or held_at != self._held[0]:
            self._held = held_at, now
        if held_at < 0 or now - self._held[1] < HELD_S:
            return
        self._held = held_at, now
        log.warning(
            "an open transaction holds up the control topic: our shards end theirs",
            first=f"{self._tail.topic}-0@{held_at}",
        )
        await self._journals.end_open(self.host.owned)

    def _tell_problems(self) -> None:
        """Log the problems of the topic's definitions that were not there at the last call.
        Problems of the files themselves are logged elsewhere.
        """
        found = self.registry.effective().problems[len(self.registry.files.problems) :]
        for problem in found:
            if str(problem) not in self._told:
                log.error("config problem", problem=str(problem))
        self._told = {str(problem) for problem in found}

    async def _keep_registry(self) -> None:
        """Do what no request asks for: write definitions of files to the topic, end idle consumers,
        and finish deletions. Do nothing until all that we wrote was read back.
        """
        if not self._journals.is_read_back:
            return
        await self._files.write()
        await self._lapse(self.host.tend())
        if self._journals.is_read_back:
            await self._finish_deletions()

    def _sort(self, ids: Iterable[ConsumerId]) -> dict[int, list[ConsumerId]]:
        return self._journals.sort_by_shard(ids)

    async def _lapse(self, ids: Collection[ConsumerId]) -> None:
        """End consumers that inactive_threshold has ended: delete them, or if a file defines them,
        stop them until the next start. Those of one shard are written together: each change makes the
        shard begin a new session, and after a pause of the service many end at once.
        """
        known = self.registry.definitions
        asked = [id for id in ids if id in known and known[id].origin is Origin.REQUEST]
        for shard, mine in self._sort(id for id in asked if not known[id].is_deleted).items():
            if await self._journals.knows_all(shard):
                self._lapsed.update(mine)
                await self._journals.write(mine[0], [rules.delete(known[id]) for id in mine], decided=True)
        self._ended.update(set(ids).difference(asked))
        await self._end_files()

    async def _end_files(self) -> None:
        """Stop consumers of files that inactive_threshold has ended: drop their state and their temporary outputs, and
        take their definitions out of the topic, so that the next start creates them anew. What fails is tried again
        with the next turn, a state that cannot be dropped after a pause.
        """
        by_shard = self._sort(sorted(self._ended))
        self._ended = {id for ids in by_shard.values() for id in ids}
        for id in self._ended:
            self.registry.lapse(id)
        if not (due := self._undropped.choose(self._ended)):
            return
        dropped = await self._drop_states(due)
        for all_ids in by_shard.values():
            if not (ids := [id for id in all_ids if id in dropped]):
                continue
            for id in ids:
                if (known := self.registry.definitions.get(id)) is not None:
                    await self._drop_output(known)
            await self._journals.write(ids[0], [Record(make_key(Subject.CONSUMER, *id), None) for id in ids])
            self._ended.difference_update(ids)
            for stream, name in ids:
                log.info("consumer ended by inactive_threshold, until the next start", stream=stream, consumer=name)

    async def _finish_deletions(self) -> None:
        """Finish the deletions of consumers of our shards, those of one shard in one transaction: drop
        their state, write tombstones for their records in the topic, and answer the clients that asked. One whose
        state cannot be dropped is left, and tried again after a pause (undropped.py).

        A consumer that open answers are about is left for a later turn: their clients are about to hear
        that it was deleted.
        """
        busy = {request.about for request in self.registry.requests.values() if request.id in self._answering}
        for shard, ids in self._sort(id for id in self.registry.find_deleted() if id not in busy).items():
            due = self._undropped.choose(id for id in ids if id not in self._forgotten)
            if (not due and self._forgotten.isdisjoint(ids)) or not await self._journals.knows_all(shard):
                continue
            if due:
                self._forgotten |= await self._drop_states(due)
            ended = [self.registry.definitions[id] for id in ids if id in self._forgotten]
            if not ended:
                continue
            records = [Record(make_key(subject, *each.id), None) for each in ended for subject in DEFINED]
            await self._journals.write(ended[0].id, records, self._tell_deleted(ended), decided=True)
            for definition in ended:
                log.info("consumer deleted", stream=definition.id[0], consumer=definition.id[1])
                if definition.id in self._lapsed:
                    self._lapsed.discard(definition.id)
                    await self._drop_output(definition)

    def _tell_deleted(self, ended: Sequence[Definition]) -> list[Entry]:
        """Return the advisories of consumers without a machine whose deletion ends, and the answers to the clients
        that asked for it.

        Creates and updates without an answer before the last delete are answered as well. They would otherwise still
        be in the topic, and the next owner of the shard would create the consumer again.
        """
        entries: list[Entry] = []
        asked: dict[ConsumerId, list[Request]] = {definition.id: [] for definition in ended}
        for request in self.registry.requests.values():
            if request.about in asked:
                asked[request.about].append(request)
        for definition in ended:
            # a machine has sent the advisory of its end itself
            advisories = [] if definition.config.needs_machine else [Advise(Advisory.DELETED)]
            entries += encode_notices(advisories, *definition.id, now_ns(), self.prefix)
            # a create after the last delete makes the consumer anew
            requests = asked[definition.id]
            deletes = [at for at, request in enumerate(requests) if request.op is Op.DELETE]
            for at, request in enumerate(requests):
                if request.op is Op.DELETE:
                    entries += self._answers.answer(request, respond(request, {"success": True}))
                elif request.op in (Op.CREATE, Op.UPDATE) and at < max(deletes, default=0):
                    entries += self._answers.answer(request, refuse_deleted(request))
        return entries

    async def _drop_output(self, definition: Definition) -> None:
        """Delete the output topic of a consumer that inactive_threshold has ended, if it is temporary, the overlay has
        made it, and no other consumer delivers to it. If Kafka refuses, log that.
        """
        config, others = definition.config, self.registry.effective().consumers.values()
        topic = config.deliver_subject
        if not config.output.temporary or topic in {each.deliver_subject for each in others if each.id != config.id}:
            return
        if not definition.makes_output:
            log.info("a temporary topic is left: it was there before its consumer", topic=topic)
            return
        try:
            await self.admin.delete_topic(topic)
        except OverlayError as error:
            log.warning("a temporary topic is left; delete it by hand", topic=topic, reason=str(error))

    async def _take_open(self, relay: Relay) -> None:
        """Copy open requests into the control topic, if the first shard is ours, and answer those
        that may not be asked in this way."""
        shard = self.host.find_shard(ALL_STREAMS)
        if shard is None:
            await relay.close()
            return
        # clients of the control topic keep half of the room; the registry must have all copies that former owners have written
        if (
            not relay.is_due
            or self.registry.is_half_full
            or not self._journals.is_read_back
            or not await self._journals.knows_all(shard)
        ):
            return
        taken = await relay.take(self.registry.copied)
        try:
            if taken.copies:
                await self._journals.write(ALL_STREAMS, taken.copies, taken.answers, decided=True)
        except BaseException:
            # the requests are read again, from behind the last copy
            await relay.close()
            raise
