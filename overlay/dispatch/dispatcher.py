"""The dispatcher: runs the consumer machines of a shard.

Offers and acks go in, batches of records come out. No I/O, no clock.

A step has three parts. The dispatch loop (worker/dispatch_loop.py) runs them one after the
other:

1. `take_in` hands offers, acks, orders and the time to the machines. Nothing goes out yet.
2. `find_wanted` names the records that the next deliveries need and that are not in the cache. The
   loop reads them again (a refetch) and reports which of them the log does not have any more.
   JetStream terminates such messages.
3. `give_out` lets the machines deliver, as many messages as there are records for. Their effects
   become batches. Transactional batches and the machines' state go into one transaction.

The parts are separate for two reasons. A delivery must never take a consumer sequence without
having its record. And no machine may wait for I/O in the middle of an event. A step is bounded by
STEP_MESSAGES and STEP_BYTES for each consumer and by ROUND_BYTES for all. A consumer with more to
deliver takes part in the next step, which is due at once. What follows from events is never
postponed to another step. Dead letters, answers and advisories go out with the state and the ack
offsets that they belong to.

Each consumer has a hold position: the first message that was offered and is not delivered. A
restart reads from there, and so does the session when a filter changes (`renew`). So what was offered
under the old filter is offered again from the hold position on, as the machine's Rewind asks for.

Consumers come, change and go between two steps (`admit`, `renew`, `dismiss`). What a consumer that goes
has still to say goes out with the unit that forgets it: nothing of it is left to a later step, which
might take it for that of a consumer that was made again under its name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from overlay.arrays import Ints
from overlay.config.consumer import ConsumerConfig
from overlay.consumer.acks import Flaw
from overlay.consumer.deadlines import NEVER
from overlay.consumer.effects import ArmTimer, DeadLetter, Deliver, Effect, Refuse, Remove
from overlay.consumer.events import Deleted, Event, Expired, Offered, Removed, Ticked, Undeliverable, Updated
from overlay.consumer.info import Facts
from overlay.consumer.pending import distinct
from overlay.consumer.queues import Run
from overlay.consumer.window import EMPTY
from overlay.match.record_slice import RecordSlice
from overlay.output.batch_builder import OutputBatch, OutputTopic
from overlay.output.entry import Entry
from overlay.state.shard_state import ConsumerId

from .ack_decoder import AckBatch
from .effect_encoder import EffectEncoder
from .record_cache import RecordCache
from .served_consumer import ConsumerSlot, count_unnamed

STEP_MESSAGES = 16_384
STEP_BYTES = 8 << 20
ROUND_BYTES = 16 << 20
LEAST_LOG = 1 << 20
"""Least bytes of deltas before a new checkpoint of all machines. With a larger checkpoint, as many
bytes as that has.
"""
MILLISECOND = 1_000_000
_NO_RUN = Run(EMPTY, EMPTY, EMPTY)


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """Records that match a consumer's filters, to be offered to its machine. `rows`: their row
    numbers in `piece`. The dispatcher leaves out those that were offered before.
    """

    consumer: ConsumerId
    piece: RecordSlice
    rows: Ints


@dataclass(slots=True)
class Work:
    """The result of a step. `records` and the transactional ones of `batches` are to be written in
    one transaction. It is false if there are no batches, no answers and no records.
    """

    batches: list[tuple[ConsumerId, OutputBatch]] = field(default_factory=list)
    """Batches for output, dead-letter and events topics, in order."""
    answers: list[tuple[ConsumerId, Entry | OutputBatch]] = field(default_factory=list)
    """Answers for reply topics, to be sent in order after the transaction is committed."""
    records: dict[ConsumerId, bytes] = field(default_factory=dict)
    """A record of state (delta or checkpoint) for each machine that changed."""
    facts: dict[ConsumerId, Facts] = field(default_factory=dict)
    """Facts of each machine that changed, as of the end of the step."""
    is_checkpoint: bool = False
    """Whether `records` has a checkpoint of every machine."""
    delivered: Counter[ConsumerId] = field(default_factory=Counter)
    redelivered: Counter[ConsumerId] = field(default_factory=Counter)
    dead_letters: Counter[tuple[ConsumerId, str]] = field(default_factory=Counter)
    """Number of dead letters by consumer and reason."""
    refused: Counter[Flaw] = field(default_factory=Counter)
    unnamed: Counter[str] = field(default_factory=Counter)
    """Acks without an incarnation for consumers whose tokens have one, by the kind of ack: `token`
    or `range`.
    """
    newest: dict[ConsumerId, int] = field(default_factory=dict)
    oldest: dict[ConsumerId, int] = field(default_factory=dict)
    """ms since 1970: times of the newest and the oldest source record among the deliveries."""
    removed: list[ConsumerId] = field(default_factory=list)
    """Consumers to be deleted, because they were unused for inactive_threshold."""

    def __bool__(self) -> bool:
        return bool(self.batches or self.answers or self.records)


class Dispatcher:
    """Runs the consumers' state machines of a shard in steps: `take_in`, `find_wanted`, `give_out`.
    Does no I/O. Not thread-safe.

    `now`, everywhere: ns since 1970. `slots`: each consumer with its machine and topics.
    `printing`: encodes what the machines want sent. `record_cache`: None for a new one.
    """

    def __init__(
        self, slots: Mapping[ConsumerId, ConsumerSlot], printing: EffectEncoder, record_cache: RecordCache | None = None
    ) -> None:
        self.slots = dict(slots)
        self.record_cache = record_cache or RecordCache()
        self._printing = printing
        self._effects: dict[ConsumerId, list[Effect]] = {}
        # each machine gets a tick at its start, and when its pull requests are not held back any
        # more
        self._fresh: dict[ConsumerId, None] = dict.fromkeys(self.slots)
        self._active: dict[ConsumerId, None] = {}
        self._touched: dict[ConsumerId, None] = {}
        self._unnamed: Counter[str] = Counter()
        self._full: frozenset[str] = frozenset()

    @property
    def next_at(self) -> int:
        """When the next step is due without new input, ns since 1970; 0 for at once, NEVER for not
        at all.
        """
        if self._fresh or self._active:
            return 0
        return min((slot.machine.state.armed_at for slot in self.slots.values()), default=NEVER)

    @property
    def waiting_for_acks(self) -> set[str]:
        """Names of the streams with a consumer whose redelivery is due, but waits until acks that
        were sent before have been read.
        """
        return {consumer[0] for consumer, slot in self.slots.items() if slot.blocked_at < NEVER}

    @property
    def facts(self) -> dict[ConsumerId, Facts]:
        """A copy of what can be asked of each machine, as of now. Only the thread that runs the
        dispatcher's steps may call this.
        """
        return {consumer: slot.machine.facts for consumer, slot in self.slots.items()}

    def hold_back(self, topics: frozenset[str]) -> None:
        """Deliver nothing to pull requests whose reply topic is among `topics`, until a later call
        names other topics.
        """
        if topics == self._full:
            return
        self._full = topics
        for consumer, slot in self.slots.items():
            if self._hold_back(slot):
                self._fresh[consumer] = None

    def _hold_back(self, slot: ConsumerSlot) -> bool:
        """Have a consumer deliver nothing to the reply topics that are full. Return whether it needs a tick."""
        heads = tuple(f"{topic}/" for topic in self._full)
        return not slot.machine.state.config.is_push and slot.machine.hold_back(heads)

    # who comes, changes and goes between two steps

    def admit(self, consumer: ConsumerId, slot: ConsumerSlot) -> Facts:
        """Serve one more consumer. Return what can be asked of it. Raises ValueError if one of this name is served."""
        if consumer in self.slots:
            raise ValueError(f"there is a machine of {'/'.join(consumer)} already")
        self.slots[consumer] = slot
        self._hold_back(slot)
        self._fresh[consumer] = None
        return slot.machine.facts

    def renew(self, consumer: ConsumerId, config: ConsumerConfig, output_topic: OutputTopic | None, now: int) -> Facts:
        """Have a consumer want something else. Return what can be asked of it then. What it was offered and has not
        delivered is to be offered anew if its filter has changed. `config`: with its defaults filled in. `output_topic`: as
        its reader has it.
        """
        slot = self.slots[consumer]
        slot.take_output(output_topic)
        self._do(consumer, Updated(config), now)
        return slot.machine.facts

    def dismiss(self, consumer: ConsumerId, said: Iterable[Event], now: int) -> Work:
        """Serve a deleted consumer no more. Return the last that it has to say: its advisory, and the ends of its pull
        requests. `said`: events for it that no step has handled yet.
        """
        for event in (*said, Deleted()):
            self._do(consumer, event, now)
        work = Work()
        self._print(consumer, work, now)
        for kept in (self._fresh, self._active, self._touched, self.slots):
            kept.pop(consumer, None)
        return work

    # 1: what comes in

    def take_in(
        self,
        offers: Iterable[Offer],
        said: Mapping[ConsumerId, Iterable[AckBatch | Event]],
        acks_up_to: Mapping[str, int],
        now: int,
        beyond: Mapping[ConsumerId, int] = MappingProxyType({}),
    ) -> None:
        """Hand acks, offers and new counts to the machines, and a Ticked to each machine that needs
        one now. Nothing is delivered yet. Offered records go into the cache; anything else for a
        consumer without a machine here is ignored.

        `said`: ack batches and events by consumer, in order. `acks_up_to`: by stream, ns since
        1970; all acks before this time are in this `said` or were in an earlier one. `now`: ns
        since 1970. `beyond`: matching messages above the offers, by consumer, where the count has
        changed.
        """
        known: dict[int, RecordSlice] = {}
        for consumer, events in said.items():
            if slot := self.slots.get(consumer):
                for event in events:
                    self._tell(consumer, slot, event, now)
        for offer in offers:
            if id(offer.piece) not in known:
                known[id(offer.piece)] = offer.piece
                self.record_cache.put(offer.consumer[0], offer.piece)
            if slot := self.slots.get(offer.consumer):
                self._offer(offer, slot, now)
        for consumer, count in beyond.items():
            if slot := self.slots.get(consumer):
                self._do(consumer, Offered(_NO_RUN, slot.machine.state.up_to, count), now)
        for consumer, slot in self.slots.items():
            up_to = acks_up_to.get(consumer[0])
            is_due = slot.machine.state.armed_at <= now or consumer in self._fresh
            if is_due or (up_to is not None and slot.blocked_at <= up_to):
                self._do(consumer, Ticked(up_to), now)
        self._fresh.clear()

    def expire(self, lows: Mapping[str, int], now: int) -> None:
        """Let machines forget messages that they gave up because their deliveries were used up, and
        that the log does not have any more; otherwise every checkpoint would contain them.

        `lows`: by stream, the lowest stream sequence that the log still has; nothing is forgotten of
        other streams. `now`: ns since 1970.
        """
        for consumer, slot in self.slots.items():
            low = lows.get(consumer[0], 0)
            if slot.machine.state.window.has_given_up(low):
                self._do(consumer, Expired(low), now)

    def _offer(self, offer: Offer, slot: ConsumerSlot, now: int) -> None:
        sequences = offer.piece.sequences[offer.rows]
        fresh = np.flatnonzero(sequences > slot.machine.state.up_to)
        if fresh.size:
            rows = offer.rows[fresh]
            times = offer.piece.records.timestamp[rows] * MILLISECOND
            run = Run(sequences[fresh], times, offer.piece.measure(rows))
            self._do(offer.consumer, Offered(run, int(run.sequences[-1])), now)

    def _tell(self, consumer: ConsumerId, slot: ConsumerSlot, said: AckBatch | Event, now: int) -> None:
        """Hand an ack batch or an event to a consumer's machine. Acks of a batch that do not count
        (`ConsumerSlot.sift`) are refused, and the machine does not get them.
        """
        if slot.names_itself:
            self._unnamed += count_unnamed(said)
        if not isinstance(said, AckBatch):
            self._do(consumer, said, now)
            return
        said, refused = slot.sift(said)
        if refused:
            self._note(consumer, refused)
        for event in slot.list_events(said):
            self._do(consumer, event, now)

    def order(self, consumer: ConsumerId, event: Event, now: int) -> None:
        """Hand one more event to a consumer's machine: an operator's, a reader's, or a pull
        request. What it leads to goes out with the next `give_out`. Do nothing if the consumer has
        no machine here.
        """
        if consumer in self.slots:
            self._do(consumer, event, now)

    def _do(self, consumer: ConsumerId, event: Event, now: int) -> None:
        """Let a consumer's machine handle an event without delivering anything, queue its effects,
        and mark the consumer as active in this step.
        """
        self._note(consumer, self.slots[consumer].machine.handle(event, now, 0))
        self._active[consumer] = None

    def _note(self, consumer: ConsumerId, effects: Iterable[Effect]) -> None:
        """Queue the machine's effects, except ArmTimer, and mark its state as changed."""
        self._touched[consumer] = None
        kept = self._effects.setdefault(consumer, [])
        kept.extend(effect for effect in effects if not isinstance(effect, ArmTimer))

    # 2: what is needed

    def find_wanted(self) -> dict[str, Ints]:
        """Return the stream sequences (rising), by stream, of records that this step needs, for
        deliveries and dead letters, and that are not in the cache. Streams without any are left out.
        """
        wanted: dict[str, list[Ints]] = {}
        for consumer in self._active:
            found = np.concatenate((self._find_turn(consumer), self._find_letters(consumer)))
            missing = found[self.record_cache.find(consumer[0], found).missing] if found.size else found
            if missing.size:
                wanted.setdefault(consumer[0], []).append(missing)
        return {stream: distinct(np.concatenate(parts)) for stream, parts in wanted.items()}

    def _find_turn(self, consumer: ConsumerId) -> Ints:
        """Return the stream sequences of the messages that a consumer would deliver next. These are
        at most STEP_MESSAGES and STEP_BYTES, but always the first one if there is any.
        """
        sequences, sizes = self.slots[consumer].machine.find_next_up(STEP_MESSAGES)
        fits = int(np.searchsorted(np.cumsum(sizes), STEP_BYTES, side="right"))
        return sequences[: max(fits, 1)]

    def _find_letters(self, consumer: ConsumerId) -> Ints:
        """Return the stream sequences of the messages that a consumer has given up in this step and
        that become dead letters.
        """
        letters = [effect.stream_seq for effect in self._effects.get(consumer, ()) if isinstance(effect, DeadLetter)]
        return np.array(letters, np.int64)

    # 3: what goes out

    def give_out(
        self, recalled: Iterable[tuple[str, RecordSlice]], gone: Mapping[str, Ints], now: int, tells_all: bool = False
    ) -> Work:
        """Deliver the messages whose records are available, and return the work of the step.

        `recalled`: refetched slices with their stream, kept for this step. `gone`: by stream, the
        sequences of `find_wanted` that the log does not have any more; machines drop them. Once
        ROUND_BYTES are encoded, the other consumers deliver in the next step. `now`: ns since 1970.
        `tells_all`: write checkpoints of all machines, changed or not.
        """
        work = Work(unnamed=self._unnamed)
        self._unnamed = Counter()
        for stream, piece in recalled:
            self.record_cache.lay_out(stream, piece)
        size = 0
        for consumer in list(self._active):
            if size < ROUND_BYTES:
                self._give(consumer, gone.get(consumer[0]), now)
            # also for consumers that are still active: their effects go with the acks and the state
            # of this step
            size += self._print(consumer, work, now)
        self.record_cache.clear()
        self._remember(work, tells_all)
        return work

    def _give(self, consumer: ConsumerId, lost: Ints | None, now: int) -> None:
        """Let one consumer deliver its next messages, as far as their records are in the cache, and
        queue the effects.

        Before that, messages that the output can never take are given up if they become dead
        letters. The consumer stays active only if it has more to deliver at once. `lost`: stream
        sequences of its stream that the log does not have any more, None for none; the machine
        drops them first.
        """
        slot = self.slots[consumer]
        if lost is not None and lost.size:
            self._do(consumer, Removed(sequences=lost), now)
        turn, ready = self._find_ready(consumer)
        while ready and slot.buries_refused and self._refuse(consumer, slot, turn[:ready], now):
            turn, ready = self._find_ready(consumer)  # other messages have moved up
        del self._active[consumer]
        if ready:
            self._note(consumer, slot.machine.deliver(now, ready))
        if slot.machine.state.armed_at <= now and turn.size:
            self._active[consumer] = None  # it has more to deliver

    def _find_ready(self, consumer: ConsumerId) -> tuple[Ints, int]:
        """Return the stream sequences of a consumer's next messages, and how many of them, counted
        from the first, are in the cache before one is missing.
        """
        turn = self._find_turn(consumer)
        missing = self.record_cache.find(consumer[0], turn).missing
        return turn, int(missing[0]) if missing.size else turn.size

    def _refuse(self, consumer: ConsumerId, slot: ConsumerSlot, turn: Ints, now: int) -> bool:
        """Let the machine give up those of these messages that the output can never take. Return
        whether there were any.
        """
        refused = self._printing.find_refused(consumer, slot, self.record_cache, turn, now)
        if refused.size:
            self._do(consumer, Undeliverable(np.sort(refused)), now)
        return bool(refused.size)

    def _print(self, consumer: ConsumerId, work: Work, now: int) -> int:
        """Encode the queued effects of a consumer, and add the batches, answers and counts to
        `work`. Return the bytes of these batches and answers; 0 if no effects are queued.
        """
        effects = self._effects.pop(consumer, [])
        if not effects:
            return 0
        slot = self.slots[consumer]
        for effect in effects:
            match effect:
                case Refuse(flaw):
                    work.refused[flaw] += 1
                case Remove():
                    work.removed.append(consumer)
                case Deliver():
                    work.delivered[consumer] += effect.sequences.size
                    work.redelivered[consumer] += int((effect.deliveries > 1).sum())
                case DeadLetter():
                    work.dead_letters[consumer, effect.reason] += 1
        printed = self._printing.print(consumer, slot, effects, self.record_cache, now)
        work.batches += ((consumer, outgoing) for outgoing in printed.batches)
        work.answers += ((consumer, answer) for answer in printed.answers)
        if printed.newest is not None and printed.oldest is not None:
            work.newest[consumer], work.oldest[consumer] = printed.newest, printed.oldest
        return sum(outgoing.batch.size for outgoing in printed.batches) + sum(answer.size for answer in printed.answers)

    def _remember(self, work: Work, tells_all: bool) -> None:
        """Add facts and state records of the machines to the work: a delta of each machine that
        changed.

        The records are checkpoints of all machines instead if `tells_all`, or once the deltas have
        more bytes than the last checkpoints, and more than LEAST_LOG.
        """
        slots = self.slots.values()
        if tells_all or sum(slot.logged for slot in slots) > max(LEAST_LOG, sum(slot.base for slot in slots)):
            work.records = {consumer: slot.take_checkpoint() for consumer, slot in self.slots.items()}
            work.is_checkpoint = True
        else:
            work.records = {consumer: self.slots[consumer].take_delta() for consumer in self._touched}
        work.facts = {consumer: self.slots[consumer].machine.facts for consumer in self._touched}
        self._touched.clear()
