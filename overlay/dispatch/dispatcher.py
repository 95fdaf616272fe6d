"""The dispatcher: where the machines of a shard sit, between what comes in and the records that go out. No IO, no clock.

A step has three parts, all of them run by the shell (worker/acks/dispatch_loop.py) one after the other:

1. `take_in`: offers, acks, orders and the time are handed to the machines. Nothing goes out yet.
2. `find_wanted`: which records the next deliveries need that are not at hand. The shell reads them again, and says which of
   them are gone; JetStream's rule for those is that they are terminated.
3. `give_out`: the machines deliver, as many messages as there are records for, and what they want done becomes batches.
   Those and the machines' state go into one transaction.

The parts are apart so that a delivery never takes a consumer sequence without having its record, and so that nothing has
to wait in the middle of a machine's move. A step is bounded by STEP_MESSAGES and STEP_BYTES for each consumer, and by
ROUND_BYTES for all; who has more to give takes the next step at once. What has been taken in is never put off: its dead
letters, answers and advisories go out with the state and the place in the acks that they belong to.

Between a consumer's machine and the log stands its hold: the first message that was offered and is not delivered. A
restart reads from there on. A changed filter or deliver_subject comes with a restart too (worker/shard_manager.py):
what was offered under the old filter is offered anew from the hold on, as the machine's Rewind asks for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from overlay.arrays import Ints
from overlay.consumer.acks import Flaw
from overlay.consumer.deadlines import NEVER
from overlay.consumer.effects import ArmTimer, DeadLetter, Deliver, Effect, Refuse, Remove
from overlay.consumer.events import Event, Expired, Offered, Removed, Ticked
from overlay.consumer.info import Facts
from overlay.consumer.pending import distinct
from overlay.consumer.queues import Run
from overlay.consumer.window import EMPTY
from overlay.output.batch_builder import OutputBatch
from overlay.output.entry import Entry
from overlay.state.shard_state import ConsumerId

from .ack_decoder import AckBatch
from .effect_encoder import EffectEncoder
from .record_cache import RecordCache
from .record_slice import RecordSlice
from .served_consumer import ConsumerSlot, count_unnamed
from .undeliverable import refuse

STEP_MESSAGES = 16_384
STEP_BYTES = 8 << 20
ROUND_BYTES = 16 << 20
LEAST_LOG = 1 << 20
"""Bytes of changes before everything is written anew; with more state than this, as many as that has."""
MILLISECOND = 1_000_000
_NO_RUN = Run(EMPTY, EMPTY, EMPTY)


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """Rows of a piece that a consumer's filters want."""

    consumer: ConsumerId
    piece: RecordSlice
    rows: Ints


@dataclass(slots=True)
class Work:
    """What a step came to, for one transaction."""

    batches: list[tuple[ConsumerId, OutputBatch]] = field(default_factory=list)
    answers: list[tuple[ConsumerId, Entry | OutputBatch]] = field(default_factory=list)
    """For reply topics, to be sent in order once the transaction is committed."""
    records: dict[ConsumerId, bytes] = field(default_factory=dict)
    """What is to be remembered of each machine that moved."""
    facts: dict[ConsumerId, Facts] = field(default_factory=dict)
    """What each machine that moved is after the step."""
    is_checkpoint: bool = False
    """Whether `records` holds everything of every machine."""
    delivered: Counter[ConsumerId] = field(default_factory=Counter)
    redelivered: Counter[ConsumerId] = field(default_factory=Counter)
    buried: Counter[ConsumerId] = field(default_factory=Counter)
    refused: Counter[Flaw] = field(default_factory=Counter)
    unnamed: Counter[str] = field(default_factory=Counter)
    """Acks that name no incarnation, for consumers whose tokens do: by what lacks it, `token` or `range`."""
    newest: dict[ConsumerId, int] = field(default_factory=dict)
    oldest: dict[ConsumerId, int] = field(default_factory=dict)
    """ms of the source records."""
    removed: list[ConsumerId] = field(default_factory=list)
    """Consumers that nobody uses any more (inactive_threshold)."""

    def __bool__(self) -> bool:
        return bool(self.batches or self.answers or self.records)


