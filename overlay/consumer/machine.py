"""The state machine of one consumer.

Events and the current time go in, effects come out; it does no I/O.

`handle(event, now)` does four things in order. The transition table (table.py) says whether the
event is allowed and which phase follows. The event's handler updates the state. Then the machine
delivers whatever it may, because any event can remove what held deliveries back. An ack makes room,
a pull request asks for messages, a tick makes a redelivery due. Last, if the time of the next
Ticked has changed, the machine asks for a new timer.

All transitions are in this module, and no other one changes the state (state.py). Each part of the
state does its own work: the window settles messages, the queue of pulls chooses the next request,
the pace says how long to wait. The machine decides what goes where next. Redeliveries go before new
messages, and only new messages are held back by max_ack_pending.

The caller (the dispatcher) may limit how many messages go out in one step. It passes 0 while it
feeds events in. Then it reads the records that `find_next_up` names and passes their number to
`deliver`. So a record that turns out to be missing never gets a consumer sequence.

The caller owes the machine three things:

- It offers the messages that match, in stream order and without gaps.
- It makes records of Deliver's columns. It reports records that it cannot read any more as Removed,
  records that their topic can never take as Undeliverable, and the stream's new first sequence as
  Expired.
- It sends effects out together with the state that they belong to (snapshot.py), so that the state
  never forgets what clients were told. Only deliveries of `delivery: at_least_once` may go out
  before their state is committed (docs/consumers.md#incarnations).

The machine differs from nats-server in a few ways
(docs/consumers.md#where-it-differs-from-nats-server-2151). For example, an ack of a delivery that
was never made is refused and counted instead of ignored, and ack samples are spread evenly instead
of chosen by chance.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from overlay.arrays import Ints
from overlay.config.consumer import AckPolicy

from . import events
from .acks import Flaw, Verb, measure_token
from .deadlines import NEVER
from .effects import Advise, Advisory, Answer, ArmTimer, Deliver, Effect, Refuse, Remove, Rewind, Status
from .endings import Sampling, exhaust, lose, make_dead_letters, refuse
from .info import Facts, take_facts
from .pulls import DELETED, PullRequest, check_pull, idle
from .settling import find_meant, find_own
from .snapshot import MachineRecord, encode_checkpoint, encode_delta, restore
from .state import MachineState
from .table import PAUSED, TRANSITIONS, Phase
from .timer import find_next, find_removal
from .waiting import Waiter
from .window import EMPTY, Settled

_ByToken = events.Acked | events.Nakked | events.Progressed | events.Termed


class Machine:
    """The state machine of one consumer: events and the time go in, effects come out. It does no
    I/O. All times are ns since 1970.

    `fresh`: the state with which the consumer begins (`begin` in state.py); it belongs to the
    machine from now on. `records`: the stored records of the consumer's state, in the order of
    writing. If there are any, the state is restored from them, and only what they do not have is
    taken from `fresh` (snapshot.py). `state` may be read between two events, and only the machine
    changes it.
    """

    def __init__(self, fresh: MachineState, records: Sequence[MachineRecord] = ()) -> None:
        self.state = restore(fresh, records)
        self._effects: list[Effect] = []
        self._left = NEVER
        # a former owner has told of a pause that is stored
        if fresh.paused_until and not (records and records[-1].head["paused_until"]):
            self._effects.append(Advise(Advisory.PAUSE, is_paused=True, until=fresh.paused_until))

    def handle(self, event: events.Event, now: int, most: int = NEVER) -> list[Effect]:
        """Process an event and return the effects, in the order in which they are to be carried
        out.

        `now`: ns since 1970, never less than in an earlier call. `most`: how many messages may be
        delivered in this step; one that is given up when its turn comes, because its deliveries
        are used up, counts as well. If the current phase does not allow the event, return only a
        Refuse.
        """
        after = TRANSITIONS[self.state.phase].get(type(event))
        if after is None:
            return [Refuse(Flaw.CLOSED)]
        self.state.phase, self._left = after, most
        _HANDLERS[type(event)](self, event, now)
        return self._finish(now)

    def deliver(self, now: int, most: int) -> list[Effect]:
        """Deliver more of the messages that the `most` of `handle` held back. Return the effects, in
        order. `now` and `most`: as in `handle`.
        """
        self._left = most
        return self._finish(now)

    def hold_back(self, heads: Collection[str]) -> bool:
        """Deliver nothing to pull requests whose reply address begins with one of `heads`, until
        the next call.

        Return whether a request that was held back before is not any more. Then the caller has to
        pass a Ticked event, so that it is served.
        """
        return self.state.waiting.hold(heads)

    def take_delta(self) -> bytes:
        """Return a record of what changed since the last record (snapshot.py).

        The changes count as written from then on.
        """
        return encode_delta(self.state, self.state.window.take_changes())

    def take_checkpoint(self) -> bytes:
        """Return a record of the whole state (snapshot.py). The next delta is relative to it."""
        self.state.window.take_changes()
        return encode_checkpoint(self.state)

    def _finish(self, now: int) -> list[Effect]:
        self._deliver(now)
        self._arm(now)
        effects, self._effects = self._effects, []
        return effects

    # what can be asked

    def find_next_up(self, most: int) -> tuple[Ints, Ints]:
        """Return stream sequences and sizes (bytes) of the next messages to deliver, at most
        `most`: redeliveries first, then new messages as far as max_ack_pending leaves room. Nothing
        is delivered. Empty if the consumer is paused or deleted, has no reader, or is a pull
        consumer without a waiting request. Included is what the pace or flow control holds back,
        and queued messages that have used up their deliveries.
        """
        state = self.state
        if state.phase is not Phase.AWAKE or (not state.config.is_push and not len(state.waiting)):
            return EMPTY, EMPTY
        again = state.window.find_next_up(most)
        run = state.offers.find_next_up(min(most - again[0].size, state.window.room))
        return np.concatenate((again[0], run.sequences)), np.concatenate((again[1], run.sizes))

    @property
    def facts(self) -> Facts:
        """An immutable copy of everything that can be asked of the machine; it stays valid while
        the machine moves on.
        """
        return take_facts(self.state)

    # the stream

    def _offer(self, event: events.Offered, now: int) -> None:
        state = self.state
        state.offers.put(event.run)
        state.up_to = event.up_to
        state.beyond = max(state.beyond - len(event.run), 0) if event.beyond is None else event.beyond

    def _remove(self, event: events.Removed, now: int) -> None:
        state = self.state
        state.offers.remove(event.below, event.sequences)
        state.up_to = max(state.up_to, event.below - 1)
        self._effects.extend(lose(state.window.remove(event.below, event.sequences)))

    def _refuse(self, event: events.Undeliverable, now: int) -> None:
        """Give up messages that the output can never take, with an advisory and a dead letter each.

        Unlike a term, this settles nothing below them under `ack_policy: all`. A message that was
        never delivered takes no consumer sequence.
        """
        self.state.offers.remove(0, event.sequences)
        self._effects.extend(refuse(event.sequences, self.state.window.remove(0, event.sequences)))

    def _expire(self, event: events.Expired, now: int) -> None:
        self.state.window.forget_given_up(event.below)

    # pulls

    def _pull(self, event: events.Pulled, now: int) -> None:
        """Queue a pull request, or refuse it with a status if `check_pull` or `Waiting.admit` says
        so. An ack that came with it is processed first. If that does not name a delivery that its
        incarnation has made (`find_own`), the request is dropped without a status; so is a request
        without a reply address.
        """
        request, reply, state = event.request, event.reply, self.state
        if event.ack is not None and not self._ack_before_pull(event.ack, now):
            return
        if not reply:
            return
        refused = check_pull(request, state.config)
        if refused is not None:
            self._effects.append(Status(reply, refused))
        elif isinstance(request, PullRequest):
            state.active_at = now
            available = state.num_pending + state.window.queued
            self._effects += state.waiting.admit(request, reply, event.pin, available, now)

    def _ack_before_pull(self, ack: events.Acked, now: int) -> bool:
        """Process the ack of a `+NXT`, and return whether it names a delivery that its incarnation
        has made (`find_own`); True also if `ack.incarnation` is None. If not, a Refuse is queued,
        also under an ack policy without acks by token.
        """
        by, named = ack.incarnation, np.array([ack.consumer_seq])
        is_own = by is None or bool(find_own(self.state, by, ack.sequences, named)[0])
        count = len(self._effects)
        self._ack(ack, now)
        if not is_own and not any(isinstance(effect, Refuse) for effect in self._effects[count:]):
            self._effects.append(Refuse(Flaw.INCARNATION))
        return is_own

    def _leave_pulls(self, event: events.Unreachable, now: int) -> None:
        self.state.waiting.drop(event.heads, event.addresses)

    # what applications say of deliveries; settling.py has the rules which of it counts

    def _ack(self, event: events.Acked, now: int) -> None:
        """Settle messages that were acked by token, and confirm it to the sender if none of them is
        pending then. If a stream sequence is above the last delivered one, queue a Refuse instead;
        also if the ack does not count by its incarnation (`_is_given`). Other acks are ignored
        under an ack policy without acks by token.
        """
        state = self.state
        sequences, consumer_seq = event.sequences, event.consumer_seq
        if event.incarnation is not None:
            meant = find_meant(state, Verb.ACK, event.incarnation, sequences, np.full(sequences.size, consumer_seq))
            sequences, consumer_seq = meant.sequences, int(meant.consumer_seqs[-1])
        if sequences.size and int(sequences.max()) > state.window.delivered.stream:
            self._effects.append(Refuse(Flaw.FUTURE))
        elif self._is_given(event, sequences, Verb.ACK) and self._hears(now):
            ended = state.window.ack(sequences, consumer_seq)
            self._answer_if_settled(event.reply, event.sequences)
            self._settle(ended, now)

    def _ack_ranges(self, event: events.RangeAcked, now: int) -> None:
        """Settle messages that were acked by consumer sequence, and confirm it to the sender if
        none of them is pending then.

        If a range reaches beyond the last delivery, or if another incarnation gave out a part of
        it, that part is refused and the rest counts. The sender gets no answer then: the messages
        of that part may be delivered again. Under an ack policy without acks by token nothing is
        settled, and only a part beyond the last delivery is refused.
        """
        state = self.state
        newest = state.window.delivered.consumer
        is_whole = all(last <= newest for _, last in event.ranges)
        if not is_whole:
            self._effects.append(Refuse(Flaw.FUTURE))
        known = tuple((first, min(last, newest)) for first, last in event.ranges if first <= newest)
        if event.incarnation is not None and state.config.ack_policy.takes_acks:
            own = state.lineage.clip(event.incarnation, known)
            if _count(own) < _count(known):
                self._effects.append(Refuse(Flaw.INCARNATION))
                is_whole = False
            known = own
        if known and self._hears(now):
            named = state.window.find_sequences(known) if event.reply else EMPTY
            ended = state.window.ack_ranges(known)
            if is_whole:
                self._answer_if_settled(event.reply, named)
            self._settle(ended, now)

    def _nak(self, event: events.Nakked, now: int) -> None:
        """Queue a message for redelivery, at once or after the delay of the nak, with an advisory;
        do neither if `Window.nak` returns False. The sender gets a confirmation either way. A nak
        that does not count (`_is_taken`) is refused or ignored instead.
        """
        if not self._is_taken(event, Verb.NAK, now):
            return
        self._answer(event.reply)
        if self.state.window.nak(event.stream_seq, event.consumer_seq, event.delay, now):
            self._effects.append(Advise(Advisory.NAK, event.stream_seq, event.consumer_seq, event.deliveries))

    def _progress(self, event: events.Progressed, now: int) -> None:
        """Restart the timers of messages that the application still works on, and confirm it to the
        sender. If a stream sequence is above the last delivered one, or if the report does not
        count by its incarnation (`_is_given`), queue a Refuse instead. Other reports are ignored
        under an ack policy without acks by token.
        """
        known = self._is_known(int(event.sequences.max()))
        if known and self._is_given(event, event.sequences, Verb.PROGRESS) and self._hears(now):
            self._answer(event.reply)
            self.state.window.progress(event.sequences, now)

    def _term(self, event: events.Termed, now: int) -> None:
        """Settle a message for good; under `ack_policy: all` also everything pending before it.
        Confirm it to the sender if the message is not pending then. Queue an advisory, even if the
        message was not pending, and a dead letter if it was and the consumer has a topic for them.
        A term that does not count (`_is_taken`) is refused or ignored.
        """
        if not self._is_taken(event, Verb.TERM, now):
            return
        sequences = np.array([event.stream_seq])
        ended = self.state.window.ack(sequences, event.consumer_seq)
        self._answer_if_settled(event.reply, sequences)
        if len(ended):
            self.state.acked_at = now
        numbers = event.stream_seq, event.consumer_seq, event.deliveries
        self._effects.append(Advise(Advisory.TERMINATED, *numbers, event.reason))
        self._queue_dead_letters(ended.only(event.stream_seq), "term")

    def _answer_flow(self, event: events.FlowAnswered, now: int) -> None:
        """Let deliveries continue that waited for this answer to flow control.

        With `ack_policy: flow_control`, settle everything up to the delivery that it names. Ignore
        an answer to any request but the one that waits. If an answer names a delivery that was
        never made, queue a Refuse and do nothing else.
        """
        state = self.state
        if event.up_to > state.window.delivered.consumer:
            self._effects.append(Refuse(Flaw.FUTURE))
        elif state.pace.flow is not None and state.pace.flow.answer(event.subject):
            state.active_at = now
            if state.pace.flow.acks and event.up_to:
                self._settle(state.window.ack_ranges(((1, event.up_to),)), now)

    def _is_taken(self, event: events.Nakked | events.Termed, verb: Verb, now: int) -> bool:
        """Return whether a nak or a term is to be processed. If its message was never delivered, or
        if it does not count by its incarnation, queue a Refuse and return False. Under an ack
        policy without acks by token the result is False; only a message that was never delivered
        leads to a Refuse then.
        """
        is_given = self._is_known(event.stream_seq) and self._is_given(event, np.array([event.stream_seq]), verb)
        return is_given and self._hears(now)

    def _is_known(self, stream_seq: int) -> bool:
        """Return whether deliveries have reached this stream sequence. If not, queue a Refuse: the
        message was never delivered.
        """
        if stream_seq > self.state.window.delivered.stream:
            self._effects.append(Refuse(Flaw.FUTURE))
            return False
        return True

    def _is_given(self, event: _ByToken, sequences: Ints, verb: Verb) -> bool:
        """Return whether an ack counts by the incarnation in its token (`find_meant`). If not,
        queue a Refuse. True if `event.incarnation` is None.

        The sender of a refused ack gets an answer if all its messages are settled already.
        `sequences`: stream sequences of the acked messages; only the last is checked.
        """
        if event.incarnation is None:
            return True
        named = np.array([event.consumer_seq])
        if find_meant(self.state, verb, event.incarnation, sequences[-1:], named).counts[0]:
            return True
        self._effects.append(Refuse(Flaw.INCARNATION))
        self._answer_if_settled(event.reply, sequences)
        return False

    def _hears(self, now: int) -> bool:
        """Return whether the consumer's ack policy takes acks by token. If so, record `now` as the
        time at which the consumer was last used.
        """
        if not self.state.config.ack_policy.takes_acks:
            return False
        self.state.active_at = now
        return True

    def _answer(self, reply: events.Reply) -> None:
        """Queue a confirmation to the sender of an ack; nothing if `reply` is empty."""
        if reply:
            self._effects.append(Answer(reply))

    def _answer_if_settled(self, reply: events.Reply, sequences: Ints) -> None:
        """Queue a confirmation to the sender of an ack if all these messages were delivered and
        none is pending. Otherwise queue nothing, so that the sender tries again.

        `sequences`: stream sequences.
        """
        if reply and self.state.window.is_settled(sequences):
            self._effects.append(Answer(reply))

    def _settle(self, ended: Settled, now: int) -> None:
        """Record `now` as the time of the last ack unless `ended` is empty, and with explicit acks
        queue samples for metric events. `ended`: the messages that the ack has settled, which the
        window has dropped already.
        """
        if len(ended):
            self.state.acked_at = now
        if self.state.config.ack_policy is AckPolicy.EXPLICIT:
            self._effects.extend(self.state.sampling.pick(ended, now))

    # messages that are given up

    def _exhaust(self, ended: Settled) -> None:
        """Queue advisories for messages that have used up their deliveries, and dead letters if the
        consumer has a topic for them. The window has marked the messages already.
        """
        self._effects.extend(exhaust(ended))
        self._queue_dead_letters(ended, "max_deliver")

    def _queue_dead_letters(self, ended: Settled, reason: str) -> None:
        """Queue dead letters for these messages if the consumer has a dead-letter topic; nothing
        otherwise.

        `reason`: as in DeadLetter.
        """
        if self.state.config.dead_letter is not None:
            self._effects.extend(make_dead_letters(ended, reason))

    # readers, pauses, time

    def _wake(self, event: events.Bound, now: int) -> None:
        self.state.active_at = now
        self.state.is_removal_said = False

    def _sleep(self, event: events.Unbound, now: int) -> None:
        self.state.active_at = now

    def _read(self, event: events.Read, now: int) -> None:
        window = self.state.window
        window.read(min(event.consumer_seq, window.delivered.consumer), now)

    def _pause(self, event: events.Paused, now: int) -> None:
        if event.until == self.state.paused_until:
            return  # a repeated request sends no second advisory
        self.state.paused_until = event.until
        self._effects.append(Advise(Advisory.PAUSE, is_paused=True, until=event.until))

    def _resume(self, event: events.Resumed, now: int) -> None:
        if self.state.paused_until:
            self._effects.append(Advise(Advisory.PAUSE, until=self.state.paused_until))
        self.state.paused_until = 0

    def _tick(self, event: events.Ticked, now: int) -> None:
        state = self.state
        # end a pause whose time has come
        if state.phase in PAUSED and state.paused_until <= now:
            state.phase = TRANSITIONS[state.phase][events.Resumed]
            self._resume(events.Resumed(), now)
        # expire deadlines, as far as the acks have been read; release a silent pinned client
        state.blocked_until, state.ticked_at = event.acks_up_to, now
        due = now if event.acks_up_to is None else min(now, event.acks_up_to)
        self._exhaust(state.window.expire(due))
        if lapsed := state.waiting.lapse_pin(now):
            group = state.config.priority_groups[0]
            self._effects.append(Advise(Advisory.UNPINNED, reason="timeout", group=group, pin=lapsed))
        self._deliver(now)
        if len(state.waiting):
            # a waiting pull request keeps the consumer active until the request ends
            state.active_at = now
        self._effects += state.waiting.run_out(now)
        # send the heartbeats that are due, of pull requests and of the deliver subject
        self._effects += state.waiting.beat(now, idle(state.window.delivered.consumer, state.position))
        if state.beat_at <= now:
            self._beat(now)
        # ask for the removal of an unused consumer
        if find_removal(state) <= now:
            state.is_removal_said = True
            self._effects.append(Remove())

    def _beat(self, now: int) -> None:
        """Queue a heartbeat for the deliver subject unless the phase is ASLEEP, and set the time of
        the next one. After the heartbeat, queue a flow control request if new messages wait for an
        answer that acks and no request is under way.
        """
        state, flow = self.state, self.state.pace.flow
        if state.phase is not Phase.ASLEEP:
            stalled = flow.subject if flow and (flow.is_stalled or flow.awaits_acks(state.window.room)) else ""
            self._effects.append(Status("", idle(state.window.delivered.consumer, state.position, stalled)))
            self._ask("")  # the last answer may have named no message, and a restart forgets the request
        state.beat_at = now + state.config.idle_heartbeat

    # operators

    def _update(self, event: events.Updated, now: int) -> None:
        """Switch to a new config.

        If the filter has changed, offered messages are dropped and a Rewind asks for them again. If
        deliver_subject has changed, all pending messages are queued for redelivery. If the rate
        limit or flow control has changed, both begin anew.
        """
        state, old, new = self.state, self.state.config, event.config
        state.config = state.window.config = state.waiting.config = new
        state.sampling = Sampling(new.sample_freq, state.sampling.rest)
        if (old.rate_limit_bps, old.flow_control) != (new.rate_limit_bps, new.flow_control):
            state.pace = state.pace.change(new)
        if old.deliver_subject != new.deliver_subject:
            # the old subject has no reader any more
            state.window.requeue_all()
        if (old.filters, old.filter) != (new.filters, new.filter):
            state.up_to, state.beyond = state.position, 0
            state.offers.clear()
            self._effects.append(Rewind(state.up_to))

    def _delete(self, event: events.Deleted, now: int) -> None:
        self._effects += self.state.waiting.end_all(DELETED)
        self._effects.append(Advise(Advisory.DELETED))

    # deliveries

    def _deliver(self, now: int) -> None:
        """Queue deliveries until nothing may go out, no reader takes messages, or the step's limit
        is reached.

        Redeliveries go first. If messages are ready but the limit is used up, `ready_at` is set to
        `now`. End pull requests that do not wait for messages if the consumer is paused, or if a
        request could take a message and there is none.
        """
        state, window, offers = self.state, self.state.window, self.state.offers
        state.ready_at = NEVER
        if state.phase in PAUSED:
            self._effects += state.waiting.end_one_shots()
        while state.phase is Phase.AWAKE and self._has_taker(now):
            if not self._left and (window.queued or (offers.count and window.room)):
                state.ready_at = now
                return
            # redeliveries first; messages whose deliveries are used up end on the way and count for
            # the limit
            rows, ended = window.peek_again(self._left)
            self._exhaust(ended)
            self._left -= len(ended)
            if len(ended) and not (rows.size and self._left):
                continue
            if rows.size:
                is_sent = self._send(None, int(window.pending.view("size")[rows[0]]), rows, now)
            # then new messages, if max_ack_pending leaves room
            elif not window.room:
                return
            elif offers.count:
                _, time, size = offers.peek()
                is_sent = self._send(time, size, None, now)
            else:
                if not state.beyond:
                    self._effects += state.waiting.end_one_shots()
                return
            if not is_sent:
                return

    def _has_taker(self, now: int) -> bool:
        """Return whether a reader can take a message: for a push consumer, whether flow control
        lets it through; for a pull consumer, whether a pull request waits that may be served.
        """
        state = self.state
        if state.config.is_push:
            return not state.pace.is_stalled
        return state.waiting.has_taker(state.num_pending, state.window.pending.count, now)

    def _send(self, time: int | None, size: int, again: Ints | None, now: int) -> bool:
        """Queue the delivery of the next messages to the reader whose turn it is: as many as that
        reader may take at once if nothing limits the pace, otherwise one.

        Return False if they have to wait for time or for a pull request.

        `time`: ns since 1970 when the next message was stored, None for a redelivery. `size`: its
        bytes. `again`: its row (an array of one) if it is a redelivery, None otherwise.
        """
        state, pace = self.state, self.state.pace
        size += self._measure_token(again)
        if state.config.is_push:
            ready_at = pace.ready_at(now, time, size)
            if ready_at > now:
                state.ready_at = ready_at
                return False
            self._give(None, NEVER if pace.is_even else 1, again is not None, now)
            self._ask(pace.spend(now, time, size, state.window.delivered.stream))
            return True
        # rate limit and flow control exist for push consumers only: for a pull consumer this is the
        # gaps of a replay
        if (ready_at := pace.ready_at(now, time, size)) > now:
            state.ready_at = ready_at
            return False
        waiter, ended = state.waiting.choose(size, state.num_pending, state.window.pending.count, now)
        self._effects += ended
        if waiter is None:
            return False
        if state.waiting.take_pin(waiter, now):
            pin = state.waiting.pin.id
            self._effects.append(Advise(Advisory.PINNED, group=waiter.request.group, pin=pin))
        most = state.waiting.run_length(waiter) if pace.is_even else 1
        count = self._give(waiter, most, again is not None, now)
        pace.spend(now, time, size, state.window.delivered.stream)
        self._effects += state.waiting.serve(waiter, count, size, now)
        return True

    def _measure_token(self, again: Ints | None) -> int:
        """Return the length of the next message's ack token in bytes, 0 if nothing counts bytes.

        max_bytes and the pace count it as well, as nats-server does (docs/jetstream.md#pull).

        `again`: the message's row (an array of one) if it is a redelivery, None otherwise.
        """
        state, window = self.state, self.state.window
        if not state.config.max_bytes and state.pace.is_even and state.config.is_push:
            return 0
        if again is None:
            deliveries, stream_seq = 1, state.offers.peek()[0]
        else:
            deliveries = int(window.pending.view("deliveries")[again[0]]) + 1
            stream_seq = int(window.pending.view("sequence")[again[0]])
        numbers = deliveries, stream_seq, window.delivered.consumer + 1, state.num_pending - (again is None)
        return measure_token(*state.config.id, state.lineage.incarnation, numbers)

    def _give(self, waiter: Waiter | None, most: int, is_again: bool, now: int) -> int:
        """Queue one Deliver with up to `most` messages and return how many it has. `is_again`: take
        them from the redelivery queue, otherwise from the offered ones.

        `waiter`: the pull request they are for, None for a push consumer.
        """
        state = self.state
        most = min(most, self._left)
        if is_again:
            given, ended = state.window.give_again(most, now)
            self._exhaust(ended)
            self._left -= len(ended)
            num_pending = np.full(given.sequences.size, state.num_pending)
        else:
            run = state.offers.take(min(most, state.window.room))
            given = state.window.give(run.sequences, run.sizes, now)
            num_pending = np.arange(state.num_pending + len(run) - 1, state.num_pending - 1, -1)
        reply, pin = (waiter.reply, state.waiting.pin.id) if waiter else ("", "")
        columns = given.sequences, given.consumer_seqs, given.deliveries, num_pending
        self._effects.append(Deliver(reply, *columns, state.config.headers_only, pin))
        self._left -= given.sequences.size
        state.delivered_at = state.active_at = now
        if state.config.idle_heartbeat:
            state.beat_at = now + state.config.idle_heartbeat
        return given.sequences.size

    def _ask(self, subject: str) -> None:
        """Queue the flow control request with this subject, which has begun. If the subject is
        empty, begin and queue a request if new messages wait for an answer that acks and no other
        request waits for its own; otherwise do nothing.
        """
        window, flow = self.state.window, self.state.pace.flow
        if flow is None:
            return
        if subject := subject or (flow.ask() if flow.awaits_acks(window.room) else ""):
            self._effects.append(flow.make_request(subject, window.delivered))

    def _arm(self, now: int) -> None:
        """Queue an ArmTimer if the time at which the machine needs the next Ticked has changed."""
        at = find_next(self.state)
        if at != self.state.armed_at:
            self.state.armed_at = at
            self._effects.append(ArmTimer(at))


def _count(ranges: tuple[tuple[int, int], ...]) -> int:
    return sum(last - first + 1 for first, last in ranges)


_HANDLERS: dict[type[events.Event], Callable[[Machine, Any, int], None]] = {
    events.Offered: Machine._offer,
    events.Removed: Machine._remove,
    events.Undeliverable: Machine._refuse,
    events.Expired: Machine._expire,
    events.Pulled: Machine._pull,
    events.Unreachable: Machine._leave_pulls,
    events.Acked: Machine._ack,
    events.RangeAcked: Machine._ack_ranges,
    events.Nakked: Machine._nak,
    events.Progressed: Machine._progress,
    events.Termed: Machine._term,
    events.Bound: Machine._wake,
    events.Unbound: Machine._sleep,
    events.Read: Machine._read,
    events.FlowAnswered: Machine._answer_flow,
    events.Ticked: Machine._tick,
    events.Paused: Machine._pause,
    events.Resumed: Machine._resume,
    events.Updated: Machine._update,
    events.Deleted: Machine._delete,
}
