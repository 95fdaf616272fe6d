"""A shard's life: take it over, serve it, and after an error begin again from what is committed.

The kind of error decides what happens. If Kafka is unreachable, the shard retries with growing
pauses. If an output topic refuses a batch finally, or twice, the consumers that write to it are
stalled, and their neighbours go on; the stalled ones are tried again after a while. If a source
topic is no longer the log that was read, its stream is stopped. If the shard was fenced, another
worker may own it; this one takes it again only if the group still assigns it the shard
(docs/exactly-once.md#fencing).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from aiokafka.errors import KafkaError

from overlay.clock import monotonic
from overlay.config import ConsumerConfig, Loaded, OnUndeliverable
from overlay.dispatch.reply_sender import ReplySender
from overlay.dispatch.reply_topics import ReplyTopics
from overlay.errors import DeliveryFailed, Fenced, OverlayError, SourceChanged, SourceUnavailable
from overlay.kafka.admin import Admin
from overlay.kafka.connection import open_client
from overlay.kafka.fetcher import Sharing
from overlay.kafka.own_topics import events_topic, index_topic, state_topic
from overlay.kafka.passed_over import OnPassedOver, ignore
from overlay.logs import get_logger
from overlay.metrics import Metrics
from overlay.output.transaction import PlainSender, Transactions
from overlay.state.shard_state import ConsumerId, Delta, ShardState, encode
from overlay.state.takeover import take_over
from overlay.waits import Backoff, is_cancelled, unless

from .assignment import Assignment, enlist, make_assignment
from .change_setup import prepare
from .changes import Step
from .commit.commits import Commits
from .cursors.initial_positions import open_cursors
from .dispatch_setup import open_dispatch_loop
from .kept.indexes import open_indexes
from .kept.ledgers import follow_starts
from .kept.retention import follow_retention
from .membership import Membership
from .round.task import Counts
from .session import Session
from .watch import watch_topics

log = get_logger(__name__)

KNOWN = (Fenced, DeliveryFailed, SourceUnavailable, SourceChanged)
"""Errors that a retry mends, or that name the consumer or stream to leave out."""
BACKOFF_S = (0.2, 3.0)
"""Shortest and longest pause in seconds after an error in KNOWN."""
LONG_BACKOFF_S = (1.0, 60.0)
"""The same after any other error, which an operator has to mend."""
STEADY_S = 30.0
"""A session that has served for so long counts as one that went well: the next pause is the shortest again."""
AWAIT_S = 5.0
"""How long a stream is left out that waits for what the worker of another shard does, before it is tried again."""
CHANGE_S = 5.0
"""Seconds for which a change waits to be taken up by the running session."""
STALL_S = 60.0
"""Seconds for which a consumer or stream that cannot be served is left out before it is tried
again."""


@dataclass(slots=True)
class Shard:
    """A shard that this worker owns: serves the consumers `mine` and keeps the indexes of `keeps`
    until told to stop. `on_commit`: called with what a round or step counts, once readers can see
    it."""

    loaded: Loaded
    number: int
    mine: dict[ConsumerId, ConsumerConfig]
    keeps: tuple[str, ...]
    """Streams whose chunk index belongs to this shard."""
    admin: Admin
    metrics: Metrics
    membership: Membership
    on_commit: Callable[[Counts], None]
    on_passed_over: OnPassedOver = ignore
    """Called for each reason for which records of an ack topic, an index topic or a source could not be read."""
    sharing: Sharing | None = None
    """The fetches that it shares with other shards of the worker; None if it fetches for itself alone."""
    trouble: str = ""
    """Why nothing is being served right now; empty while all is well."""
    reply_sender: ReplySender = field(init=False)
    """Lives longer than a session: it knows which reply topics have refused records, and still
    sends answers that the last session committed."""
    _stalled: dict[ConsumerId, tuple[str, float]] = field(default_factory=dict)
    """Consumers that are left out, with the reason and the monotonic time at which they are tried
    again."""
    _stopped: dict[str, tuple[str, float]] = field(default_factory=dict)
    """The same for streams."""
    _blocked: frozenset[str] = frozenset()
    """Streams whose ledgers were behind open transactions when the last session began."""
    _unindexed: dict[str, tuple[str, float]] = field(default_factory=dict)
    """Streams whose index topic refuses."""
    _unaltered: dict[str, str] = field(default_factory=dict)
    """Why index topics could not be given a longer retention, as it was logged."""
    _refusals: Counter[str] = field(default_factory=Counter)
    """How many batches an output topic or index topic has refused since it last accepted one."""
    _moving: Collection[ConsumerId] = ()
    """Consumers whose new configs the session is taking up. What is counted of them may be in their former topics."""
    _failures: int = 0
    _served_since: float = float("inf")
    """When the session began to serve, monotonic seconds; infinity while none does."""
    _session: Session | None = None

    def __post_init__(self) -> None:
        self.reply_sender = ReplySender(self.loaded.service.kafka, ReplyTopics(self.admin), self._count_refused)

    @property
    def session(self) -> Session | None:
        """The session that serves the shard or is about to; None if there is none, or if it only waits for its tasks
        to end.
        """
        return None if self._session is None or self._session.is_over else self._session

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop`. An error is not raised but put into `trouble`, and after a pause the
        shard begins again from what is committed."""
        try:
            await self._run_sessions(stop)
        finally:
            await self.reply_sender.close()

    async def take_up(self, loaded: Loaded, mine: dict[ConsumerId, ConsumerConfig], step: Step) -> bool:
        """Serve the consumers `mine` from now on, and have the running session take up the step to that. Return whether it
        has: if not, the shard has to be stopped and started anew. No error is raised: a new session takes up any change.
        """
        # before the session forgets a consumer: the one after it must not begin it anew
        self.loaded, self.mine = loaded, mine
        session = self.session
        if session is None:
            return False
        self._moving = step.changed.keys()
        try:
            async with asyncio.timeout(CHANGE_S):
                change = await prepare(session, self.admin, loaded, mine, step)
                return change is not None and await session.changes.put(change)
        except asyncio.CancelledError:
            # a session that ends cancels what its client was asked
            if is_cancelled():
                raise
            reason = "its session has ended"
        except (OverlayError, KafkaError, TimeoutError) as error:
            reason = str(error) or type(error).__name__
        except Exception as error:
            reason = type(error).__name__
            self.metrics.unforeseen_errors.labels("shard").inc()
            log.exception("an error that was not foreseen", shard=self.number)
        finally:
            self._moving = ()
        log.warning("a new session takes up the change", shard=self.number, reason=reason)
        return False

    async def _run_sessions(self, stop: asyncio.Event) -> None:
        """Run one session after the other until `stop`, with a pause after each error. Raises
        CancelledError if the task itself is cancelled."""
        while not stop.is_set():
            try:
                await self._serve(stop)
            except asyncio.CancelledError as error:
                if is_cancelled():
                    raise
                # a task of the session was cancelled, and not by us: if the shard ended silently
                # here, no worker would serve it
                self._note(error)
                await self._rest(stop, BACKOFF_S)
            except KNOWN as error:
                self._note(error)
                await self._rest(stop, BACKOFF_S)
            except Exception as error:
                # unreadable state, refused credentials or a bug: none of them concerns other shards
                self._note(error)
                if not isinstance(error, OverlayError):
                    self.metrics.unforeseen_errors.labels("shard").inc()
                    log.exception("an error that was not foreseen", shard=self.number)
                await self._rest(stop, LONG_BACKOFF_S)

    def _note(self, error: BaseException) -> None:
        """Log and count the error that has ended a session, and put it into `trouble`. Record which
        consumers, streams or indexes the next sessions leave out, for STALL_S."""
        self.trouble = str(error) or type(error).__name__
        if monotonic() - self._served_since >= STEADY_S:
            self._failures = 0  # commits reset this too, but some shards have nothing to commit
        self._served_since = float("inf")
        self._failures += 1
        cause = type(error).__name__
        self.metrics.shard_restarts.labels(cause).inc()
        log.warning("beginning again from what is committed", shard=self.number, cause=cause, reason=str(error))
        if isinstance(error, Fenced):
            self.metrics.fenced.inc()
        if isinstance(error, DeliveryFailed):
            self._stall(error)
        if isinstance(error, SourceChanged) and error.stream:
            self._stopped[error.stream] = (str(error), monotonic() + STALL_S)

    def _count_refused(self, reason: str, count: int) -> None:
        self.metrics.replies_refused.labels(reason).inc(count)

    def _stall(self, error: DeliveryFailed) -> None:
        """Leave out, for STALL_S, the consumers that write to a topic that has refused a batch finally
        (`error.final`), or twice since it last took one (docs/exactly-once.md#refusing-outputs). If the
        error names a consumer, only that one is left out. Leave out indexes likewise whose topic has
        refused.

        Consumers with `on_undeliverable: dead_letter` are not left out at the first refusal, unless the
        error names them. The topic's size limit may have been lowered, and the next session looks it up
        again; it then writes dead letters for what is too large.
        """
        self._refusals.update(error.topics)
        is_second = self._refusals[error.topic] > 1
        if not error.final and not is_second:
            return
        for stream in self.keeps:
            if index_topic(self.loaded.service.topics.prefix, stream) in error.topics:
                self._unindexed[stream] = (str(error), monotonic() + STALL_S)
                log.error("the stream is not indexed for now", stream=stream, reason=str(error))
        for consumer, config in self.mine.items():
            buries = config.on_undeliverable is OnUndeliverable.DEAD_LETTER and not is_second
            writes = not error.topics.isdisjoint((config.deliver_subject, config.dead_letter_topic))
            if consumer == error.consumer or (error.consumer is None and writes and not buries):
                self._stalled[consumer] = (str(error), monotonic() + STALL_S)
                log.error("consumer stalled", stream=consumer[0], consumer=consumer[1], reason=str(error))

    async def _rest(self, stop: asyncio.Event, backoff: tuple[float, float]) -> None:
        """Wait after an error, or until `stop` is set. `backoff`: shortest and longest pause in
        seconds; it doubles with each error in a row."""
        await Backoff(*backoff, failures=self._failures - 1).rest(stop)

    async def _serve(self, stop: asyncio.Event) -> None:
        """Wait until the group assigns us the shard, take it over, and run one session. Return when
        `stop` is set, or when a change requires a new session. Raises the error that ends the
        session."""
        if not await unless(stop, self.membership.await_ownership(self.number)):
            return
        async with contextlib.AsyncExitStack() as closing:
            session, state = await self._open_session(closing)
            self._session = session
            try:
                session.dispatch_loop = session.changes.dispatch_loop = await open_dispatch_loop(
                    session.client, self.admin, self.metrics, self.loaded,
                    session.assignment, state, session.cursors, session.commits, self.reply_sender, session.plain,
                    self.on_passed_over,
                )  # fmt: skip
                await session.snapshots.load()
                self.trouble, self._served_since = "", monotonic()
                await self._run(session, stop)
            finally:
                session.end()
                self._session = None
                self.reply_sender.leave()

    async def _open_session(self, closing: contextlib.AsyncExitStack) -> tuple[Session, ShardState]:
        """Take the shard over, create the topics that its streams and consumers lack, and find where these go on.
        Return the session, which does not run yet, and the shard's state. `closing` gets callbacks that close what
        was opened.
        """
        service = self.loaded.service
        prefix = service.topics.prefix
        client = await open_client(service.kafka)
        closing.push_async_callback(client.close)
        outputs = {config.deliver_subject for config in self.mine.values() if config.is_push}
        transactions, state = await take_over(service.kafka, client, self.admin, prefix, self.number, self._confirm)
        closing.push_async_callback(transactions.close)
        own = {*outputs, *(index_topic(prefix, stream) for stream in self.keeps), events_topic(prefix)}
        await self._end_lost(transactions, own)
        assignment, delta = await make_assignment(
            client, self.admin, self.loaded, self.mine, self.keeps, state, *self._left_out()
        )
        resumes = await open_indexes(
            client, self.admin, service, self._list_indexes(), assignment, state, delta, self._blocked
        )
        self._blocked = frozenset(assignment.blocked)
        self._note_passed_over(assignment)
        record = functools.partial(_record, transactions, state)
        await enlist(client, self.admin, self.loaded, self.mine, state, assignment, delta, record)
        written = {*own, *assignment.index_topics.values(), *assignment.outputs}
        await transactions.look_up(written)
        await transactions.end_lost(transactions.list_partitions(written - own))
        state.apply(delta)
        place = (state_topic(prefix), self.number)
        session = Session(
            client=client,
            admin=self.admin,
            metrics=self.metrics,
            assignment=assignment,
            cursors=open_cursors(assignment, state, resumes),
            commits=Commits(
                transactions, state, place, self.admin, self.metrics, self._note_counts, self._note_commit,
                assignment.output_partitions, since_all=state.length,
            ),
            plain=await self._open_plain(assignment, closing),
            on_passed_over=self.on_passed_over,
            sharing=self.sharing,
        )  # fmt: skip
        return session, state

    def _note_passed_over(self, assignment: Assignment) -> None:
        """Count and report the records of index topics that could not be read."""
        for stream, found in assignment.passed_over:
            self.metrics.index_records_unreadable.labels(stream, found.reason).inc(found.count)
            self.on_passed_over(found)

    async def _confirm(self, state: ShardState) -> int | None:
        """Ask the group whether it still assigns us the shard. Return the group's generation if it
        does, else None. `state`: the shard's state, which has the generation of its last owner."""
        generation = await self.membership.confirm(self.number)
        if generation is not None and generation < state.generation:
            log.info(
                "the group of workers was forgotten by Kafka and counts anew", was=state.generation, now=generation
            )
        return generation

    def _left_out(self) -> tuple[dict[ConsumerId, str], dict[str, str]]:
        """Return the consumers and the streams that are left out now, each with the reason. Entries
        whose time is over are forgotten."""
        now = monotonic()
        self._stalled = {consumer: kept for consumer, kept in self._stalled.items() if kept[1] > now}
        self._stopped = {stream: kept for stream, kept in self._stopped.items() if kept[1] > now}
        stalled = {consumer: why for consumer, (why, _) in self._stalled.items()}
        return stalled, {stream: why for stream, (why, _) in self._stopped.items()}

    async def _end_lost(self, transactions: Transactions, topics: set[str]) -> None:
        """End the transactions that former owners have left open in those of the topics that exist. Call it
        before these topics are read: records after an open transaction cannot be read."""
        known = await self.admin.find_topics(topics, with_config=False, denied={})
        await transactions.end_lost(await transactions.find_partitions(known))

    def _list_indexes(self) -> dict[str, str]:
        """Return the streams whose index this shard keeps, each with the reason why the index is
        left out now, or "" if it is not."""
        now = monotonic()
        self._unindexed = {stream: kept for stream, kept in self._unindexed.items() if kept[1] > now}
        return {stream: self._unindexed.get(stream, ("", 0.0))[0] for stream in self.keeps}

    def _find_retry(self, assignment: Assignment) -> float:
        """Return the monotonic time in seconds at which the first of the consumers, streams and
        indexes that are left out is tried again; infinity if none is. Consumers and indexes that only
        `assignment` leaves out are tried again after STALL_S, its `waiting` streams after AWAIT_S. Its
        other stopped streams have no such time."""
        noted = [until for left in (self._stalled, self._stopped, self._unindexed) for _, until in left.values()]
        if assignment.waiting:
            noted.append(monotonic() + AWAIT_S)
        # what the assignment itself found, such as a topic that may not be created, is noted nowhere else
        found = assignment.stalled.keys() - self._stalled.keys() or assignment.unindexed.keys() - self._unindexed.keys()
        return min([*noted, monotonic() + STALL_S] if found else noted, default=float("inf"))

    def _note_commit(self) -> None:
        self._failures = 0

    def _note_counts(self, counts: Counts) -> None:
        """Reset the refusals of the output and dead letter topics to which consumers have delivered
        in a committed round, and of the index topics written in it. Then call `on_commit`."""
        for consumer in counts.list_consumers().difference(self._moving) if self._refusals else ():
            if (config := self.mine.get(consumer)) is None:
                continue  # it was deleted meanwhile
            for topic in (config.deliver_subject, config.dead_letter_topic):
                self._refusals.pop(topic, None)
        for topic in counts.index_topics:
            self._refusals.pop(topic, None)
        self.on_commit(counts)

    async def _open_plain(self, assignment: Assignment, closing: contextlib.AsyncExitStack) -> PlainSender | None:
        """Return a started sender for the output and dead letter topics that are not written in transactions, None if
        there are none. `closing` gets the callback that closes it.
        """
        output_topics = [
            each
            for reader in assignment.readers.values()
            for each in (reader.output_topic, reader.dead_letter_topic)
            if each
        ]
        topics = {output_topic.topic for output_topic in output_topics if not output_topic.transactional}
        if not topics:
            return None
        plain = PlainSender(self.loaded.service.kafka)
        await plain.start(topics)
        closing.push_async_callback(plain.close)
        return plain

    async def _run(self, session: Session, stop: asyncio.Event) -> None:
        """Run the session, and return after its last commit: when `stop` is set, when a topic has
        changed, or when it is time to try again what was left out. Raises the error that ends the
        session: its own, or that of a task beside it, such as the watch if a topic cannot be read or
        written any more."""
        enough = asyncio.Event()
        retry_at = self._find_retry(session.assignment)
        serving = asyncio.create_task(session.run(enough), name=f"shard-{self.number}")
        watching = asyncio.create_task(watch_topics(self.admin, session.following, retry_at), name="watch")
        stopping = asyncio.create_task(stop.wait())
        expire = session.dispatch_loop.expire if session.dispatch_loop is not None else lambda lows: None
        trimming = asyncio.create_task(
            follow_starts(self.admin, session.assignment, session.cursors, expire), name="trim"
        )
        extending = asyncio.create_task(
            follow_retention(self.admin, session.assignment, self._unaltered), name="extend"
        )
        tasks = (serving, watching, stopping, trimming, extending)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for following in (trimming, extending):  # these two end only with an error
                if following.done():
                    following.result()
            if watching.done():
                log.info("a new session begins", shard=self.number, reason=watching.result())
            enough.set()
            await serving
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _record(transactions: Transactions, state: ShardState, delta: Delta) -> None:
    """Commit a delta in a transaction of its own, and then apply it to `state`, whose end and length it
    moves. For use before the session begins. Raises Fenced, SourceUnavailable."""
    await transactions.begin()
    value = encode(state.sign().merge(delta), after=state.end)
    offset, _ = await transactions.finish(value, after=state.end)
    state.apply(delta)
    state.end = offset + 1
    state.length += 1
