"""Interest: how far the readers of output topics are, and whether there are any
(docs/consumers.md).

The reader group of a push consumer with `interest: group` is its deliver_group, or a group with the
consumer's name. Its committed offsets are requested while the ack_wait of a delivery has not begun.
The machine is told the consumer sequence up to which the group has read everything.

A topic keeps its records whether or not a reader is connected. So a consumer delivers without
readers as well, as far as max_ack_pending allows. Only a consumer with inactive_threshold follows
the group's members, since it is to end when it is unused: it sleeps while the group has none.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from aiokafka.client import AIOKafkaClient

from overlay.config.consumer import ConsumerConfig, Interest
from overlay.consumer.events import Bound, Event, Read, Unbound
from overlay.consumer.info import Facts
from overlay.consumer.table import ASLEEP
from overlay.dispatch.output_offsets import OutputOffsets
from overlay.errors import OverlayError
from overlay.kafka.admin import Admin
from overlay.kafka.range_reader import find_records_end
from overlay.logs import get_logger
from overlay.output.batch_builder import OutputTopic
from overlay.state.shard_state import ConsumerId

log = get_logger(__name__)

EVERY_S = 0.5
"""Seconds between two turns."""
ALL_EVERY = 4
"""Every so many turns, all groups are asked for their members."""
ENDS_EVERY_S = 10.0
"""Seconds between two looks at the ends of the outputs."""
AT_ONCE = 1_000
"""Groups in one request."""

Order = Callable[[ConsumerId, Event], None]
"""Queues an event for a consumer's machine."""


