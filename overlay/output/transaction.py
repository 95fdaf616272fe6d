"""The transactions of a shard: output batches and the state record that accounts for them,
committed together.

These rules make it hold (docs/exactly-once.md#transactions, found by experiment with aiokafka
0.14):

- `commit_transaction()` does not know about batches that failed. So every batch is awaited first
  (produce.py), and one error is enough to abort.
- After an abort the producer may fail for ever with out-of-order sequences. So it is dropped,
  together with everything the shard has in memory. `Transactions` serves one series of commits and
  is closed after the first failure.
- Nothing may be aborted while a broker may still take a batch. Brokers that do not verify a batch's
  transaction with the coordinator (before 3.6, or with
  transaction.partition.verification.enable=false) would begin another transaction with it. That
  would hold up readers, and the producer's next commit would make the batch visible. InitProducerId
  aborts as well, and its new epoch keeps such a batch out.
- A batch that the broker refuses for a passing reason is retried. A deadline ends the retries, well
  before the broker would time out the transaction by itself.
- What the former owner's last transaction left open, because Kafka lost its marker, is ended before
  anything is written (lost_markers.py). A transaction of our own that lost its marker is completed before the
  next one begins, and a partition that does not tell is added to none (own_markers.py).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.client import CoordinationType
from aiokafka.errors import KafkaError, TopicAuthorizationFailedError
from aiokafka.structs import TopicPartition

from overlay.clock import monotonic, now_ms
from overlay.credentials import stamp
from overlay.errors import DeliveryFailed, Fenced, SourceUnavailable, StateCut
from overlay.kafka.connection import BOOTSTRAP_S, for_aiokafka, mend_client
from overlay.kafka.properties import Properties
from overlay.logs import get_logger
from overlay.waits import Backoff, finish_within

from .batch_builder import OutputBatch
from .ending import Ending, find_ending
from .entry import Entry, press_entries
from .lost_markers import (
    LastTransaction,
    OpenPartitions,
    OpenTransaction,
    Outcome,
    find_last,
    find_leaderless,
    find_open,
)
from .own_markers import OwnMarkers
from .produce import FENCED, Produce
from .record import Record

log = get_logger(__name__)

TRANSACTION_TIMEOUT_MS = 15_000
DEADLINE_S = 10.0
START_DEADLINE_S = 30.0
STOP_S = 2.0
ANSWERS_S = 2.0
"""Seconds for which an abort waits for the answers to requests in flight."""
LOOK_BACKOFF_S = (0.05, 1.0)
"""Pauses between two looks for leaders, and for transactions that were left open."""


class _Sender:
    """An aiokafka producer that is started with a deadline, and stopped without waiting for what
    can no longer succeed.
    """

    def __init__(self, kafka: Properties, **settings: Any) -> None:
        seen = stamp(kafka)
        self._producer = AIOKafkaProducer(
            **for_aiokafka(kafka), acks="all", enable_idempotence=True, request_timeout_ms=10_000, **settings
        )
        mend_client(self._producer.client, kafka, seen)
        self._produce = Produce(self._producer)

    async def start(self, topics: Iterable[str]) -> None:
        """Connect, and get the metadata of all `topics` in one request, within START_DEADLINE_S. If that fails,
        close.

        A transactional producer fences its predecessor here. Raises SourceUnavailable.
        """
        try:
            async with asyncio.timeout(START_DEADLINE_S):
                await finish_within(self._producer.start(), BOOTSTRAP_S)
                await self._producer.client.set_topics(list(topics))
        except (KafkaError, OSError, TimeoutError) as error:
            await self.close()
            raise SourceUnavailable(
                f"the producer cannot start: {str(error) or type(error).__name__}. Where another"
                " transaction of ours cannot end, see whether every output topic has its replicas in sync"
            ) from error
        except BaseException:
            await self.close()
            raise

    async def look_up(self, topics: Iterable[str]) -> None:
        """Add topics to the client, and get their metadata in one request, instead of one by one as
        batches are sent. Errors of Kafka are not raised: the topics then stay unknown for now.
        """
        client = self._producer.client
        for topic in topics:
            client._topics.add(topic)
        # an update that is under way does not ask for them, and the next call would wait for that one
        await client._maybe_wait_metadata()
        await client.force_metadata_update()

    def list_partitions(self, topics: Iterable[str]) -> set[TopicPartition]:
        """Return the partitions of topics that were looked up; none of a topic that does not exist."""
        cluster = self._producer.client.cluster
        return {TopicPartition(topic, each) for topic in topics for each in cluster.partitions_for_topic(topic) or ()}

    async def close(self) -> None:
        """Disconnect, and fail batches in flight. Takes about 2 * STOP_S at most, and raises no error."""
        producer = self._producer
        await self._produce.close()
        # the producer may wait for a coordinator that is gone, and a connection until its buffered
        # bytes are sent
        for close in (producer.stop, producer.client.close):
            stopping = asyncio.create_task(close())
            await asyncio.wait((stopping,), timeout=STOP_S)
            stopping.cancel()
            await asyncio.gather(stopping, return_exceptions=True)
        waiter = producer._txn_manager and producer._txn_manager._transaction_waiter
        if waiter and waiter.done() and not waiter.cancelled():
            waiter.exception()  # otherwise asyncio warns about an exception that was never retrieved


class PlainSender(_Sender):
    """A sender for `delivery: at_least_once`: batches without a transaction. `start` has to be
    called first.
    """

    def __init__(self, kafka: Properties) -> None:
        super().__init__(kafka)
        self._order = asyncio.Lock()

    async def send(self, batches: Iterable[OutputBatch]) -> list[int]:
        """Send batches without a transaction, and wait until Kafka has taken them. Return the
        offset of the first record of each. Overlapping calls are served one after the other.
        Raises DeliveryFailed or Fenced; then the sender cannot be used any more.
        """
        async with self._order:
            return await self._produce.send(batches, DEADLINE_S)


class Transactions(_Sender):
    """The transactions of one shard, one after the other. `start` has to be called first.

    A method that writes raises Fenced, DeliveryFailed or SourceUnavailable if it fails. Then the
    transaction is aborted if possible, and the object cannot be used any more.
    """

    def __init__(
        self,
        kafka: Properties,
        transactional_id: str,
        state_topic: str,
        shard: int,
        timeout_ms: int = TRANSACTION_TIMEOUT_MS,
    ) -> None:
        """`shard`: the partition of the state topic. `timeout_ms`: the broker aborts a transaction
        that takes longer; at most its transaction.max.timeout.ms."""
        super().__init__(kafka, transactional_id=transactional_id, transaction_timeout_ms=timeout_ms)
        self._state = TopicPartition(state_topic, shard)
        self._answered = asyncio.Event()
        self._last = LastTransaction(None)
        """The last transaction before this producer, if the coordinator knew it."""
        self._endings: tuple[Ending, ...] = ()
        """How the last transactions of owners before the last one were decided."""
        self._markers = OwnMarkers(self._producer.client, lambda: self._producer._txn_manager._pid_and_epoch)
        self._left: set[str] = set()
        """Topics to which nothing more is written, and whose partitions may have a transaction open."""
        self._presumed: set[TopicPartition] = set()
        """Partitions in which an open transaction counts as committed if it is not known how it was decided."""
        self._watch_answers()
        self._look_back_first()

    @property
    def owner(self) -> str:
        """A text of [0-9x] that names this ownership of the shard; valid after `start`.

        It is made of producer id and epoch. Kafka gives each pair to only one InitProducerId, so no
        other ownership has the same.
        """
        producer_id, epoch = self._producer._txn_manager._pid_and_epoch
        return f"{producer_id}x{epoch}"

    async def end_lost(self, partitions: Iterable[tuple[str, int]], state: bytes | None = None) -> None:
        """End what transactions of a former producer have left open in these partitions, in the way
        in which each was decided, as far as that is known (lost_markers.py). Call it after `start`
        and before the first transaction. The topics must be looked up.

        `state`: the value of a state record that changes nothing, None to write none. It is written
        if a transaction is committed that is open in the state's partition, so that this partition
        knows our epoch: if the marker is lost once more, the next owner finds the transaction open
        that was decided last.

        A partition that does not tell within DEADLINE_S is logged; it is added to no transaction until it has
        told, and `begin` ends what is open there. Raises SourceUnavailable if the state's partition does not
        tell, or if it is not known how an open transaction was decided; else as the methods that write.
        """
        await self._end_open(await self._find_open({TopicPartition(*each) for each in partitions}), state)

    def know_endings(self, endings: Iterable[Ending]) -> None:
        """Take in how the last transactions of owners before the last one were decided, as the state says. Call it before
        `end_lost` for other partitions than the state's."""
        self._endings = tuple(endings)

    def find_ending(self) -> Ending | None:
        """Return how the last transaction before this producer was decided, which the state has to keep for later owners;
        None if that is not known. Valid after `start`."""
        return self._last.find_ending()

    def doubt_topics(self, topics: Iterable[str], *, presume_committed: bool = False) -> None:
        """Have the partitions of these topics asked as by `end_lost`, which is called before, without a wait: `begin` ends
        what is open there, and none is added to a transaction before it has told. The topics must be looked up.

        `presume_committed`: if it is not known how an open transaction was decided, commit it; without this, `begin` raises
        SourceUnavailable.
        """
        partitions = self.list_partitions(topics)
        if presume_committed:
            self._presumed |= partitions
        self._markers.note(partitions)

    async def _end_open(self, found: Mapping[TopicPartition, OpenTransaction], state: bytes | None) -> None:
        """End the transactions `found`, each as it was decided. What was begun under our own epoch was committed, since we
        write nothing after an abort. `state`, and what is raised: as `end_lost`."""
        outcomes = {tp: self._decide(tp, opened) for tp, opened in found.items()}
        outcomes |= {tp: Outcome.COMMITTED for tp in self._presumed & outcomes.keys() if outcomes[tp] is None}
        if unknown := [tp for tp, outcome in outcomes.items() if outcome is None]:
            raise SourceUnavailable(
                f"{_name(found, unknown)}: a transaction of {self._producer._txn_manager.transactional_id} ended without its"
                " marker, and Kafka does not know any more whether it was committed. `kafka-transactions.sh find-hanging`"
                " shows it, and `abort` ends it; docs/operations.md says what that means"
            )
        for outcome in Outcome:
            if chosen := {tp for tp in found if outcomes[tp] is outcome}:
                event = "ending a transaction whose marker Kafka has lost"
                log.warning(event, partitions=_name(found, chosen), outcome=outcome.value)
                await self._end_as(outcome, chosen, state)

    def _decide(self, tp: TopicPartition, opened: OpenTransaction) -> Outcome | None:
        """Return how the transaction `opened`, which is open in the partition `tp`, was decided; None if that is not known.
        The state's partition is judged without the endings in the state, which it hides."""
        producer, epoch = self._producer._txn_manager._pid_and_epoch
        if opened.epoch == epoch:
            return Outcome.COMMITTED
        ending = find_ending(self._endings, producer, opened.epoch)
        if ending is None or tp == self._state:
            return self._last.decide(tp, opened, self._state)
        return Outcome.COMMITTED if ending.has_committed((tp.topic, tp.partition)) else Outcome.ABORTED

    async def _end_as(self, outcome: Outcome, partitions: set[TopicPartition], state: bytes | None) -> None:
        """End what is open in these partitions as `outcome` says, in a transaction of our own without records. Only if
        that is committed, and the state's partition is among `partitions`, it has the state record `state` (None for
        none)."""
        async with self._guard(), asyncio.timeout(2 * DEADLINE_S):
            await self._producer.begin_transaction()
            await self._include(partitions)
            if outcome is Outcome.ABORTED:
                await self._producer.abort_transaction()
            else:
                if state is not None and self._state in partitions:
                    record = Entry(self._state.topic, Record(None, state), self._state.partition)
                    await self._send(press_entries([record], now_ms()))
                await self._producer.commit_transaction()
        self._markers.note(partitions)

    async def _find_open(self, asked: set[TopicPartition]) -> dict[TopicPartition, OpenTransaction]:
        """Return those of the partitions `asked` in which our producer id has a transaction open, each with that
        transaction. A partition that does not tell within DEADLINE_S is logged, left out, and asked on, whatever other ones
        have told; if it is that of the state, raise SourceUnavailable.
        """
        client = self._producer.client
        producer_id = self._producer._txn_manager.producer_id
        found = OpenPartitions.before_asking(asked)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DEADLINE_S):
                backoff = Backoff(*LOOK_BACKOFF_S)
                await find_open(client, producer_id, found)
                while found.unknown:
                    await backoff.rest()
                    await client.force_metadata_update()
                    await find_open(client, producer_id, found)
        if (reason := found.unknown.get(self._state)) is not None:
            place = f"{self._state.topic}-{self._state.partition}"
            raise SourceUnavailable(f"{place}: it does not say which transactions are open: {reason}")
        if found.unknown:
            log.warning(
                "output partitions do not say which transactions are open",
                partitions={f"{tp.topic}-{tp.partition}": why for tp, why in sorted(found.unknown.items())},
            )
            self._markers.note(found.unknown.keys())
        return found.open

    async def begin(self) -> None:
        """Begin a transaction, after the last one has its markers (own_markers.py). What has lost its marker is completed.
        Partitions that do not tell are left as they are. Raises SourceUnavailable if the state's partition does not tell
        within DEADLINE_S, or if markers are lost again and again for as long. Then no transaction is begun, so that the
        coordinator can tell the next owner how the last one was decided.
        """
        deadline = monotonic() + DEADLINE_S
        while found := await self._markers.await_told({self._state}, deadline):
            if monotonic() > deadline:
                raise SourceUnavailable(
                    f"{_name(found, found)}: Kafka loses the markers of transactions again and again"
                )
            await self._end_open(found, None)
        if self._state in self._markers.unseen:
            raise SourceUnavailable(
                f"{self._state.topic}-{self._state.partition}: it does not say that the last transaction has ended there"
            )
        self.drop_topics(())
        async with self._guard():
            await self._producer.begin_transaction()

    async def send(self, batches: Iterable[OutputBatch]) -> list[int]:
        """Send batches of the open transaction, and wait until Kafka has taken them; return the
        offset of each batch's first record, in the order of `batches`.

        Only one call at a time.
        """
        async with self._guard():
            return await self._send(list(batches))

    async def commit(self, batches: Sequence[OutputBatch]) -> list[int]:
        """Send the last batches of the open transaction, wait until Kafka has taken them, and
        commit; return the offset of each batch's first record, in the order of `batches`.
        """
        return await self._commit(batches)

    async def _commit(
        self, batches: Sequence[OutputBatch], check: Callable[[list[int]], None] | None = None
    ) -> list[int]:
        """Send batches and commit; return the offset of each batch's first record. `check` gets these offsets before
        the commit. If it raises StateCut, nothing is committed."""
        async with self._guard(), asyncio.timeout(2 * DEADLINE_S):
            offsets = await self._send(batches)
            if check is not None:
                check(offsets)
            written = set(self._producer._txn_manager.txn_partitions)
            await self._producer.commit_transaction()
        self._markers.note(written)
        return offsets

    async def look_up(self, topics: Iterable[str]) -> None:
        """Add topics as `_Sender` does. Those that were dropped are kept again."""
        topics = set(topics)
        self._left -= topics
        await super().look_up(topics)

    async def find_partitions(self, topics: Iterable[str]) -> set[TopicPartition]:
        """Look up topics that exist, and return their partitions. Raises SourceUnavailable if Kafka does not tell of all of
        them within DEADLINE_S."""
        topics, backoff = set(topics), Backoff(*LOOK_BACKOFF_S)
        deadline = monotonic() + DEADLINE_S
        while True:
            await self.look_up(topics)
            found = self.list_partitions(topics)
            lacking = sorted(topics - {tp.topic for tp in found})
            if not lacking:
                return found
            if monotonic() > deadline:
                raise SourceUnavailable(f"Kafka does not tell of the partitions of {', '.join(lacking[:5])}")
            await backoff.rest()

    def drop_topics(self, topics: Iterable[str]) -> None:
        """Ask Kafka no more for the metadata of these topics, to which nothing more is written: a request for them may
        create them again. It goes on while their partitions may have a transaction open; that ends with a later `begin`.
        """
        self._left.update(topics)
        unseen = {tp.topic for tp in self._markers.unseen}
        if gone := self._left - unseen:
            self._producer.client._topics.difference_update(gone)
            self._produce.drop_topics(gone)
        self._left &= unseen

    async def close(self) -> None:
        await self._markers.close()
        await super().close()

    async def abort(self) -> None:
        """Abort the open transaction, unless a broker may still take a batch of it. Errors of Kafka
        are dropped. This object cannot be used any more.
        """
        await self._abort()

    async def finish(
        self, state: bytes, batches: Sequence[OutputBatch] = (), more: Sequence[Record] = (), *, after: int = 0
    ) -> tuple[int, list[int]]:
        """Send the last batches of the open transaction together with the state record, and commit.

        Return the state record's offset, and the offset of each batch's first record. `state`: the value of the state
        record. `more`: further records for the state's partition, after that one. Sending them together saves a round
        trip to the coordinator, and produce requests.

        `after`: the offset at which the state's partition ended when it was last read or written. Raises StateCut,
        and commits nothing, if Kafka puts the state record below that offset: the partition has lost records.
        """
        topic, partition = self._state
        records = press_entries([Entry(topic, record, partition) for record in (Record(None, state), *more)], now_ms())

        def check(offsets: list[int]) -> None:
            if (offset := offsets[len(batches)]) < after:
                raise StateCut(
                    f"{topic}-{partition}: the log has lost its end: a record got offset {offset}, although records up to"
                    f" {after} had been written. What they said is done again"
                )

        offsets = await self._commit([*batches, *records], check)
        return offsets[len(batches)], offsets[: len(batches)]

    async def write(self, batches: Sequence[OutputBatch]) -> list[int]:
        """Begin a transaction, send these batches, and commit; return the offset of each batch's
        first record, in the order of `batches`.
        """
        await self.begin()
        return await self.commit(batches)

    async def _send(self, batches: Sequence[OutputBatch]) -> list[int]:
        """Add the partitions of these batches to the open transaction, and send the batches. If a partition may still have
        a former transaction open (own_markers.py), it is not added, and DeliveryFailed is raised."""
        partitions = {TopicPartition(outgoing.topic, outgoing.partition) for outgoing in batches}
        if self._markers.unseen and (silent := await self._markers.await_marked(partitions, DEADLINE_S)):
            reason = "it does not say that the last transaction of this producer has ended there"
            first = min(silent)
            raise DeliveryFailed(first.topic, first.partition, reason, final=False, topics={tp.topic for tp in silent})
        await self._include(partitions)
        return await self._produce.send(batches, DEADLINE_S)

    async def _include(self, partitions: set[TopicPartition]) -> None:
        """Have the coordinator add those of the partitions to the open transaction that it does not have yet, and wait
        for that. Raises TimeoutError after DEADLINE_S, or the error with which the transaction has ended.
        """
        transaction = self._producer._txn_manager
        ended = transaction.wait_for_transaction_end()
        async with asyncio.timeout(DEADLINE_S):
            while not ended.done() and (missing := partitions - transaction.txn_partitions):
                self._answered.clear()
                for tp in missing - transaction.partitions_to_add():
                    transaction.maybe_add_partition_to_txn(tp)
                answered = asyncio.create_task(self._answered.wait())
                await asyncio.wait((answered, ended), return_when=asyncio.FIRST_COMPLETED)
                answered.cancel()
        if ended.done():
            ended.result()

    def _watch_answers(self) -> None:
        """Set `_answered` at each answer to AddPartitionsToTxn, which aiokafka does not report."""
        sender = self._producer._sender
        ask = sender._do_add_partitions_to_txn

        async def ask_and_tell(partitions: set[TopicPartition]) -> bool:
            try:
                return bool(await ask(partitions))
            finally:
                self._answered.set()

        sender._do_add_partitions_to_txn = ask_and_tell

    def _look_back_first(self) -> None:
        """Have aiokafka's producer look at the last transaction before each InitProducerId, which it repeats
        until one has succeeded. If the look fails, InitProducerId is not sent: it would make the coordinator forget."""
        sender = self._producer._sender
        init = sender._do_init_pid

        async def look_back_and_init(coordinator: int) -> bool:
            try:
                last = await self._look_back(coordinator)
            except KafkaError as error:
                log.info("the coordinator does not tell of the last transaction yet", reason=str(error))
                sender._coordinator_dead(CoordinationType.TRANSACTION)
                await asyncio.sleep(sender._retry_backoff)
                return False
            self._last = self._last.follow(last)
            return bool(await init(coordinator))

        sender._do_init_pid = look_back_and_init

    async def _look_back(self, coordinator: int) -> LastTransaction:
        """Return the last transaction, once each of its unmarked partitions and the state's has a leader, as the
        coordinator knows it: without one the marker that InitProducerId writes would be lost. `coordinator`: a node
        id. The caller of `start` waits no longer than its deadline. Raises KafkaError if the coordinator does not
        tell.
        """
        client, backoff = self._producer.client, Backoff(*LOOK_BACKOFF_S)
        while True:
            last = await find_last(client, coordinator, self._producer._txn_manager.transactional_id)
            leaderless = await find_leaderless(client, coordinator, {self._state, *last.unmarked})
            if not leaderless:
                return last
            await backoff.rest()

    @contextlib.asynccontextmanager
    async def _guard(self) -> AsyncIterator[None]:
        """Run a block, and raise errors of Kafka, of connections and timeouts as Fenced, DeliveryFailed or
        SourceUnavailable. Before that `_abort` is called, but not if aiokafka's own requests say that this producer
        was fenced.

        Nothing is committed then, except perhaps after SourceUnavailable or Fenced from a commit: then only the state
        can tell (docs/exactly-once.md#unknown-outcomes). In every case this object cannot be used any more.
        """
        try:
            yield
        except FENCED as error:
            raise Fenced(f"{self._state.topic}-{self._state.partition}: {type(error).__name__}: {error}") from error
        except TopicAuthorizationFailedError as error:
            await self._abort()
            topics = error.args[0] if error.args and error.args[0] else {self._state.topic}
            raise DeliveryFailed(min(topics), -1, "not authorized to write", final=True, topics=topics) from error
        except (Fenced, DeliveryFailed, StateCut):
            await self._abort()
            raise
        except (KafkaError, OSError, TimeoutError) as error:
            await self._abort()
            raise SourceUnavailable(f"the transaction did not end: {str(error) or type(error).__name__}") from error

    async def _abort(self) -> None:
        """Stop sending, and abort the transaction unless a broker may still take a batch of it.
        Errors are dropped.

        If another partition may have a committed transaction open, nothing is aborted either: a new owner could not tell
        any more that it is not of this one, which the coordinator knows by its partitions until it ends.

        This is best effort: the next owner's InitProducerId aborts an open transaction, and the
        broker does so after its timeout.
        """
        reason = ""
        if not await self._produce.settle(ANSWERS_S):
            reason = "a broker may still take a batch"
        if self._markers.unseen:
            reason = "a partition does not say whether a former one is open"
        if reason:
            log.info("transaction left open", reason=reason, state=f"{self._state.topic}-{self._state.partition}")
            return
        # AssertionError: a producer that was fenced refuses to abort as well
        with contextlib.suppress(KafkaError, OSError, TimeoutError, AssertionError):
            async with asyncio.timeout(3.0):
                await self._producer.abort_transaction()


def _name(found: Mapping[TopicPartition, OpenTransaction], chosen: Iterable[TopicPartition]) -> str:
    """Return the chosen partitions for a message, each with the first offset of its open transaction."""
    return ", ".join(f"{tp.topic}-{tp.partition}@{found[tp].offset}" for tp in sorted(chosen))
