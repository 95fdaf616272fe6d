"""The dispatch loop of a session: does the IO of its dispatcher. It passes in what arrives, reads
records again that are needed, and has the results committed.

The reading loop (session.py) runs at its own pace; what it finds for consumers that have a machine
arrives here as offers. Here the offers meet acks, time, and the actions of operators and readers. A
step of the dispatcher takes all that has arrived since the last one. The parts of a step that need
no IO run in a thread of their own. Questions about machines are answered from their state after the
last step (machine_facts.py). A step's batches and the machines' state go into one commit unit.
Units are committed in the order in which they were put (worker/commit/commits.py), whether the
reading loop or the dispatch loop put them.

Consumers come, change and go between two steps and two rounds (change_queue.py): no step begins
while `between_steps` is held.

For each consumer, the messages that were offered and are not delivered are recorded here by
partition: its holds. The unit of the reading loop that moves a cursor also records the holds of
consumers that are behind the new position. The unit of the delivery removes them again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from aiokafka.client import AIOKafkaClient

from overlay.arrays import Ints
from overlay.clock import now_ns
from overlay.config import ConsumerConfig
from overlay.consumer.acks import Flaw
from overlay.consumer.deadlines import NEVER
from overlay.consumer.events import Event, Pulled, Unreachable
from overlay.dispatch.ack_decoder import AckBatch, AckDecoder, DecodedAcks
from overlay.dispatch.dispatcher import Dispatcher, Offer, Work
from overlay.dispatch.machine_facts import MachineFacts
from overlay.dispatch.output_offsets import OutputOffsets
from overlay.dispatch.served_consumer import ConsumerSlot
from overlay.dispatch.undelivered import Undelivered
from overlay.jobs import Jobs
from overlay.kafka.fetched import Fetched
from overlay.kafka.fetcher import Fetcher
from overlay.kafka.log_position import LogPosition, TopicPartition
from overlay.kafka.passed_over import OnPassedOver, PassedOver, ignore
from overlay.logs import get_logger
from overlay.metrics import Metrics
from overlay.output.batch_builder import OutputBatch, OutputTopic, refuse_oversized
from overlay.output.entry import Entry
from overlay.output.record import Record
from overlay.output.transaction import PlainSender
from overlay.replies.reply_address import parse_address
from overlay.replies.reply_sender import ReplySender
from overlay.state.shard_state import ConsumerId, Delta, StreamPartition, write_machine
from overlay.waits import is_set_within

from .commit.commits import Commits, CommitUnit
from .cursors.cursors import Cursors
from .dispatch_io.ack_topics import AckTopics
from .dispatch_io.interest import Readers
from .dispatch_io.refetch import Refetch
from .round.task import Counts

log = get_logger(__name__)

_Written = tuple[OutputOffsets | None, int, int, tuple[int, int]]
"""Of a batch: where its consumer's deliveries are noted, its partition, the number of its records, and
their first and last consumer sequence; (0, -1) if it holds no deliveries."""

LONGEST_WAIT_S = 1.0
"""Longest pause between two looks for work, in seconds."""
PROBE_S = 0.1
"""The same while deadlines wait for acks to be read, or while a reply topic is full."""
REFUSED = {
    Flaw.TOKEN: "it has no token of a delivery",
    Flaw.PAYLOAD: "what it says of the delivery cannot be read",
    Flaw.RANGES: "its ranges cannot be read",
    Flaw.UNKNOWN: "its token is of another stream, or of no consumer of this one",
}
"""What is wrong with a record of an ack topic, in words."""


@dataclass(slots=True)
class DispatchLoop:
    """The loop around the dispatcher of one session, which delivers to the consumers with machines (those with acks
    or pull requests, and those that are paced or watched). The loop does the IO: it reads ack topics, runs the
    dispatcher step by step, and queues its output for commit. `ack_decoders`: by stream.
    """

    dispatcher: Dispatcher
    client: AIOKafkaClient
    listening: AckTopics
    ack_decoders: Mapping[str, AckDecoder]
    refetch: Refetch
    cursors: Cursors
    commits: Commits
    metrics: Metrics
    reply_sender: ReplySender
    """Belongs to the shard and outlives the session: it remembers topics that have refused records,
    maybe in an earlier session."""
    plain: PlainSender | None = None
    """Sends batches that belong to no transaction."""
    on_passed_over: OnPassedOver = ignore
    """Called for each reason for which records of a fetch of an ack topic were refused."""
    on_progress: Callable[[], None] = lambda: None
    """Called when consumers may have room for more offers."""
    machine_facts: MachineFacts = field(init=False)
    readers: Readers = field(init=False)
    between_steps: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held during each step."""
    _offers: list[Offer] = field(default_factory=list)
    """Offers for the next step."""
    _beyond: dict[ConsumerId, int] = field(default_factory=dict)
    """By consumer, how much lies ahead of it behind its offers, if that has changed."""
    _orders: list[tuple[ConsumerId, Event]] = field(default_factory=list)
    """Events for machines in the next step."""
    _lows: dict[str, int] = field(default_factory=dict)
    """By stream, the lowest stream sequence that its log still has, if that was checked since the
    last step."""
    _held: dict[ConsumerId, Undelivered] = field(default_factory=dict)
    _heard_to: dict[tuple[str, TopicPartition], LogPosition] = field(default_factory=dict)
    """Shared positions in ack topics as they were last put into a round."""
    _names: dict[str, Sequence[str]] = field(default_factory=dict)
    """Names of all consumers of a stream, if they have changed since acks of it were decoded."""
    _behind: set[ConsumerId] = field(default_factory=set)
    """Consumers that have read less of an ack topic than the others of their stream."""
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _ended: bool = False

    def __post_init__(self) -> None:
        self.reply_sender.on_unreachable = self._drop_pulls
        self.machine_facts = MachineFacts(self.dispatcher.facts)
        output_topics = {consumer: slot.output_topic for consumer, slot in self.dispatcher.slots.items()}
        self.readers = Readers(self.client, self.commits.admin, output_topics, self.machine_facts.facts, self.order)
        self._behind = set(self.listening.find_behind())

    @property
    def is_ending(self) -> bool:
        """Whether `end` was called. An event that is queued from now on may not be handled any
        more."""
        return self._ended

    # what others do

    def offer(
        self, offers: Iterable[tuple[TopicPartition, Offer]], beyond: Mapping[ConsumerId, int]
    ) -> set[ConsumerId]:
        """Queue messages for the machines of their consumers; the next step handles them. Until
        they are delivered, they count as undelivered. Return the consumers of `offers` that had no
        undelivered messages from an offer's partition before: the unit that moves their cursors
        has to record their holds.

        `offers`: each with the source partition that its records are from. `beyond`: by consumer,
        an estimate of how many matching records come after its offers and are not read yet.
        """
        fresh: set[ConsumerId] = set()
        for source, offer in offers:
            held = self._held.setdefault(offer.consumer, Undelivered())
            if not held.has(source):
                fresh.add(offer.consumer)
            held.add(source, offer.piece.sequences[offer.rows], offer.piece.records.offset[offer.rows])
            self._offers.append(offer)
            self.machine_facts.offer(offer.consumer, offer.rows.size)
            self.cursors.hold(offer.consumer, held.first_offsets)
        self._beyond |= beyond
        self.machine_facts.tell(beyond)
        if self._offers or beyond:
            self._wake.set()
        return fresh

    def order(self, consumer: ConsumerId, event: Event) -> None:
        """Queue an event for a consumer's machine; the next step handles it."""
        self._orders.append((consumer, event))
        self._wake.set()

    def expire(self, lows: Mapping[str, int]) -> None:
        """Queue, for the next step, which records no longer exist. Machines then forget given-up
        messages among these, which their state would otherwise contain for ever. `lows`: by stream,
        the lowest stream sequence that its log may still have."""
        self._lows |= lows
        self._wake.set()

    def _drop_pulls(self, heads: frozenset[str], addresses: frozenset[str]) -> None:
        """Have the next step drop the open pull requests whose reply address is one of `addresses`
        or begins with one of `heads`, since records sent there are refused.

        Only consumers with open requests are told, since each one that is told writes its state.
        """
        for consumer, facts in self.machine_facts.facts.items():
            if facts.num_waiting:
                self.order(consumer, Unreachable(heads, addresses))

    def end(self) -> None:
        """Have `run` return after one last step; does not wait for that. `offer` must not be called
        any more."""
        self._ended = True
        self._wake.set()

    def find_held(self, most: int) -> set[ConsumerId]:
        """Return the consumers with at least `most` messages that were offered and are not
        delivered."""
        return {consumer for consumer, held in self._held.items() if held.count >= most}

    # who comes, changes and goes between two steps, while `between_steps` is held

    def admit(self, consumer: ConsumerId, slot: ConsumerSlot) -> None:
        """Serve one more consumer, which has delivered nothing yet."""
        self.machine_facts.renew(consumer, self.dispatcher.admit(consumer, slot))
        self.readers.admit(consumer, slot.output_topic)
        self._wake.set()

    def renew(self, consumer: ConsumerId, config: ConsumerConfig, output_topic: OutputTopic | None) -> None:
        """Have a consumer want something else. Call `Cursors.rewind` first: what it was offered and has not delivered is
        dropped here. `config`: with its defaults filled in. `output_topic`: None for a pull consumer."""
        self._drop_offers(consumer)
        self.machine_facts.renew(consumer, self.dispatcher.renew(consumer, config, output_topic, now_ns()))
        self.readers.output_topics[consumer] = self.dispatcher.slots[consumer].output_topic
        self._wake.set()

    def dismiss(self, consumer: ConsumerId) -> Work:
        """Serve a deleted consumer no more. Return the last that it has to say, for the unit that forgets it."""
        self._drop_offers(consumer)
        said = [event for whose, event in self._orders if whose == consumer]
        self._orders = [order for order in self._orders if order[0] != consumer]
        work = self.dispatcher.dismiss(consumer, said, now_ns())
        self.machine_facts.renew(consumer, None)
        self.readers.dismiss(consumer)
        self.listening.forget(consumer)
        self._behind.discard(consumer)
        self._count((), work)
        return work

    def _drop_offers(self, consumer: ConsumerId) -> None:
        """Forget what was read for a consumer and is not delivered."""
        self._offers = [offer for offer in self._offers if offer.consumer != consumer]
        self._beyond.pop(consumer, None)
        self._held.pop(consumer, None)

    def know(self, stream: str, names: Iterable[str]) -> None:
        """Process the acks of a stream's consumers that have a machine here, and skip those of its others. `names`: of
        all its consumers."""
        self._names.pop(stream, None)
        self.ack_decoders[stream].know([name for at, name in self.dispatcher.slots if at == stream], names)

    def learn(self, stream: str, names: Sequence[str]) -> None:
        """Do as `know` before the next acks of the stream are decoded. No step has to wait for it, since no consumer of this
        session has changed; without it the acks of a new consumer of another shard would be refused here."""
        if stream in self.ack_decoders:
            self._names[stream] = names

    # the work

    async def run(self) -> None:
        """Run the dispatcher's steps until `end` is called, and then a last one. Between steps,
        wait until something arrives or is due. Raises the first error of a step."""
        fetcher = Fetcher(self.client, apart=1)  # acks need not wait for the source, nor the source for acks
        fetcher.changed = self._wake
        watching: asyncio.Task[None] | None = None
        try:
            async with self.between_steps:
                await self.listening.open(fetcher)
                await self.readers.open()
            watching = asyncio.create_task(self.readers.run(), name="readers")
            async with Jobs("dispatching") as jobs:
                is_last = False
                while not is_last:
                    is_last = self._ended
                    self._wake.clear()
                    await self.reply_sender.make_room()
                    async with self.between_steps:
                        has_worked = await self._step(jobs, is_last)
                    if not has_worked and not is_last:
                        await self._rest()
        finally:
            if watching is not None:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
            await fetcher.close()

    async def _step(self, jobs: Jobs, is_last: bool) -> bool:
        """Pass everything that has arrived since the last step to the dispatcher, and put the
        results into the commit queue, waiting for room in it. Return False, without a step, if
        there is nothing to do; `is_last` forces the step. `jobs`: the thread in which the
        dispatcher runs."""
        self.dispatcher.hold_back(self.reply_sender.full)
        fetches = await self.listening.take()
        await self.listening.probe(self.dispatcher.waiting_for_acks)
        # everything that arrived since the last step; what arrives from here on waits for the next
        offers, self._offers = self._offers, []
        orders, self._orders = self._orders, []
        beyond, self._beyond = self._beyond, {}
        lows, self._lows = self._lows, {}
        tells_all = self.commits.wants_all
        if not (is_last or fetches or offers or beyond or orders or lows or tells_all or self._is_due()):
            return False
        # the dispatcher's parts run in the thread, in this order; records are read again in between
        self.machine_facts.begin_step()
        heard = await jobs.run(self._hear, fetches) if fetches else []
        said = await self._drop_unreachable(self._sort(heard, orders))
        up_to = dict(self.listening.up_to)
        work = await jobs.run(self._take_in, offers, said, up_to, beyond, lows, tells_all)
        if not isinstance(work, Work):
            recalled = await self.refetch.read(work, jobs)
            work = await jobs.run(self.dispatcher.give_out, recalled.pieces, recalled.gone, now_ns(), tells_all)
        self.machine_facts.end_step(work.facts)
        self._let_go({*work.records, *(offer.consumer for offer in offers)})
        answers = ((c, each) for c, each in work.answers if isinstance(each, OutputBatch))
        refuse_oversized(((consumer,), outgoing) for consumer, outgoing in (*work.batches, *answers))
        self._count(heard, work)
        # one commit unit for all: output, machine states, and how far acks have been read
        acks = {partition: at for partition, at in self.listening.shared.items() if self._heard_to.get(partition) != at}
        self._heard_to |= acks
        caught_up = self._note_heard()
        if work or acks or caught_up:
            plain = [(c, outgoing) for c, outgoing in work.batches if not outgoing.batch.is_transactional]
            sending = asyncio.create_task(self._send_plain(plain)) if plain else None
            await self.commits.put(self._make_unit(work, Delta(acks=acks), caught_up, sending))
        else:
            self.on_progress()
        return True

    def _let_go(self, consumers: Iterable[ConsumerId]) -> None:
        """Stop counting messages of these consumers as undelivered if their machines have delivered
        them, and update the offsets from which a restart reads again.

        After a takeover a machine may be offered only messages that it has delivered before. It
        then has nothing to say, and what it was offered must not count as undelivered: the consumer
        would stay parked.
        """
        for consumer in consumers:
            if held := self._held.get(consumer):
                held.let_go(self.machine_facts.facts[consumer].position)
                self.cursors.hold(consumer, held.first_offsets)

    def _note_heard(self) -> set[ConsumerId]:
        """Look up the present positions of the consumers that have read less of an ack topic than
        the others of their stream. Record those that have changed, for the state, and return their
        consumers. One that has caught up has changed as well."""
        if not self._behind:
            return set()
        behind = self.listening.find_behind()
        moved = {c for c in self._behind if self.cursors.standing(c).heard != behind.get(c, {})}
        for consumer in moved:
            self.cursors.note_heard(consumer, behind.get(consumer, {}))
        self._behind = set(behind)
        return moved

    async def _send_plain(self, batches: list[tuple[ConsumerId, OutputBatch]]) -> None:
        """Send batches outside of transactions and wait until Kafka has them. Then record the
        output offsets of their deliveries."""
        assert self.plain is not None
        written = self._describe(batches)
        offsets = await self.plain.send([outgoing for _, outgoing in batches])
        self._note_offsets(written, offsets)

    def _describe(self, batches: Iterable[tuple[ConsumerId, OutputBatch]]) -> list[_Written]:
        """Return of each batch what `_note_offsets` needs. Its consumer may be gone by then, and another one have its
        name."""
        return [
            (self.readers.find_offsets(c), out.partition, out.batch.count, out.batch.consumer_seqs)
            for c, out in batches
        ]

    @staticmethod
    def _note_offsets(written: Iterable[_Written], offsets: Iterable[int]) -> None:
        """Record which consumer sequences are at which offsets of an output, so that the offsets of
        a reader group tell which deliveries it has read. `offsets`: the first offset of each batch
        of `written`."""
        for (noted, partition, count, seqs), base in zip(written, offsets, strict=False):
            if noted is not None and seqs[0] > 0:
                noted.note(partition, base, count, *seqs)

    def _is_due(self) -> bool:
        """Return whether a machine's timer is due, or all acks have been read that an ack deadline
        was waiting for."""
        return self.dispatcher.next_at <= now_ns() or any(
            slot.blocked_at <= self.listening.up_to.get(consumer[0], 0)
            for consumer, slot in self.dispatcher.slots.items()
        )

    async def _rest(self) -> None:
        """Wait until something has arrived (`_wake`) or the next timer is due, at most
        LONGEST_WAIT_S. Wait at most PROBE_S while deadlines wait for acks to be read, or while a
        reply topic is full."""
        at = self.dispatcher.next_at
        patience = LONGEST_WAIT_S if at == NEVER else min(max((at - now_ns()) / 1e9, 0.0), LONGEST_WAIT_S)
        if self.dispatcher.waiting_for_acks or self.reply_sender.full:
            patience = min(patience, PROBE_S)
        await is_set_within(self._wake, patience)

    def _hear(self, fetches: Collection[tuple[StreamPartition, Fetched]]) -> list[tuple[StreamPartition, DecodedAcks]]:
        """Decode fetches of ack topics. Return the stream and the partition, and the acks, of each fetch."""
        for stream in {partition[0] for partition, _ in fetches} & self._names.keys():
            self.know(stream, self._names[stream])
        since = self.listening.since
        return [
            (
                partition,
                self.ack_decoders[partition[0]].read(fetched.data, fetched.position, fetched.aborted, since[partition]),
            )
            for partition, fetched in fetches
        ]

    def _take_in(
        self,
        offers: Iterable[Offer],
        said: Mapping[ConsumerId, Iterable[AckBatch | Event]],
        up_to: Mapping[str, int],
        beyond: Mapping[ConsumerId, int],
        lows: Mapping[str, int],
        tells_all: bool,
    ) -> Work | dict[str, Ints]:
        """Pass what has arrived to the dispatcher, and return the results of the step. If records
        have to be read again first, return their stream sequences instead, by stream; `give_out` is
        still to be called then.

        `said`: acks and events by consumer. `up_to`: by stream, the time before which all acks are
        read, ns since 1970. `beyond`, `lows`: as in `offer` and `expire`. `tells_all`: whether
        every machine has to write its whole state.

        All in one job of the thread: each job costs the event loop more than most of these calls.
        """
        self.dispatcher.take_in(offers, said, up_to, now_ns(), beyond)
        if lows:
            self.dispatcher.expire(lows, now_ns())
        return self.dispatcher.find_wanted() or self.dispatcher.give_out((), {}, now_ns(), tells_all)

    @staticmethod
    def _sort(
        heard: Iterable[tuple[StreamPartition, DecodedAcks]], orders: Iterable[tuple[ConsumerId, Event]]
    ) -> dict[ConsumerId, list[AckBatch | Event]]:
        """Return, by consumer, its acks followed by the events that were queued for it."""
        said: dict[ConsumerId, list[AckBatch | Event]] = {}
        for (stream, _), each in heard:
            for name, words in each.said.items():
                said.setdefault((stream, name), []).extend(words)
        for consumer, event in orders:
            said.setdefault(consumer, []).append(event)
        return said

    async def _drop_unreachable(
        self, said: dict[ConsumerId, list[AckBatch | Event]]
    ) -> dict[ConsumerId, list[AckBatch | Event]]:
        """Return `said`, the acks and events by consumer, without the pull requests whose reply address cannot be
        reached (ReplyTopics.sort), so that other requests get these messages. Looks the topics up, and counts the
        requests that it leaves out.

        For replies to acks, the topics are looked up when the replies are sent.
        """
        pulls = [event for events in said.values() for event in events if isinstance(event, Pulled)]
        wanted = dict.fromkeys(event.reply for event in pulls if event.reply)
        if not wanted:
            return said
        by_reply = {}
        for reply in wanted:
            address = parse_address(reply)
            by_reply[reply] = Entry(address.topic, Record(None, None), address.partition or 0)
        _, lost = await self.reply_sender.reply_topics.sort(by_reply.values())
        nowhere = {reply for reply, entry in by_reply.items() if entry in lost}
        if not nowhere:
            return said
        self.metrics.replies_refused.labels("missing").inc(sum(event.reply in nowhere for event in pulls))
        return {
            consumer: [e for e in events if not (isinstance(e, Pulled) and e.reply in nowhere)]
            for consumer, events in said.items()
        }

    def _make_unit(
        self, work: Work, delta: Delta, moved: Iterable[ConsumerId], plain: asyncio.Task[None] | None
    ) -> CommitUnit:
        """Return a step's results as a commit unit, with the new positions of its consumers and
        `delta`. Announces its answers to the reply sender; they are sent after the commit. Also sets
        the consumers' last sequences in the cursors, and calls `on_progress`.

        `moved`: consumers whose position in an ack topic has changed. `plain`: the task that sends
        the batches outside of transactions, None if there are none.
        """
        changed = set(work.records)
        for consumer in changed:
            facts = self.machine_facts.facts[consumer]
            self.cursors.note_sequence(consumer, facts.delivered.consumer)
        self.on_progress()
        answers = [each for _, each in work.answers]
        written = self._describe([(c, out) for c, out in work.batches if out.batch.is_transactional])

        def finish(offsets: Sequence[int]) -> None:
            self._note_offsets(written, offsets)
            self.reply_sender.put_announced(answers)

        self.reply_sender.announce(answers)
        return CommitUnit(
            self.cursors.delta((), changed | set(moved)).merge(delta),
            [((consumer,), outgoing) for consumer, outgoing in work.batches],
            machines={consumer: write_machine(consumer, value) for consumer, value in work.records.items()},
            is_checkpoint=work.is_checkpoint,
            answers=answers,
            counts=Counts(work.delivered, work.dead_letters, work.newest, work.oldest),
            on_commit=finish,
            plain=plain,
        )

    def _tell_refused(self, topic: str, partition: int, heard: DecodedAcks) -> None:
        """Count the records of a fetch of an ack topic that are no acks of a consumer, and log the first for each reason:
        any client may write many of them.
        """
        for flaw, count in heard.refused.items():
            self.metrics.acks_refused.labels(flaw.value).inc(count)
            offset, text = heard.firsts[flaw]
            found = PassedOver(topic, partition, offset, flaw.value, text or REFUSED[flaw], count)
            log.warning("acks passed over", first=found.place, reason=flaw.value, text=found.text, count=count)
            self.on_passed_over(found)

    def _count(self, heard: Iterable[tuple[StreamPartition, DecodedAcks]], work: Work) -> None:
        """Count acks, refusals and redeliveries in the metrics, and set the gauge `ack_pending` of each
        consumer whose machine has changed. `heard`: partition and acks of each fetch of an ack topic."""
        for (stream, (topic, partition)), each in heard:
            self._tell_refused(topic, partition, each)
            if each.unanswered:
                self.metrics.replies_refused.labels("name").inc(each.unanswered)
            for kind, count in each.kinds.items():
                self.metrics.acks.labels(stream, kind).inc(count)
        for flaw, count in work.refused.items():
            self.metrics.acks_refused.labels(flaw.value).inc(count)
        for part, count in work.unnamed.items():
            self.metrics.acks_unnamed.labels(part).inc(count)
        for consumer, count in work.redelivered.items():
            self.metrics.redeliveries.labels(*consumer).inc(count)
        for consumer in work.records:
            self.metrics.ack_pending.labels(*consumer).set(self.machine_facts.facts[consumer].num_ack_pending)
