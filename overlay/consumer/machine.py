"""The state machine of one consumer.

Events and the current time go in, effects come out; it does no I/O.

`handle(event, now)` does four things in order. The transition table (table.py) says whether the
event is allowed and which state follows. The event's handler updates the machine. Then the machine
delivers whatever it may, because any event can remove what held deliveries back. An ack makes room,
a pull request asks for messages, a tick makes a redelivery due. Last, if the time of the next
Ticked has changed, the machine asks for a new timer.

Each part of the state has one owner. `window` has everything between a first delivery and its
settling: pending messages, deadlines, ack floors. `offers` has the messages that match and were not
delivered yet. `waiting` has the pull requests. `pace` has what slows deliveries down. `settling`
handles acks, naks, progress and terms. The machine itself decides only what goes where next.
Redeliveries go before new messages, and only new messages are held back by max_ack_pending.

The caller (the dispatcher) may limit how many messages go out in one step. It passes 0 while it
feeds events in. Then it reads the records that `find_next_up` names and passes their number to
`deliver`. So a record that turns out to be missing never gets a consumer sequence.

The caller owes the machine three things:

- It offers the messages that match, in stream order and without gaps.
- It makes records of Deliver's columns. It reports records that it cannot read any more as Removed,
  and the stream's new first sequence as Expired.
- It sends effects out together with the state that they belong to (snapshot.py), so that the state
  never forgets what clients were told. Only deliveries of `delivery: at_least_once` may go out
  before their state is committed (docs/consumers.md#incarnations).

The machine differs from nats-server in a few ways
(docs/consumers.md#where-it-differs-from-nats-server-2151). For example, an ack of a delivery that
was never made is refused and counted instead of ignored, and ack samples are spread evenly instead
of chosen by chance.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from overlay.arrays import Ints
from overlay.config.consumer import ConsumerConfig, Interest

from . import events, settling
from .acks import Flaw
from .change import change
from .deadlines import NEVER
from .effects import Advise, Advisory, ArmTimer, Deliver, Effect, Refuse, Remove, Status
from .endings import Sampling, bury, exhaust, lose
from .info import ConsumerInfo, Facts, Gate, describe, find_gate, take_facts
from .lineage import Lineage
from .pace import BURST, Pace
from .pulls import DELETED, PullRequest, check_pull, idle
from .queues import Offers
from .sizing import measure_token
from .table import PAUSED, TRANSITIONS, State
from .timer import find_next, find_removal
from .waiting import Waiter, Waiting
from .window import EMPTY, Settled, Window


class Machine:
    """The state machine of one consumer; the module's text describes it. All times are ns since 1970.

    `config`: with its defaults filled in. `start`: the first stream sequence that may be delivered
    (index/start_positions.py). `replay_until`: the stream's last sequence when the consumer was created, for replay
    original. `burst`: bytes that rate_limit_bps lets through at once. `jitter`: ns added to
    inactive_threshold, so that many consumers are not removed at the same moment. `incarnation`:
    the name of this machine in its ack tokens (lineage.py); empty for tokens of version 1, which
    have no incarnation.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        now: int,
        *,
        start: int = 1,
        replay_until: int = 0,
        burst: int = BURST,
        jitter: int = 0,
        incarnation: str = "",
    ) -> None:
        self.config = config
        self.lineage = Lineage(incarnation)
        self.window = Window(config, start)
        self.offers = Offers()
        self.pace = Pace(config, replay_until, burst, incarnation)
        self.waiting = Waiting(config)
        self.up_to = start - 1
        self.beyond = 0
        self.paused_until = 0
        self.delivered_at = self.acked_at = 0
        self.sampling = Sampling(config.sample_freq)
        self.burst, self.jitter = burst, jitter
        self.active_at = now
        self.beat_at = now + config.idle_heartbeat if config.idle_heartbeat else NEVER
        self.armed_at = NEVER
        self.ready_at = NEVER
        self.blocked_until: int | None = None
        self.ticked_at = 0
        self.is_removal_said = False
        self.effects: list[Effect] = []
        self._left = NEVER
        awaits_reader = config.is_push and config.interest is not Interest.ALWAYS
        self.state = State.ASLEEP if awaits_reader else State.AWAKE
        if config.pause_until is not None and config.pause_until > now:
            self._pause(events.Paused(config.pause_until), now)
            self.state = TRANSITIONS[self.state][events.Paused]

    def handle(self, event: events.Event, now: int, most: int = NEVER) -> list[Effect]:
        """Process an event and return the effects, in the order in which they are to be carried
        out.

        `now`: ns since 1970, never less than in an earlier call. `most`: how many messages may be
        delivered or given up in this step. If the current state does not allow the event, return
        only a Refuse.
        """
        after = TRANSITIONS[self.state].get(type(event))
        if after is None:
            return [Refuse(Flaw.CLOSED)]
        self.state, self._left = after, most
        _HANDLERS[type(event)](self, event, now)
        return self._finish(now)

    def deliver(self, now: int, most: int) -> list[Effect]:
        """Continue the deliveries that the `most` of `handle` cut short, and return their effects."""
        self._left = most
        return self._finish(now)

    def _finish(self, now: int) -> list[Effect]:
        self._deliver(now)
        self._arm(now)
        effects, self.effects = self.effects, []
        return effects

    # what can be asked

    @property
    def num_pending(self) -> int:
        """Number of messages that match and were not delivered, as far as the caller has reported
        them.
        """
        return self.offers.count + self.beyond

    @property
    def position(self) -> int:
        """The last stream sequence that was processed: delivered, or found not to match."""
        return self.offers.peek()[0] - 1 if self.offers.count else self.up_to

    def find_next_up(self, most: int) -> tuple[Ints, Ints]:
        """Return stream sequences and sizes (bytes) of the next messages to deliver, at most
        `most`; redeliveries come first.
        """
        if self.state is not State.AWAKE or (not self.config.is_push and not len(self.waiting)):
            return EMPTY, EMPTY
        again = self.window.find_next_up(most)
        run = self.offers.find_next_up(min(most - again[0].size, self.window.room))
        return np.concatenate((again[0], run.sequences)), np.concatenate((again[1], run.sizes))

    @property
    def facts(self) -> Facts:
        """An immutable copy of everything that can be asked of the machine; it stays valid while
        the machine moves on.
        """
        return take_facts(self)

    def gate(self, now: int) -> Gate:
        """Return what holds back new messages at `now` (ns since 1970)."""
        return find_gate(self.facts, now)

    def info(self, now: int) -> ConsumerInfo:
        """Return the consumer's info (ConsumerInfo) at `now` (ns since 1970)."""
        return describe(self.facts, now)

    # the stream

    def _offer(self, event: events.Offered, now: int) -> None:
        self.offers.put(event.run)
        self.up_to = event.up_to
        self.beyond = max(self.beyond - len(event.run), 0) if event.beyond is None else event.beyond

    def _remove(self, event: events.Removed, now: int) -> None:
        self.offers.remove(event.below, event.sequences)
        self.up_to = max(self.up_to, event.below - 1)
        self.effects.extend(lose(self.window.remove(event.below, event.sequences)))

    def _expire(self, event: events.Expired, now: int) -> None:
        self.window.forget_given_up(event.below)

    # pulls

    def _pull(self, event: events.Pulled, now: int) -> None:
        request, reply = event.request, event.reply
        if not reply:
            return
        refused = check_pull(request, self.config)
        if refused is not None:
            self.effects.append(Status(reply, refused))
        elif isinstance(request, PullRequest):
            self.active_at = now
            available = self.num_pending + self.window.queued
            self.effects += self.waiting.admit(request, reply, event.pin, available, now)

    def _leave_pulls(self, event: events.Unreachable, now: int) -> None:
        self.waiting.drop(event.heads, event.addresses)

    def _exhaust(self, ended: Settled) -> None:
        self.effects.extend(exhaust(ended))
        self.bury(ended, "max_deliver")

    def bury(self, ended: Settled, reason: str) -> None:
        """Queue dead letters for these messages if the consumer has a dead-letter topic.

        `reason`: as in DeadLetter.
        """
        if self.config.dead_letter is not None:
            self.effects.extend(bury(ended, reason))

    # readers, pauses, time

    def _wake(self, event: events.Bound, now: int) -> None:
        self.active_at = now
        self.is_removal_said = False

    def _sleep(self, event: events.Unbound, now: int) -> None:
        self.active_at = now

    def _read(self, event: events.Read, now: int) -> None:
        self.window.read(min(event.consumer_seq, self.window.delivered.consumer), now)

    def _pause(self, event: events.Paused, now: int) -> None:
        if event.until == self.paused_until:
            return  # a repeated request sends no second advisory
        self.paused_until = event.until
        self.effects.append(Advise(Advisory.PAUSE, is_paused=True, until=event.until))

    def _resume(self, event: events.Resumed, now: int) -> None:
        if self.paused_until:
            self.effects.append(Advise(Advisory.PAUSE, until=self.paused_until))
        self.paused_until = 0

    def _tick(self, event: events.Ticked, now: int) -> None:
        # end a pause whose time has come
        if self.state in PAUSED and self.paused_until <= now:
            self.state = TRANSITIONS[self.state][events.Resumed]
            self._resume(events.Resumed(), now)
        # expire deadlines, as far as the acks have been read; release a silent pinned client
        self.blocked_until, self.ticked_at = event.acks_up_to, now
        due = now if event.acks_up_to is None else min(now, event.acks_up_to)
        self._exhaust(self.window.expire(due))
        if lapsed := self.waiting.lapse_pin(now):
            group = self.config.priority_groups[0]
            self.effects.append(Advise(Advisory.UNPINNED, reason="timeout", group=group, pin=lapsed))
        self._deliver(now)
        if len(self.waiting):
            # a waiting pull request keeps the consumer active until the request ends
            self.active_at = now
        self.effects += self.waiting.run_out(now)
        # send the heartbeats that are due, of pull requests and of the deliver subject
        flow = self.pace.flow
        stalled = flow.subject if flow and (flow.is_stalled or flow.awaits_acks(self.window.room)) else ""
        self.effects += self.waiting.beat(now, idle(self.window.delivered.consumer, self.position))
        if self.state is not State.ASLEEP and self.beat_at <= now:
            text = idle(self.window.delivered.consumer, self.position, stalled)
            self.effects.append(Status("", text))
            self._ask("")  # the last answer may have named no message, and a restart forgets the request
        if self.beat_at <= now:
            self.beat_at = now + self.config.idle_heartbeat
        # ask for the removal of an unused consumer
        if find_removal(self) <= now:
            self.is_removal_said = True
            self.effects.append(Remove())

    def _update(self, event: events.Updated, now: int) -> None:
        self.effects += change(self, event.config)

    def _delete(self, event: events.Deleted, now: int) -> None:
        self.effects += self.waiting.end_all(DELETED)
        self.effects.append(Advise(Advisory.DELETED))

    # deliveries

    def _deliver(self, now: int) -> None:
        """Deliver until nothing may go out, no reader takes messages, or the step's limit is
        reached.

        Redeliveries go first. If messages are ready but the limit is used up, `ready_at` is set to
        `now`.
        """
        self.ready_at = NEVER
        if self.state in PAUSED:
            self.effects += self.waiting.end_one_shots()
        while self.state is State.AWAKE and self._has_taker(now):
            if not self._left and (self.window.queued or (self.offers.count and self.window.room)):
                self.ready_at = now
                return
            # redeliveries first; messages whose deliveries are used up end on the way and count for
            # the limit
            rows, ended = self.window.peek_again(self._left)
            self._exhaust(ended)
            self._left -= len(ended)
            if len(ended) and not (rows.size and self._left):
                continue
            if rows.size:
                is_sent = self._send(None, int(self.window.pending.view("size")[rows[0]]), rows, now)
            # then new messages, if max_ack_pending leaves room
            elif not self.window.room:
                return
            elif self.offers.count:
                _, time, size = self.offers.peek()
                is_sent = self._send(time, size, None, now)
            else:
                if not self.beyond:
                    self.effects += self.waiting.end_one_shots()
                return
            if not is_sent:
                return

    def _has_taker(self, now: int) -> bool:
        """Return whether a reader can take a message: flow control open, or a pull request waiting."""
        if self.config.is_push:
            return not self.pace.is_stalled
        return self.waiting.has_taker(self.num_pending, self.window.pending.count, now)

    def _send(self, time: int | None, size: int, again: Ints | None, now: int) -> bool:
        """Deliver the next messages to the reader whose turn it is.

        Return False if they have to wait.

        `time`: ns since 1970 when the message was stored, None for a redelivery. `size`: its bytes.
        `again`: its row if it is a redelivery, None otherwise.
        """
        size += measure_token(self, again)
        if self.config.is_push:
            ready_at = self.pace.ready_at(now, time, size)
            if ready_at > now:
                self.ready_at = ready_at
                return False
            self._give(None, NEVER if self.pace.is_even else 1, again is not None, now)
            self._ask(self.pace.spend(now, time, size, self.window.delivered.stream))
            return True
        # rate limit and flow control exist for push consumers only: for a pull consumer this is the
        # gaps of a replay
        if (ready_at := self.pace.ready_at(now, time, size)) > now:
            self.ready_at = ready_at
            return False
        waiter, ended = self.waiting.choose(size, self.num_pending, self.window.pending.count, now)
        self.effects += ended
        if waiter is None:
            return False
        if self.waiting.take_pin(waiter, now):
            pin = self.waiting.pin.id
            self.effects.append(Advise(Advisory.PINNED, group=waiter.request.group, pin=pin))
        most = self.waiting.run_length(waiter) if self.pace.is_even else 1
        count = self._give(waiter, most, again is not None, now)
        self.pace.spend(now, time, size, self.window.delivered.stream)
        self.effects += self.waiting.serve(waiter, count, size, now)
        return True

    def _give(self, waiter: Waiter | None, most: int, is_again: bool, now: int) -> int:
        """Deliver up to `most` messages and return how many.

        `waiter`: the pull request they are for, None for a push consumer.
        """
        most = min(most, self._left)
        if is_again:
            given, ended = self.window.give_again(most, now)
            self._exhaust(ended)
            self._left -= len(ended)
            num_pending = np.full(given.sequences.size, self.num_pending)
        else:
            run = self.offers.take(min(most, self.window.room))
            given = self.window.give(run.sequences, run.sizes, now)
            num_pending = np.arange(self.num_pending + len(run) - 1, self.num_pending - 1, -1)
        reply, pin = (waiter.reply, self.waiting.pin.id) if waiter else ("", "")
        columns = given.sequences, given.consumer_seqs, given.deliveries, num_pending
        self.effects.append(Deliver(reply, *columns, self.config.headers_only, pin))
        self._left -= given.sequences.size
        self.delivered_at = self.active_at = now
        if self.config.idle_heartbeat:
            self.beat_at = now + self.config.idle_heartbeat
        return given.sequences.size

    def _ask(self, subject: str) -> None:
        """Send a flow control request: with this subject, or if it is empty, with a new one if only
        its answer can free messages.
        """
        if (flow := self.pace.flow) is None:
            return
        if subject := subject or (flow.ask() if flow.awaits_acks(self.window.room) else ""):
            self.effects.append(flow.make_request(subject, self.window.delivered))

    def _arm(self, now: int) -> None:
        """Ask for a new timer if the time of the next Ticked has changed."""
        at = find_next(self)
        if at != self.armed_at:
            self.armed_at = at
            self.effects.append(ArmTimer(at))


_HANDLERS: dict[type[events.Event], Callable[[Machine, Any, int], None]] = {
    events.Offered: Machine._offer,
    events.Removed: Machine._remove,
    events.Expired: Machine._expire,
    events.Pulled: Machine._pull,
    events.Unreachable: Machine._leave_pulls,
    events.Acked: settling.ack,
    events.RangeAcked: settling.ack_ranges,
    events.Nakked: settling.nak,
    events.Progressed: settling.progress,
    events.Termed: settling.term,
    events.Bound: Machine._wake,
    events.Unbound: Machine._sleep,
    events.Read: Machine._read,
    events.FlowAnswered: settling.answer_flow,
    events.Ticked: Machine._tick,
    events.Paused: Machine._pause,
    events.Resumed: Machine._resume,
    events.Updated: Machine._update,
    events.Deleted: Machine._delete,
}