@dataclass(slots=True)
class Readers:
    """Follows the reader groups of a session's push consumers that have a machine. It queues events
    for the machines: how far a group has read, and whether it has members.

    `output_topics`: None for a pull consumer. `facts`: each machine's state after the last step of
    the dispatcher. `order`: queues an event.
    """

    client: AIOKafkaClient
    admin: Admin
    output_topics: dict[ConsumerId, OutputTopic | None]
    facts: Mapping[ConsumerId, Facts]
    order: Order
    _output_offsets: dict[ConsumerId, OutputOffsets] = field(default_factory=dict)
    """Where the deliveries of each consumer are in its output."""
    _bound: dict[ConsumerId, bool] = field(default_factory=dict)
    """By consumer, whether its group had members at the last look."""
    _denied: dict[str, str] = field(default_factory=dict)
    """Groups whose offsets we may not read, with the reason that was logged last."""
    _unseen: set[str] = field(default_factory=set)
    """Groups whose members we may not see. They count as in use, since a consumer without readers
    may be removed."""

    async def open(self) -> None:
        """Find where the deliveries so far end in the outputs, and queue a Bound event for each
        followed consumer without inactive_threshold, so that it delivers without a reader. Call
        before `run`.
        """
        for consumer, facts, output_topic in self._list_followed():
            read, given = facts.read_up_to, facts.delivered.consumer
            ends = await self._find_ends(output_topic) if given > read else {}
            self._output_offsets[consumer] = OutputOffsets(ends, read, given)
            if not facts.config.inactive_threshold:
                self.order(consumer, Bound())

    def admit(self, consumer: ConsumerId, output_topic: OutputTopic | None) -> None:
        """Follow the readers of a consumer that has come and has delivered nothing yet. Its facts have to be there."""
        self.output_topics[consumer] = output_topic
        config = self.facts[consumer].config
        if config.follows_readers and output_topic is not None:
            self._output_offsets[consumer] = OutputOffsets({}, 0, 0)
            if not config.inactive_threshold:
                self.order(consumer, Bound())

    def dismiss(self, consumer: ConsumerId) -> None:
        """Follow the readers of a deleted consumer no more."""
        for kept in (self.output_topics, self._output_offsets, self._bound):
            kept.pop(consumer, None)

    def find_offsets(self, consumer: ConsumerId) -> OutputOffsets | None:
        """Return where the deliveries of a consumer are in its output, to note those that are written next; None if its
        readers are not followed. One that is made again under the consumer's name has another object.
        """
        return self._output_offsets.get(consumer)

    async def _find_ends(self, output_topic: OutputTopic) -> dict[int, int]:
        """Return, by partition, the offset after the last committed record, for each partition of an
        output that has records.

        Transaction markers may follow that record, which a reader's committed offset need never
        pass.
        """
        bounds = await self.admin.find_bounds(
            [(output_topic.topic, partition) for partition in range(output_topic.partitions)]
        )
        ends = {
            source: await find_records_end(self.client, source, *span, compacted=output_topic.needs_key)
            for source, span in bounds.items()
        }
        return {source[1]: end for source, end in ends.items() if end > bounds[source][0]}

    def is_bound(self, consumer: ConsumerId) -> bool:
        """Return whether the consumer's reader group had members when Kafka was asked last, usually
        at most a few seconds ago. True if this user may not see the group; False if Kafka was not
        asked yet.
        """
        return self._bound.get(consumer, False)

    async def run(self) -> None:
        """Ask Kafka about the reader groups every EVERY_S, and queue events for the machines, until
        cancelled. If a consumer has no inactive_threshold, its group's members are asked for in
        every fourth turn only. In a task of its own, look for outputs that have lost their end. If
        Kafka cannot be asked, log that and try again.
        """
        # apart: an output without a leader may hold up the question for its end
        watching = asyncio.create_task(self._watch_ends())
        try:
            for turn in itertools.count():
                await asyncio.sleep(EVERY_S)
                try:
                    await self._look()
                    await self._count(self._list_watched(everyone=turn % ALL_EVERY == 0))
                except OverlayError as error:
                    log.warning("reader groups cannot be looked at", reason=str(error))
                if watching.done():
                    watching.result()
        finally:
            watching.cancel()

    async def _watch_ends(self) -> None:
        """Check every ENDS_EVERY_S whether outputs have lost records, until cancelled. If Kafka
        cannot be asked, log that and try again.
        """
        while True:
            await asyncio.sleep(ENDS_EVERY_S)
            try:
                await self._look_for_cuts()
            except OverlayError as error:
                log.warning("the ends of outputs cannot be looked at", reason=str(error))

    def _list_followed(self) -> list[tuple[ConsumerId, Facts, OutputTopic]]:
        """Return the push consumers for which the committed offsets of their readers matter, with
        their machine's state and output.
        """
        return [
            (consumer, facts, output_topic)
            for consumer, facts in self.facts.items()
            if facts.config.follows_readers and (output_topic := self.output_topics[consumer]) is not None
        ]

    async def _look(self) -> None:
        """Ask Kafka for the committed offsets of groups whose consumers have deliveries that wait
        to be read. Queue a Read event for each machine whose readers have read further than it
        knows.

        A group whose offsets may not be read is logged, unless it was so at the last look too.
        """
        waiting: dict[str, list[tuple[ConsumerId, OutputTopic]]] = {}
        for consumer, facts, output_topic in self._list_followed():
            if facts.awaits_reader:
                waiting.setdefault(facts.config.reader_group, []).append((consumer, output_topic))
        denied: dict[str, str] = {}
        # tell a machine only if its readers have passed more deliveries than it knows
        for groups in _cut(list(waiting)):
            committed = await self.admin.find_committed(groups, denied=denied)
            for group, offsets in committed.items():
                for consumer, output_topic in waiting[group]:
                    if not self._is_still(consumer, output_topic):
                        continue
                    read = self._output_offsets[consumer].find_read(offsets.get(output_topic.topic, {}))
                    if read > self.facts[consumer].read_up_to:
                        self.order(consumer, Read(read))
        for group in denied.keys() - self._denied.keys():
            log.warning("ack_wait never begins for deliveries to this group", group=group, reason=denied[group])
        self._denied = denied

    def _is_still(self, consumer: ConsumerId, output_topic: OutputTopic | None) -> bool:
        """Return whether a consumer is the one that had this output when Kafka was asked: it may have been deleted
        since, and made again under its name.
        """
        return consumer in self.output_topics and self.output_topics[consumer] is output_topic

    async def _look_for_cuts(self) -> None:
        """Ask Kafka for the ends (high watermarks) of outputs that have deliveries to be read.
        Where an output has lost its last records, log that and count the lost ones as read once the
        rest is.
        """
        waiting = [(consumer, topic) for consumer, facts, topic in self._list_followed() if facts.awaits_reader]
        given = {consumer: self._output_offsets[consumer].given for consumer, _ in waiting}
        sources = [(topic.topic, partition) for _, topic in waiting for partition in range(topic.partitions)]
        # the ends that readers of uncommitted records see: open transactions have lost nothing
        bounds = await self.admin.find_bounds(sources, committed=False) if sources else {}
        for consumer, topic in waiting:
            if not self._is_still(consumer, topic):
                continue
            offsets = self._output_offsets[consumer]
            for partition in range(topic.partitions):
                source, end = (topic.topic, partition), bounds[topic.topic, partition][1]
                if offsets.has_lost(partition, end, given[consumer]):
                    log.warning("an output has lost its last records", topic=f"{topic.topic}-{partition}", end=end)
                    span = (await self.admin.find_bounds([source]))[source]
                    records_end = await find_records_end(self.client, source, *span, compacted=topic.needs_key)
                    offsets.cut(partition, end, given[consumer], records_end)

    def _list_watched(self, *, everyone: bool) -> dict[ConsumerId, ConsumerConfig]:
        """Return the push consumers whose groups are to be asked for members, with their configs:
        all of them if `everyone`, else those with inactive_threshold.
        """
        pushing = {c: facts.config for c, facts in self.facts.items() if self.output_topics[c] is not None}
        return {c: config for c, config in pushing.items() if everyone or config.inactive_threshold}

    async def _count(self, watched: Mapping[ConsumerId, ConsumerConfig]) -> None:
        """Ask Kafka whether the reader groups of these consumers have members, and record it for
        `is_bound`. A group that this user may not see counts as having members.

        With `interest: group`, queue Unbound for a machine to sleep (its group has no members, and
        it has inactive_threshold), and Bound for one to wake, if it is not in that state yet.
        """
        groups = {consumer: config.reader_group for consumer, config in watched.items()}
        topics = {consumer: self.output_topics[consumer] for consumer in watched}
        denied: dict[str, str] = {}
        members = await self.admin.count_members_of(set(groups.values()), denied=denied)
        for group in denied.keys() - self._unseen:
            log.warning(
                "whether a group has readers cannot be seen; it counts as in use", group=group, reason=denied[group]
            )
        self._unseen = (self._unseen - members.keys()) | denied.keys()
        for consumer, config in watched.items():
            if not self._is_still(consumer, topics[consumer]):
                continue
            is_bound = groups[consumer] in denied or members[groups[consumer]] > 0
            self._bound[consumer] = is_bound
            is_asleep = self.facts[consumer].phase in ASLEEP
            # inactive_threshold may change, or be removed, while the machine runs
            is_to_sleep = not is_bound and bool(config.inactive_threshold)
            if config.interest is Interest.GROUP and is_to_sleep != is_asleep:
                self.order(consumer, Unbound() if is_to_sleep else Bound())


def _cut(groups: list[str]) -> Iterable[list[str]]:
    return (groups[at : at + AT_ONCE] for at in range(0, len(groups), AT_ONCE))