class Dispatcher:
    """See the module's text. Not for two threads at once."""

    def __init__(
        self, slots: Mapping[ConsumerId, ConsumerSlot], printing: EffectEncoder, record_cache: RecordCache | None = None
    ) -> None:
        self.slots = dict(slots)
        self.record_cache = record_cache or RecordCache()
        self._printing = printing
        self._effects: dict[ConsumerId, list[Effect]] = {}
        # each is asked once when it sits down, and when its pull requests are held back no more
        self._fresh: dict[ConsumerId, None] = dict.fromkeys(self.slots)
        self._active: dict[ConsumerId, None] = {}
        self._touched: dict[ConsumerId, None] = {}
        self._unnamed: Counter[str] = Counter()
        self._full: frozenset[str] = frozenset()

    @property
    def next_at(self) -> int:
        """When a step is due even if nothing comes, ns; NEVER for not at all."""
        if self._fresh or self._active:
            return 0
        return min((slot.machine.armed_at for slot in self.slots.values()), default=NEVER)

    @property
    def waiting_for_acks(self) -> set[str]:
        """Streams with a deadline that waits for acks that are not read yet."""
        return {consumer[0] for consumer, slot in self.slots.items() if slot.blocked_at < NEVER}

    @property
    def facts(self) -> dict[ConsumerId, Facts]:
        """What every machine is. Only the thread that takes the dispatcher's steps may ask."""
        return {consumer: slot.machine.facts for consumer, slot in self.slots.items()}

    def hold_back(self, topics: frozenset[str]) -> None:
        """Give nothing to pull requests that name one of these reply topics, until the next call."""
        if topics == self._full:
            return
        self._full = topics
        heads = tuple(f"{topic}/" for topic in topics)
        for consumer, slot in self.slots.items():
            if not slot.machine.config.is_push and slot.machine.waiting.hold(heads):
                self._fresh[consumer] = None

    # 1: what comes in

    def take_in(
        self,
        offers: Iterable[Offer],
        said: Mapping[ConsumerId, Iterable[AckBatch | Event]],
        acks_up_to: Mapping[str, int],
        now: int,
        beyond: Mapping[ConsumerId, int] = MappingProxyType({}),
    ) -> None:
        """Hand everything to the machines. `acks_up_to`: by stream, the time up to which all acks are in `said`, or were in
        that of an earlier step; ns, like `now`. `beyond`: messages behind the offers, where that has changed."""
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
                self._do(consumer, Offered(_NO_RUN, slot.machine.up_to, count), now)
        for consumer, slot in self.slots.items():
            up_to = acks_up_to.get(consumer[0])
            is_due = slot.machine.armed_at <= now or consumer in self._fresh
            if is_due or (up_to is not None and slot.blocked_at <= up_to):
                self._do(consumer, Ticked(up_to), now)
        self._fresh.clear()

    def expire(self, lows: Mapping[str, int], now: int) -> None:
        """Let machines forget messages that were given up and that their logs have lost: else every checkpoint has them.
        `lows`: by stream, the lowest stream sequence that is left."""
        for consumer, slot in self.slots.items():
            low = lows.get(consumer[0], 0)
            if slot.machine.window.has_given_up(low):
                self._do(consumer, Expired(low), now)

    def _offer(self, offer: Offer, slot: ConsumerSlot, now: int) -> None:
        sequences = offer.piece.sequences[offer.rows]
        fresh = np.flatnonzero(sequences > slot.machine.up_to)
        if fresh.size:
            rows = offer.rows[fresh]
            times = offer.piece.records.timestamp[rows] * MILLISECOND
            run = Run(sequences[fresh], times, offer.piece.measure(rows))
            self._do(offer.consumer, Offered(run, int(run.sequences[-1])), now)

    def _tell(self, consumer: ConsumerId, slot: ConsumerSlot, said: AckBatch | Event, now: int) -> None:
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
        """Hand in one more event: what an operator, a reader or a pull request wants."""
        if consumer in self.slots:
            self._do(consumer, event, now)

    def _do(self, consumer: ConsumerId, event: Event, now: int) -> None:
        self._note(consumer, self.slots[consumer].machine.handle(event, now, 0))
        self._active[consumer] = None

    def _note(self, consumer: ConsumerId, effects: Iterable[Effect]) -> None:
        """Keep what a machine wants done. Whatever it is, the machine has moved."""
        self._touched[consumer] = None
        kept = self._effects.setdefault(consumer, [])
        kept.extend(effect for effect in effects if not isinstance(effect, ArmTimer))

    # 2: what is needed

    def find_wanted(self) -> dict[str, Ints]:
        """By stream, the stream sequences of records that this step needs and that are not at hand; rising."""
        wanted: dict[str, list[Ints]] = {}
        for consumer in self._active:
            found = np.concatenate((self._find_turn(consumer), self._find_letters(consumer)))
            missing = found[self.record_cache.find(consumer[0], found).missing] if found.size else found
            if missing.size:
                wanted.setdefault(consumer[0], []).append(missing)
        return {stream: distinct(np.concatenate(parts)) for stream, parts in wanted.items()}

    def _find_turn(self, consumer: ConsumerId) -> Ints:
        """Whose turn it is in this step."""
        sequences, sizes = self.slots[consumer].machine.find_next_up(STEP_MESSAGES)
        fits = int(np.searchsorted(np.cumsum(sizes), STEP_BYTES, side="right"))
        return sequences[: max(fits, 1)]

    def _find_letters(self, consumer: ConsumerId) -> Ints:
        letters = [effect.stream_seq for effect in self._effects.get(consumer, ()) if isinstance(effect, DeadLetter)]
        return np.array(letters, np.int64)

    # 3: what goes out

    def give_out(
        self, recalled: Iterable[tuple[str, RecordSlice]], gone: Mapping[str, Ints], now: int, tells_all: bool = False
    ) -> Work:
        """Deliver what there are records for. `recalled`: pieces for what was wanted, with their stream; `gone`: by stream,
        sequences that were wanted and that the log does not hold any more. `tells_all`: everything of all machines is to be
        remembered, moved or not."""
        work = Work(unnamed=self._unnamed)
        self._unnamed = Counter()
        for stream, piece in recalled:
            self.record_cache.lay_out(stream, piece)
        size = 0
        for consumer in list(self._active):
            if size < ROUND_BYTES:
                self._give(consumer, gone.get(consumer[0]), now)
            # also of those who are still active: the acks that it came from, and the machine's state, go with this step
            size += self._print(consumer, work, now)
        self.record_cache.clear()
        self._remember(work, tells_all)
        return work

    def _give(self, consumer: ConsumerId, lost: Ints | None, now: int) -> None:
        slot = self.slots[consumer]
        if lost is not None and lost.size:
            self._do(consumer, Removed(sequences=lost), now)
        del self._active[consumer]
        turn, ready = self._find_ready(consumer)
        while ready and slot.buries_refused and self._refuse(consumer, slot, turn[:ready], now):
            turn, ready = self._find_ready(consumer)  # others have moved up
        if ready:
            self._note(consumer, slot.machine.deliver(now, ready))
        if slot.machine.armed_at <= now and turn.size:
            self._active[consumer] = None  # it has more to give

    def _find_ready(self, consumer: ConsumerId) -> tuple[Ints, int]:
        """Whose turn it is, and how many of the first of them are at hand."""
        turn = self._find_turn(consumer)
        missing = self.record_cache.find(consumer[0], turn).missing
        return turn, int(missing[0]) if missing.size else turn.size

    def _refuse(self, consumer: ConsumerId, slot: ConsumerSlot, turn: Ints, now: int) -> bool:
        """Give up what the output can never take; whether there was any."""
        refused = self._printing.find_refused(consumer, slot, self.record_cache, turn, now)
        if refused.size:
            self._note(consumer, refuse(slot.machine, np.sort(refused), now))
        return bool(refused.size)

    def _print(self, consumer: ConsumerId, work: Work, now: int) -> int:
        """Turn a consumer's effects into batches; returns their bytes."""
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
                    work.buried[consumer] += 1
        printed = self._printing.print(consumer, slot, effects, self.record_cache, now)
        work.batches += ((consumer, outgoing) for outgoing in printed.batches)
        work.answers += ((consumer, answer) for answer in printed.answers)
        if printed.newest is not None and printed.oldest is not None:
            work.newest[consumer], work.oldest[consumer] = printed.newest, printed.oldest
        return sum(outgoing.batch.size for outgoing in printed.batches) + sum(answer.size for answer in printed.answers)

    def _remember(self, work: Work, tells_all: bool) -> None:
        """Put the machines' state beside the batches: what changed, or everything when the changes have grown beyond it."""
        slots = self.slots.values()
        if tells_all or sum(slot.logged for slot in slots) > max(LEAST_LOG, sum(slot.base for slot in slots)):
            work.records = {consumer: slot.take_checkpoint() for consumer, slot in self.slots.items()}
            work.is_checkpoint = True
        else:
            work.records = {consumer: self.slots[consumer].take_delta() for consumer in self._touched}
        work.facts = {consumer: self.slots[consumer].machine.facts for consumer in self._touched}
        self._touched.clear()
