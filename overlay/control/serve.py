"""The service's side of the control topic: reads all of it, takes up changes, and answers requests.

Every worker reads the topic from its start, so every worker knows the same definitions and
requests. A request is answered by the worker that owns the shard of the request's consumer or
stream. Only that worker writes about it (shard_journals.py). Requests are decided on a registry that
includes every earlier decision: after something is written, the next request waits until it has
been read back. Creates, updates and deletes that do not depend on each other are decided together
(grouping.py).

Slow answers do not hold up other requests. A create or update is answered once all shards of this
worker have taken it up and the consumer is being served, so that the client can produce the next
record and be sure that it is delivered; or after SERVED_S, with the consumer's present state. A
delete is answered once the consumer's state is dropped. Until then the request stays in the topic.
If this worker dies, its successor finds the request there and comes to the same answer. Only the
answer itself may be lost, if the worker dies between the commit and the sending. The client then
asks again.

Requests of clients with few rights come through a topic of their own. The owner of the first shard
copies those that are allowed into the control topic (relay.py).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Protocol

from aiokafka.errors import KafkaError

from overlay.clock import monotonic, now_ns
from overlay.config import DeliverPolicy, Loaded, LogEnds
from overlay.config.consumer import AckPolicy
from overlay.consumer.effects import Advise, Advisory
from overlay.dispatch.answers import answer
from overlay.dispatch.event_topic import encode_audit, encode_notices
from overlay.dispatch.reply_address import make_rule
from overlay.dispatch.reply_sender import ReplySender
from overlay.dispatch.reply_topics import ReplyTopics
from overlay.errors import CredentialsRefused, DeliveryFailed, Fenced, OverlayError, SourceUnavailable
from overlay.kafka.admin import Admin
from overlay.kafka.passed_over import OnPassedOver, PassedOver, ignore
from overlay.kafka.properties import Properties
from overlay.logs import get_logger
from overlay.metrics import Metrics
from overlay.output.entry import Entry
from overlay.output.record import Record
from overlay.waits import Backoff, Slices, is_cancelled, is_set_within, until

from . import decide as rules
from .brokertime import Age
from .changes import find_temporary, has_room, makes_output
from .creation import find_log_ends, is_missing
from .decide import Body, Decision, decide, describe
from .grouping import MOST as MOST_TOGETHER
from .grouping import group_requests, is_independent
from .records import ConsumerId, Definition, Origin, Subject, make_key, write_definition, write_json
from .registry import Registry
from .relay import Relay
from .requests import CONSUMER_NOT_FOUND, Op, Request, refuse, respond, respond_refused
from .shard_journals import Ownership, ShardJournals
from .tail import Tail
from .undropped import Undropped

log = get_logger(__name__)

SERVED_S = 8.0
"""Seconds for which the answer to a create or update waits until the consumer is served as it says: less than clients
wait."""
LOOK_S = 0.02
"""Seconds between two looks at whether something has happened that a task waits for."""
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
SLICE_S = 0.02
"""Seconds of deciding or answering requests before the event loop does other work."""
DELETED = "it was deleted meanwhile"
DEFINED = Subject.CONSUMER, Subject.PAUSE
"""The kinds of records that a consumer has in the topic."""
ALL_STREAMS = "", ""
"""What requests about no stream are about; the owner of the first shard answers them."""
OF_KAFKA = (Fenced, SourceUnavailable, CredentialsRefused, KafkaError)
"""Errors that no request has caused."""


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
    _held: tuple[int, float] = (-1, 0.0)
    """The open transaction behind which the topic is not read on, as its offset, and since when, monotonic seconds;
    -1 if there is none."""
    _beginnings: int = 0
    """Those of the tail that we have taken note of."""
    _answering: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    """Requests whose answer takes time. Those that were decided together have one task."""
    _alone: set[str] = field(default_factory=set)
    """Requests that could not be decided together with others."""
    _forgotten: set[ConsumerId] = field(default_factory=set)
    """Deleted consumers whose state is dropped already."""
    _lapsed: set[ConsumerId] = field(default_factory=set)
    """Deleted consumers that inactive_threshold has ended."""
    _ended: set[ConsumerId] = field(default_factory=set)
    """Consumers of files that it has ended, and that are not stopped yet."""
    _undropped: Undropped = field(default_factory=Undropped)
    _reloaded: Loaded | None = None
    """Changed files that are to be taken up."""
    _unwritten: list[Definition] | None = None
    """Definitions of files that the topic does not have yet; None if they have to be compared
    again."""
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
        await self._cancel_answers()
        if self._relay is not None:
            await self._relay.close()
        await self._journals.drop()
        await self._outbox.close()
        await self._tail.close()

    async def run(self, host: Host, stop: asyncio.Event) -> None:
        """Read the topic and answer requests until `stop` is set. After an error, log it, close the journals and try
        again after a pause; consumers are served meanwhile. After one that was not foreseen, read the topic anew.
        """
        self.host = self._journals.host = host
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
        await self._cancel_answers()
        await self._journals.drop()
        await self._tail.read_anew("an error that was not foreseen may have left out what it says")
        self._is_astray = False

    async def _cancel_answers(self) -> None:
        """Cancel open answers, and wait for their end. Their requests stay in the topic."""
        tasks = list(self._answering.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

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
            self._unwritten = None
            self._tell_problems()
            await self._take_up()
        self.host.drain(drained=self.is_drained)
        self._taken_up = self._tail.seen
        await self._keep_registry()
        if self._journals.is_read_back:
            await self._pass_over()
        # each decision needs a registry that contains every earlier one it depends on
        slices = Slices(SLICE_S)
        for shard, requests in self._group_requests():
            if not self._journals.is_read_back:
                return
            if not await self._handle(requests, shard):
                return
            await slices.rest()
        if self._relay is not None:
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
        self._forgotten.update(id for id in dropped if self.host.find_shard(id) is not None)

    async def _drop_states(self, ids: Collection[ConsumerId]) -> set[ConsumerId]:
        """Have the host serve what the registry says, and drop the state of these consumers. Return the consumers whose
        state is dropped."""
        return await self._undropped.drop(ids, self.host.take_up(self.registry.effective(), ids))

    def _group_requests(self) -> Iterator[tuple[int, list[Request]]]:
        """Yield each shard of ours with requests to decide together, in their order."""
        waiting = [request for request in self.registry.requests.values() if request.id not in self._answering]
        self._alone.intersection_update(self.registry.requests)
        sources = {topic for stream in self.registry.files.streams.values() for topic in stream.topic_names}
        fresh = sum(
            request.op is Op.CREATE
            and not request.is_excess
            and request.about not in self.registry.definitions
            and self.host.find_shard(request.about) is not None
            for request in waiting
        )
        # decided together they would all see the same free places; after one group the registry is looked at again
        is_scarce = not has_room(self.registry, min(fresh, MOST_TOGETHER))
        return group_requests(
            waiting,
            self.host.find_shard,
            lambda request: (
                request.id in self._alone
                or (not request.is_excess and (is_scarce or not is_independent(request, sources)))
            ),
        )

    async def _begin_again(self) -> None:
        """Drop everything that depends on the former log: open answers, journals, and notes of
        deletions. Call it once the topic was read again from its start. Requests are decided only
        once everything was read that the topic has at this call.
        """
        await self._cancel_answers()
        await self._journals.drop()
        self._forgotten.clear()
        self._lapsed.clear()
        self._unwritten = None
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

    # what is to be done without being asked

    async def _keep_registry(self) -> None:
        """Do what no request asks for: write definitions of files to the topic, end idle consumers,
        and finish deletions. Do nothing until all that we wrote was read back.
        """
        if not self._journals.is_read_back:
            return
        await self._write_files()
        await self._lapse(self.host.tend())
        if self._journals.is_read_back:
            await self._finish_deletions()

    async def _write_files(self) -> None:
        """Write the definitions of files that the topic does not have, for our shards, in one
        transaction for each shard. A shard of which not everything was read yet is left for the
        next turn.
        """
        if self._unwritten is None:
            self._unwritten = list(self.registry.find_unwritten(now_ns()))
        unwritten = {definition.id: definition for definition in self._unwritten}
        for shard, ids in self._sort(unwritten).items():
            if not await self._journals.knows_all(shard):
                continue
            mine = [unwritten[id] for id in ids]
            written = [await self._complete(definition) for definition in mine]
            records = [write_definition(definition) for definition in written]
            await self._journals.write(mine[0].id, records, decided=True)
            done = {definition.id for definition in mine}
            self._unwritten = [definition for definition in self._unwritten if definition.id not in done]

    async def _complete(self, definition: Definition) -> Definition:
        """Return a file's definition. If the consumer is new, what Kafka tells at its creation is added: the
        present ends of the logs, if it begins there, and whether a temporary output is still to be made.
        """
        config = definition.config
        stream = self.registry.files.streams.get(config.stream)
        if stream is None or definition.id in self.registry.definitions:
            return definition
        ends = await find_log_ends(self.admin, stream) if config.deliver_policy.begins_at_end else None
        topic = config.deliver_subject
        # a shard may have begun with the file already, and have created it
        is_new = config.output.temporary and await is_missing(self.admin, topic, counts_made=True)
        return replace(definition, ends=ends, makes_output=makes_output(self.registry, config, lacks_output=is_new))

    def _sort(self, ids: Iterable[ConsumerId]) -> dict[int, list[ConsumerId]]:
        """Return those of these consumers that belong to our shards, by shard."""
        found: dict[int, list[ConsumerId]] = {}
        for id in ids:
            if (shard := self.host.find_shard(id)) is not None:
                found.setdefault(shard, []).append(id)
        return found

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
                    entries += self._answer(request, respond(request, {"success": True}))
                elif request.op in (Op.CREATE, Op.UPDATE) and at < max(deletes, default=0):
                    entries += self._answer(request, respond_refused(request, refuse(CONSUMER_NOT_FOUND, DELETED)))
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

    # requests

    async def _pass_over(self) -> None:
        """Remove our shards' requests whose clients do not wait any more, unanswered, in one
        transaction for each shard.

        A worker that was suspended for hours may find hundreds. One transaction for each of them
        would take minutes, and newer requests would wait behind them.
        """
        past: dict[int, list[Request]] = {}
        for request in self.registry.requests.values():
            shard = self.host.find_shard(request.about)
            if shard is None or request.id in self._answering:
                continue
            if self._tail.brokers.judge(request.expires_at, now_ns(), monotonic()) is Age.PAST:
                past.setdefault(shard, []).append(request)
        for requests in past.values():
            log.info("requests are passed over: their clients wait no more", count=len(requests), first=requests[0].id)
            await self._journals.write(requests[0].about, [_settle(request) for request in requests])

    async def _handle(self, requests: Sequence[Request], shard: int) -> bool:
        """Decide requests of one shard together, except requests whose clients do not wait any
        more: the next turn passes them over. First measure the brokers' time if that is needed to
        tell. Return False if those behind them must wait for the next turn.
        """
        due: list[Request] = []
        for request in requests:
            age = self._tail.brokers.judge(request.expires_at, now_ns(), monotonic())
            if age is Age.UNKNOWN:
                await self._journals.write(request.about, [Record(make_key(Subject.REQUEST, f"$time-{shard}"), None)])
                self._tail.brokers.measure(monotonic())
                return False
            if age is not Age.PAST:
                due.append(request)
        if any(request.expires_at <= now_ns() for request in due):
            self._tell_ahead()
        if not due:
            return True
        if not await self._journals.knows_all(shard):
            return False
        if len(due) > 1:
            return await self._decide_together(due)
        async with self._answer_failure(due[0]):
            await self._decide(due)
        return True

    async def _decide_together(self, requests: Sequence[Request]) -> bool:
        """Decide requests that do not depend on each other, and return True. If that fails because
        of one of them, return False: the next turns decide each alone.
        """
        try:
            await self._decide(requests)
            return True
        except OF_KAFKA:
            raise
        except Exception as error:  # noqa: BLE001 - the request that causes it is answered when it is alone
            log.warning("requests are decided one by one", count=len(requests), reason=str(error))
            self._alone.update(request.id for request in requests)
            self.wake()
            return False

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

    def _tell_ahead(self) -> None:
        ahead = self._tail.brokers.tell_ahead(now_ns(), monotonic())
        if ahead is not None:
            self.metrics.clock_ahead_seconds.set(ahead)
            log.warning(
                "this machine's clock is ahead of the brokers': set it. Requests are judged by the brokers' time, but deadlines"
                " and pauses go by this clock",
                seconds=round(ahead, 3),
            )

    async def _decide(self, requests: Sequence[Request]) -> None:
        """Decide requests of one shard, and carry the decisions out in one transaction. Creates and
        updates are answered by a task once the consumers are served."""
        records: list[Record] = []
        entries: list[Entry] = []
        later: list[Request] = []
        ends: dict[str, LogEnds | None] = {}
        slices = Slices(SLICE_S)
        for request in requests:
            found = await self._find_ends(request, ends)
            topic = find_temporary(request, self.prefix)
            lacks_output = topic != "" and await is_missing(self.admin, topic)
            decision = decide(self.registry, self.host, request, now_ns(), found, lacks_output=lacks_output)
            more = self._carry_out(request, decision)
            records += more[0]
            entries += more[1]
            if decision.response is None and request.op in (Op.CREATE, Op.UPDATE):
                later.append(request)
            await slices.rest()
        if records or entries:
            await self._journals.write(requests[0].about, records, entries, decided=True, is_whole=len(requests) > 1)
        if later:
            task = asyncio.create_task(self._answer_served(later, self._journals.hold))
            self._answering.update((request.id, task) for request in later)
            task.add_done_callback(lambda _: self._forget_answered(later))

    def _forget_answered(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self._answering.pop(request.id, None)

    async def _find_ends(self, request: Request, known: dict[str, LogEnds | None]) -> LogEnds | None:
        """Return the ends of the stream's logs for a request that may create a consumer, None if
        they are not needed or unknown. `known`: by stream, those that were found for requests that
        are decided together; they are added."""
        stream, config = self.registry.files.streams.get(request.stream), request.body.get("config")
        is_new = request.op is Op.CREATE and request.about not in self.registry.definitions
        policy = config.get("deliver_policy") if isinstance(config, dict) else None
        if stream is None or not is_new or not any(policy == each for each in DeliverPolicy if each.begins_at_end):
            return None
        if stream.name not in known:
            known[stream.name] = await find_log_ends(self.admin, stream)
        return known[stream.name]

    def _carry_out(self, request: Request, decision: Decision) -> tuple[list[Record], list[Entry]]:
        """Return what a decision writes: its records to the control topic, and its advisory and its answer, if there is one
        now."""
        entries: list[Entry] = []
        if decision.advisory is not None:
            entries += encode_notices([Advise(decision.advisory)], *request.about, now_ns(), self.prefix)
        if decision.response is not None:
            entries += self._answer(request, decision.response)
        return [*decision.records, *([_settle(request)] if decision.is_settled else [])], entries

    async def _answer_served(self, requests: Sequence[Request], written: int) -> None:
        """Answer creates and updates of one shard once their consumers are served, or after SERVED_S
        with their present state. Errors of Kafka are logged; then the requests stay, and are decided
        again.

        `written`: the offset behind the definitions, which the host must have taken up. Mostly all
        consumers are served at once. So each look is at one of them, and at the others only
        once that one is served.
        """
        waiting, deadline = deque(requests), monotonic() + SERVED_S
        try:
            while waiting:
                # what is not read back yet is not deleted
                is_late = monotonic() >= deadline and self._tail.seen >= written and not self._tail.is_behind
                if not is_late and not self._is_made(waiting[0].about, written):
                    waiting.rotate(-1)  # one that is not served holds up no other
                    await asyncio.sleep(LOOK_S)
                    continue
                made = [request for request in waiting if is_late or self._is_made(request.about, written)]
                await self._answer_made(made)
                answered = {request.id for request in made}
                waiting = deque(request for request in waiting if request.id not in answered)
        except OF_KAFKA as error:
            log.warning("requests are answered later", count=len(waiting), reason=str(error))
            await self._journals.drop()

    async def _answer_made(self, requests: Sequence[Request]) -> None:
        """End creates and updates that were carried out: write their tombstones and audits in one
        transaction, and send the answers after it. If the events topic refuses it, perhaps because
        of one audit, or the control topic does so for good, end each in a transaction of its own.
        Raises errors of Kafka.
        """
        slices = Slices(SLICE_S)
        entries: list[list[Entry]] = []
        for request in requests:
            entries.append(self._answer(request, self._describe_made(request)))
            await slices.rest()
        if len(requests) > 1:
            try:
                await self._journals.write(requests[0].about, [], list(chain.from_iterable(entries)), is_whole=True)
            except DeliveryFailed as error:
                log.warning("requests are answered one by one", count=len(requests), reason=str(error))
            else:
                return
        for request, its_own in zip(requests, entries, strict=True):
            async with self._answer_failure(request):
                await self._journals.write(request.about, [], its_own)

    def _describe_made(self, request: Request) -> Body:
        """Return the answer to a create or update that was carried out."""
        try:
            if request.about in self.registry.effective().consumers:
                return respond(request, describe(self.registry, self.host, request.about, now_ns()))
            return respond_refused(request, refuse(CONSUMER_NOT_FOUND, DELETED))
        except Exception:  # noqa: BLE001 - logged with the answer
            return self._refuse_failed(request)

    def _is_made(self, id: ConsumerId, written: int) -> bool:
        """Return whether the host serves what the topic says up to offset `written`, and the consumer is not starting any
        more, or is not to be served.
        """
        if self._taken_up < written:
            return False
        is_served = self.host.report_consumer(id).get("state", "starting") != "starting"
        return is_served or id not in self.registry.effective().consumers

    @contextlib.asynccontextmanager
    async def _answer_failure(self, request: Request) -> AsyncIterator[None]:
        """Run a block for a request. If it raises an unexpected error, log that and answer the
        request with an internal error. Errors of Kafka are raised.

        If such a request stayed in the topic, it would end every worker in turn.
        """
        try:
            yield
        except OF_KAFKA:
            raise
        except Exception:  # noqa: BLE001 - logged with the answer
            await self._journals.write(request.about, [], self._answer(request, self._refuse_failed(request)))

    @staticmethod
    def _refuse_failed(request: Request) -> Body:
        """Log the present exception, which a request has caused, and return the answer to the request."""
        log.exception("a request fails", request=request.id, subject=request.subject)
        refusal = refuse(10012, "the log of the service says more", err="internal error")
        return respond_refused(request, refusal)

    def _answer(self, request: Request, response: Body) -> list[Entry]:
        """Return the records that end a request: the answer, the tombstone of the request, and the
        audit if the request may change something.
        """
        value = write_json(response)
        entries = [answer(request.reply, value), Entry(self._tail.topic, _settle(request))]
        if request.op is not None and request.op.changes:
            entries.append(
                encode_audit(self.name, request.subject, request.text, response, now_ns(), self.prefix, request.client)
            )
        return entries


def _settle(request: Request) -> Record:
    """Return the tombstone that removes a request from the control topic."""
    return Record(make_key(Subject.REQUEST, request.id), None)
