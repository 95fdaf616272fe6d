"""A member of a reader group on an output topic: receives, buffers and commits.

The member commits how far the application has taken its messages. The committed offset decides when
`ack_wait` begins (docs/consumers.md#when-ack_wait-begins). A delivery counts as being processed
once the group's committed offset has passed it. So with acks, a message is passed when it is handed
out, also while it is being processed. A message that was only prefetched does not wait for an ack
yet. If this member leaves, the next one gets it. With `ack_policy: none` or `flow_control` nothing
is redelivered. Then a message is passed only when the application asks for the next one.

Commits and polls continue while an application is busy, because they run in a thread of their own.
So a member that is slow for minutes does not leave the group. If the message buffer has no room for
PATIENCE_S seconds, fetching is paused.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka import KafkaError as RdKafkaError
from confluent_kafka import Message as KafkaRecord
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

from overlay.errors import CredentialsRefused, OverlayError, SourceUnavailable
from overlay.kafka.confluent import Contact, refuse_settings
from overlay.kafka.message_headers import read_headers
from overlay.kafka.properties import Properties, for_confluent
from overlay.logs import get_logger

from .kind import RecordClassifier
from .message_buffer import Batch, MessageBuffer
from .order import is_silent
from .target import Target

log = get_logger(__name__)

BATCH = 1_000
"""Small enough that most records are gone before the garbage collector looks at them twice."""
POLL_S = 0.1
SESSION_MS = 10_000
COMMIT_S = 0.25
PATIENCE_S = 1.0
"""Seconds for which fetching continues while no messages are taken. Pausing drops what the Kafka
client has prefetched.
"""
SLACK_S = 0.25
"""Seconds by which a heartbeat may be late."""
RETRY_S = 1.0
"""Pause between two attempts to make another Kafka client."""
CHANGE_S = 3.0
"""Seconds for which a last commit is retried while the group rebalances."""
_CHANGING = (RdKafkaError.ILLEGAL_GENERATION, RdKafkaError.REBALANCE_IN_PROGRESS)
_REFUSALS = (
    RdKafkaError.TOPIC_AUTHORIZATION_FAILED,
    RdKafkaError.GROUP_AUTHORIZATION_FAILED,
    RdKafkaError.CLUSTER_AUTHORIZATION_FAILED,
    RdKafkaError._AUTHENTICATION,
    RdKafkaError.SASL_AUTHENTICATION_FAILED,
)


class HeartbeatsMissed(OverlayError):
    """No message and no heartbeat has come for more than two idle_heartbeats of the consumer.

    The operator acts, if that does not end by itself.
    """


def _while_group_changes() -> Retrying:
    """Return the attempts at a commit, to loop over (`for attempt in ...: with attempt: ...`). An
    attempt that Kafka refuses because of a rebalance is repeated for CHANGE_S seconds; other errors,
    and the last one, are raised.

    The group may just have agreed on a new generation, which this member is about to learn. Its
    partitions are its own until then.
    """
    return Retrying(
        retry=retry_if_exception(lambda error: isinstance(error, KafkaException) and error.args[0].code() in _CHANGING),
        stop=stop_after_delay(CHANGE_S),
        wait=wait_fixed(0.02),
        reraise=True,
    )


class Member:
    """A member of the reader group of `target` that fills a message buffer with the records of its
    output topic, and commits how far they were handed out, in the thread that calls `run`.

    `is_alone`: no other member can be in the group.
    """

    def __init__(
        self, kafka: Properties, target: Target, message_buffer: MessageBuffer, *, is_alone: bool = False
    ) -> None:
        self._kafka, self._target, self._message_buffer, self._is_alone = kafka, target, message_buffer, is_alone
        self._kind = RecordClassifier(target.head)
        self._passed: dict[int, int] = {}
        self._committed: dict[int, int] = {}
        self.assigned: set[int] = set()
        """Partitions that are assigned to this member."""
        self.has_joined = False
        """Whether the group has dealt out its partitions to this member, however few."""
        self.is_paused = False
        self._heard = self._tried = self._looked_at = 0.0
        self._was_silent = False

    def run(self, stop: threading.Event, on_silence: Callable[[bool], None]) -> None:
        """Receive into the buffer and commit, blocking this thread, until `stop` is set or the
        buffer is ended. Then commit and leave the group.

        `on_silence` is called with True when heartbeats are missed, and with False when they are
        back. Raises CredentialsRefused, SourceUnavailable, and what `on_silence` raises.
        """
        is_first = True
        while not stop.is_set() and not self._message_buffer.is_ended:
            contact = Contact(self._kafka)
            if (consumer := self._make_client(contact, is_first=is_first)) is None:
                stop.wait(RETRY_S)
                continue
            is_first = False
            try:
                consumer.subscribe(
                    [self._target.topic], on_assign=self._take_over, on_revoke=self._give_up, on_lost=self._lose
                )
                while not stop.is_set() and not self._message_buffer.is_ended and not contact.is_spent:
                    self._commit_sometimes(consumer)
                    if self._wait_for_room(consumer):
                        self._receive(consumer)
                        if self._was_silent != (is_silent := self._is_silent()):
                            self._was_silent = is_silent
                            on_silence(is_silent)
            except KafkaException as error:
                raise _judge(self._target, error.args[0]) from error
            finally:
                if not contact.is_lost:
                    self._commit_at_last(consumer)
                # closing revokes the partitions, with a commit of what is not committed yet
                consumer.close()
            if contact.is_spent:
                contact.announce(log, group=self._target.group)
                self.is_paused = False

    def _make_client(self, contact: Contact, *, is_first: bool) -> Consumer | None:
        """Return a new Kafka client. If none can be made of the settings, raise CredentialsRefused if
        `is_first`, else return None: then a file with credentials is being replaced, and the caller tries
        again later.
        """
        try:
            with refuse_settings(self._kafka):
                return Consumer(self._choose_settings() | contact.settings)
        except CredentialsRefused as error:
            if is_first:
                raise
            log.info("waiting for credentials", group=self._target.group, reason=str(error))
            return None

    def _choose_settings(self) -> dict[str, Any]:
        return {
            **for_confluent(self._kafka),
            "topic.metadata.refresh.interval.ms": 5_000,
            "partition.assignment.strategy": "cooperative-sticky",
            "queued.max.messages.kbytes": 32 << 10,
            "fetch.wait.max.ms": 100,
            # if a member dies, the others and the service notice after this time instead of 45 s
            "session.timeout.ms": SESSION_MS,
            # members learn of rebalances in their heartbeats
            "heartbeat.interval.ms": 1_000,
            "log_level": 0,
            "group.id": self._target.group,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "on_commit": self._hear_commit,
            # a partition may end with transaction markers; a reader of everything before has passed
            # them
            "enable.partition.eof": True,
        }

    def _wait_for_room(self, consumer: Consumer) -> bool:
        """Return whether the buffer has room or is ended. The first call that finds no room returns False
        at once; each one after it waits up to POLL_S seconds for room.

        Pauses fetching if there is no room for PATIENCE_S seconds, and resumes it when there is.
        While it is paused, each call polls once, so that the member stays in the group.
        """
        if self._message_buffer.wait_for_room(POLL_S if self.is_paused or self._tried else 0):
            self._tried = 0.0
            if self.is_paused:
                self._go_on(consumer)
                self._heard = time.monotonic()
            return True
        now = time.monotonic()
        self._tried = self._tried or now
        if not self.is_paused and now - self._tried > PATIENCE_S:
            consumer.pause(consumer.assignment())
            self.is_paused = True
        if self.is_paused:
            # a member that does not poll is removed from the group
            self._take_in([record for record in [consumer.poll(0)] if record is not None])
        return False

    def _go_on(self, consumer: Consumer) -> None:
        if self.is_paused:
            consumer.resume(consumer.assignment())
            self.is_paused = False

    def _receive(self, consumer: Consumer) -> None:
        first = consumer.poll(POLL_S)
        if first is not None:
            # the rest of what is available: waiting for a full batch would delay the first record
            self._take_in([first, *consumer.consume(min(BATCH, max(self._message_buffer.room, 1)), 0)])

    def _take_in(self, received: Sequence[KafkaRecord]) -> None:
        """Put received records into the buffer, a batch for each run of records of one partition. At the end of a
        partition, put an empty batch if that end is above the records of the partition among `received`, so that
        transaction markers before it are committed too. Raises CredentialsRefused or SourceUnavailable for an error
        among the records that a retry cannot help with.
        """
        # records are buffered by partition; errors and ends of partitions are handled one by one
        sound = [record for record in received if record.error() is None]
        odd = [record for record in received if record.error() is not None] if len(sound) < len(received) else []
        ends: dict[int, int] = {}
        one = len(self.assigned) == 1 and sound
        runs = [(sound[0].partition(), sound)] if one else groupby(sound, KafkaRecord.partition)
        for partition, run in runs:
            records = deque(run)
            if self._target.heartbeat_s and any(map(self._is_heard, reversed(records))):
                self._heard = time.monotonic()
            ends[partition] = records[-1].offset() + 1
            self._message_buffer.put(Batch(partition, records, ends[partition]))
        for record in odd:
            if record.error().code() != RdKafkaError._PARTITION_EOF:
                self._meet(record.error())
            elif record.offset() > ends.get(record.partition(), 0):
                self._message_buffer.put(Batch(record.partition(), deque(), record.offset()))

    def _is_heard(self, record: KafkaRecord) -> bool:
        headers = read_headers(record)
        return self._kind.find_token(headers) is not None or self._kind.is_status(headers)

    def _is_silent(self) -> bool:
        # no heartbeats can come before partitions are assigned; a member that is alone keeps them
        # from then on
        hears = self._heard > 0 if self._is_alone else bool(self.assigned)
        return hears and is_silent(self._heard, time.monotonic(), self._target.heartbeat_s, SLACK_S)

    def _meet(self, error: RdKafkaError) -> None:
        """Log an error of the Kafka client, which retries by itself. Raise CredentialsRefused or
        SourceUnavailable for one that a retry cannot help with.
        """
        if error.fatal() or error.code() in _REFUSALS:
            raise _judge(self._target, error)
        if error.code() == RdKafkaError.UNKNOWN_TOPIC_OR_PART:
            log.info(
                "waiting for the service to create the output topic",
                consumer=self._target.head.consumer, topic=self._target.topic,
            )  # fmt: skip
            return
        log.info("waiting for Kafka", topic=self._target.topic, group=self._target.group, reason=error.str())

    def _take_over(self, consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        self.assigned.update(place.partition for place in partitions)
        self.has_joined = True
        if partitions:
            self._heard = time.monotonic()
        # new partitions are not paused, and either all partitions are paused or none
        self._go_on(consumer)

    def _give_up(self, consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        if moved := self._forget(partitions):
            try:
                consumer.commit(offsets=self._place(moved), asynchronous=False)
            except KafkaException as error:
                self._warn(error)

    def _commit_at_last(self, consumer: Consumer) -> None:
        """Commit how far messages were handed out, waiting for it, before this member leaves the
        group. A failure is only logged.

        A member that closes hears no more of rebalances, so its commit may belong to a generation
        that has passed. Here it still polls, so a rebalance ends and the commit succeeds.
        """
        try:
            consumer.pause(consumer.assignment())
            for attempt in _while_group_changes():
                with attempt:
                    # paused partitions bring no records; what was received before is read again by
                    # the next owner
                    consumer.poll(0)
                    if moved := self._find_moved():
                        consumer.commit(offsets=self._place(moved), asynchronous=False)
                        self._committed |= moved
        except KafkaException as error:
            self._warn(error)

    def _warn(self, error: KafkaException) -> None:
        # the next owner hands out again what was handed out since the last commit
        log.warning("positions not committed", group=self._target.group, reason=error.args[0].str())

    def _lose(self, _: Consumer, partitions: Sequence[TopicPartition]) -> None:
        self._forget(partitions)

    def _forget(self, partitions: Sequence[TopicPartition]) -> dict[int, int]:
        """Drop what is known and buffered of partitions that this member has lost. Return the
        offsets that were still to be committed for them, by partition.
        """
        lost = {place.partition for place in partitions}
        moved = {partition: offset for partition, offset in self._find_moved().items() if partition in lost}
        self._message_buffer.drop(lost)
        self.assigned -= lost
        for partition in lost:
            self._passed.pop(partition, None)
            self._committed.pop(partition, None)
        return moved

    def _commit_sometimes(self, consumer: Consumer) -> None:
        now = time.monotonic()
        if now - self._looked_at < COMMIT_S:
            return
        self._looked_at = now
        if moved := self._find_moved():
            consumer.commit(offsets=self._place(moved), asynchronous=True)

    def _find_moved(self) -> dict[int, int]:
        """Return the offset to commit by partition: the one after the messages that were handed out. If
        the consumer takes no acks, the last of them counts only once the application has asked for
        more. Only assigned partitions for which another offset was committed last.
        """
        self._passed |= self._message_buffer.find_positions(with_last=self._target.policy.takes_acks)
        return {
            partition: offset
            for partition, offset in self._passed.items()
            if partition in self.assigned and self._committed.get(partition) != offset
        }

    def _place(self, offsets: Mapping[int, int]) -> list[TopicPartition]:
        return [TopicPartition(self._target.topic, *pair) for pair in offsets.items()]

    def _hear_commit(self, error: RdKafkaError | None, places: Sequence[TopicPartition]) -> None:
        # what has failed, for example in a rebalance, is committed again: by the next look, or before
        # its partition goes
        for place in places:
            if error is None and place.error is None and place.partition in self.assigned:
                self._committed[place.partition] = place.offset


def _judge(target: Target, error: RdKafkaError) -> OverlayError:
    where = f"{target.topic}, group {target.group}"
    if error.code() in _REFUSALS:
        return CredentialsRefused(f"{where}: Kafka refused: {error.str()}. Grant Read on the topic and on the group")
    return SourceUnavailable(f"{where}: {error.str()}")
