"""Interest: how far the readers of output topics are, and whether there are any (interfaces, Interest).

The reader group of a push consumer with `interest: group` is its deliver_group, or a group of its own name. Its committed
offsets are asked for while a delivery's ack_wait has not begun, and told to the machine as the consumer sequence up to which
all has been read.

A topic keeps its records whether or not anybody reads just now, so a consumer delivers without readers as well, as far as
max_ack_pending lets it. Only one that is to go when nobody uses it (inactive_threshold) follows the group's members: it sleeps
while there are none.
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
from overlay.dispatch.served_consumer import needs_machine
from overlay.errors import OverlayError
from overlay.kafka.admin import Admin
from overlay.kafka.range_reader import find_records_end
from overlay.logs import get_logger
from overlay.output.batch_builder import OutputTopic
from overlay.state.shard_state import ConsumerId

log = get_logger(__name__)

EVERY_S = 0.5
ALL_EVERY = 4
"""In every which of these turns all groups are asked for their members."""
AT_ONCE = 1_000
"""Groups that are asked about at once."""

Order = Callable[[ConsumerId, Event], None]


def reader_group(config: ConsumerConfig) -> str:
    """The group whose committed offsets count."""
    return config.deliver_group or config.id[1]


def follows_readers(config: ConsumerConfig) -> bool:
    """Whether it counts how far the readers of a consumer's output are."""
    return needs_machine(config) and config.is_push and config.interest is Interest.GROUP


@dataclass(slots=True)
class Readers:
    """The reader groups of a session's consumers that have a machine. `output_topics`: None for a consumer that
    pulls. `facts`: what each machine was after the last step of the dispatcher."""

    client: AIOKafkaClient
    admin: Admin
    output_topics: Mapping[ConsumerId, OutputTopic | None]
    facts: Mapping[ConsumerId, Facts]
    order: Order
    _output_offsets: dict[ConsumerId, OutputOffsets] = field(default_factory=dict)
    _bound: dict[ConsumerId, bool] = field(default_factory=dict)
    _denied: dict[str, str] = field(default_factory=dict)
    """Groups that we may not look at, and why, as it was told last."""
    _unseen: set[str] = field(default_factory=set)
    """Groups whose members we may not look at: they count as in use, since what has no readers may be removed."""

    async def open(self) -> None:
        """Wake those who need no reader, and find out where the outputs end."""
        for consumer, facts, output_topic in self._list_followed():
            read, given = facts.read_up_to, facts.delivered.consumer
            ends = await self._find_ends(output_topic) if given > read else {}
            self._output_offsets[consumer] = OutputOffsets(ends, read, given)
            if not facts.config.inactive_threshold:
                self.order(consumer, Bound())

    async def _find_ends(self, output_topic: OutputTopic) -> dict[int, int]:
        """Where the last record of each partition ends that has any. Behind it are markers of transactions, which a reader's
        offset need never pass."""
        bounds = await self.admin.find_bounds(
            [(output_topic.topic, partition) for partition in range(output_topic.partitions)]
        )
        ends = {source: await find_records_end(self.client, source, *span) for source, span in bounds.items()}
        return {source[1]: end for source, end in ends.items() if end > bounds[source][0]}

    def note(self, consumer: ConsumerId, partition: int, base: int, count: int, first: int, last: int) -> None:
        """Deliveries are with Kafka; see Output offsets."""
        if output_offsets := self._output_offsets.get(consumer):
            output_offsets.note(partition, base, count, first, last)

    def is_bound(self, consumer: ConsumerId) -> bool:
        """Whether its group had members when this was last looked at, at most some seconds ago."""
        return self._bound.get(consumer, False)

    async def run(self) -> None:
        """Ask now and then, for ever."""
        for turn in itertools.count():
            await asyncio.sleep(EVERY_S)
            try:
                await self._look()
                await self._count(self._list_watched(everyone=turn % ALL_EVERY == 0))
            except OverlayError as error:
                log.warning("reader groups cannot be looked at", reason=str(error))

    def _list_followed(self) -> list[tuple[ConsumerId, Facts, OutputTopic]]:
        return [
            (consumer, facts, output_topic)
            for consumer, facts in self.facts.items()
            if follows_readers(facts.config) and (output_topic := self.output_topics[consumer]) is not None
        ]

    async def _look(self) -> None:
        """Tell those whose deliveries wait for their readers how far these are."""
        waiting: dict[str, list[tuple[ConsumerId, OutputTopic]]] = {}
        for consumer, facts, output_topic in self._list_followed():
            if facts.awaits_reader:
                waiting.setdefault(reader_group(facts.config), []).append((consumer, output_topic))
        denied: dict[str, str] = {}
        for groups in _cut(list(waiting)):
            committed = await self.admin.find_committed(groups, denied=denied)
            for group, offsets in committed.items():
                for consumer, output_topic in waiting[group]:
                    read = self._output_offsets[consumer].find_read(offsets.get(output_topic.topic, {}))
                    if read > self.facts[consumer].read_up_to:
                        self.order(consumer, Read(read))
        for group in denied.keys() - self._denied.keys():
            log.warning("ack_wait never begins for deliveries to this group", group=group, reason=denied[group])
        self._denied = denied

    def _list_watched(self, *, everyone: bool) -> dict[ConsumerId, ConsumerConfig]:
        """Whose group is asked for its members: those who are to go when there are none, or all who have one."""
        pushing = {c: facts.config for c, facts in self.facts.items() if self.output_topics[c] is not None}
        return {c: config for c, config in pushing.items() if everyone or config.inactive_threshold}

    async def _count(self, watched: Mapping[ConsumerId, ConsumerConfig]) -> None:
        groups = {consumer: reader_group(config) for consumer, config in watched.items()}
        denied: dict[str, str] = {}
        members = await self.admin.count_members_of(set(groups.values()), denied=denied)
        for group in denied.keys() - self._unseen:
            log.warning(
                "whether a group has readers cannot be seen; it counts as in use", group=group, reason=denied[group]
            )
        self._unseen = (self._unseen - members.keys()) | denied.keys()
        for consumer, config in watched.items():
            is_bound = groups[consumer] in denied or members[groups[consumer]] > 0
            self._bound[consumer] = is_bound
            is_asleep = self.facts[consumer].state in ASLEEP
            # a machine that runs may be given another inactive_threshold, or lose it
            is_to_sleep = not is_bound and bool(config.inactive_threshold)
            if config.interest is Interest.GROUP and is_to_sleep != is_asleep:
                self.order(consumer, Unbound() if is_to_sleep else Bound())


def _cut(groups: list[str]) -> Iterable[list[str]]:
    return (groups[at : at + AT_ONCE] for at in range(0, len(groups), AT_ONCE))
