"""One consumer as a machine: events and the time go in, effects come out, and nothing else happens.

`handle(event, now)` does four things in order. The table says whether the event may come and which state follows. Its handler
changes what is remembered. Then whatever may be delivered is delivered, since any event can open a gate that was shut:
an ack makes room, a pull brings a taker, a tick makes a message due. Last, the time of the next Ticked is told if it changed.

Who holds what: `window` has everything between a first delivery and its settling (pending, deadlines, floors), `offers` the
messages before it, `waiting` the pull requests, `pace` what slows a consumer down; `settling` hears what is said of
deliveries. The machine decides only what goes where next: messages that go out again before new ones; those new ones only
below max_ack_pending.

The shell may say how many messages go out in one step: 0 while it takes events in, and then, when it has the records that
`find_next_up` names in its hands, as many as these. So a record that turns out to be gone never takes a consumer sequence.

The shell owes the machine three things. It offers what matches, in stream order and without gaps, as far as `wanted` says. It
makes records of Deliver's columns and hands back what it finds gone as Removed, and where the stream begins now as Expired. It
sends effects out only with the state that they belong to (`snapshot`), so that what was told is never forgotten.

Where this differs from servers: an ack of a delivery that never was is refused instead of ignored, a term of a message that
is not pending sends no advisory, samples are spread evenly instead of by chance.
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
from .pulls import DELETED, PullRequest, StatusText, check_pull, idle
from .queues import Offers
from .sizing import measure_token
from .table import PAUSED, TRANSITIONS, State
from .timer import find_next, find_removal
from .waiting import Waiter, Waiting
from .window import EMPTY, Settled, Window


class Machine:
    """See the module's text. `config` has its defaults filled in; times are ns since 1970.

    `start`: the first stream sequence that may be delivered (overlay.consumer.start). `replay_until`: the stream's last
    sequence when the consumer was created, for replay original. `burst`: bytes that rate_limit_bps lets through at once.
    `jitter`: ns on top of inactive_threshold, so that many consumers do not go at the same time. `incarnation`: names this
    machine in tokens (lineage.py); empty for tokens of version 1, which name none.
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
        self.waiting = Waiting(config, self._say)
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
        """What is to be done about an event. `now` never goes back; `most`: messages that may go out or be given up."""
        after = TRANSITIONS[self.state].get(type(event))
        if after is None:
            return [Refuse(Flaw.CLOSED)]
        self.state, self._left = after, most
        _HANDLERS[type(event)](self, event, now)
        return self._finish(now)

    def deliver(self, now: int, most: int) -> list[Effect]:
        """Go on where `handle` stopped because of its `most`."""
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
        """Messages that match and have not been delivered, as far as the shell has said."""
        return self.offers.count + self.beyond

    @property
    def position(self) -> int:
        """The last stream sequence that is done with: delivered or found not to match."""
        return self.offers.peek()[0] - 1 if self.offers.count else self.up_to

    def wanted(self, ahead: int) -> int:
        """How many more messages to offer, to have `ahead` of them at hand or as many as could go out."""
        if self.state is not State.AWAKE:
            return 0
        room = self.window.room if self.config.is_push else min(self.window.room, self.waiting.claimed)
        return max(min(room, ahead) - self.offers.count, 0)

    def find_next_up(self, most: int) -> tuple[Ints, Ints]:
        """Stream sequences and sizes of the messages whose turn is next, `most` or fewer."""
        if self.state is not State.AWAKE or (not self.config.is_push and not len(self.waiting)):
            return EMPTY, EMPTY
        again = self.window.find_next_up(most)
        run = self.offers.find_next_up(min(most - again[0].size, self.window.room))
        return np.concatenate((again[0], run.sequences)), np.concatenate((again[1], run.sizes))

    @property
    def facts(self) -> Facts:
        """All that may be asked, to be kept while the machine moves on."""
        return take_facts(self)

    def gate(self, now: int) -> Gate:
        """What holds back new messages at `now`."""
        return find_gate(self.facts, now)

    def info(self, now: int) -> ConsumerInfo:
        """All there is to tell."""
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
        if refused is None and isinstance(request, PullRequest):
            self.active_at = now
            refused = self.waiting.admit(request, reply, event.pin, self.num_pending + self.window.queued, now)
        if refused is not None:
            self.effects.append(Status(reply, refused))

    def _leave_pulls(self, event: events.Unreachable, now: int) -> None:
        self.waiting.drop(event.heads, event.addresses)

    def _exhaust(self, ended: Settled) -> None:
        self.effects.extend(exhaust(ended))
        self.bury(ended, "max_deliver")

    def bury(self, ended: Settled, reason: str) -> None:
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
            return  # asked for twice, told of once
        self.paused_until = event.until
        self.effects.append(Advise(Advisory.PAUSE, is_paused=True, until=event.until))

    def _resume(self, event: events.Resumed, now: int) -> None:
        if self.paused_until:
            self.effects.append(Advise(Advisory.PAUSE, until=self.paused_until))
        self.paused_until = 0

    def _tick(self, event: events.Ticked, now: int) -> None:
        if self.state in PAUSED and self.paused_until <= now:
            self.state = TRANSITIONS[self.state][events.Resumed]
            self._resume(events.Resumed(), now)
        self.blocked_until, self.ticked_at = event.acks_up_to, now
        due = now if event.acks_up_to is None else min(now, event.acks_up_to)
        self._exhaust(self.window.expire(due))
        if lapsed := self.waiting.lapse_pin(now):
            group = self.config.priority_groups[0]
            self.effects.append(Advise(Advisory.UNPINNED, reason="timeout", group=group, pin=lapsed))
        self._deliver(now)
        if len(self.waiting):
            # whoever waits uses it, however long, until the end of his request
            self.active_at = now
        self.waiting.run_out(now)
        flow = self.pace.flow
        stalled = flow.subject if flow and (flow.is_stalled or flow.awaits_acks(self.window.room)) else ""
        self.waiting.beat(now, idle(self.window.delivered.consumer, self.position))
        if self.state is not State.ASLEEP and self.beat_at <= now:
            text = idle(self.window.delivered.consumer, self.position, stalled)
            self.effects.append(Status("", text))
            self._ask("")  # the last answer may have named no message, and a restart forgets what it waited for
        if self.beat_at <= now:
            self.beat_at = now + self.config.idle_heartbeat
        if find_removal(self) <= now:
            self.is_removal_said = True
            self.effects.append(Remove())

    def _update(self, event: events.Updated, now: int) -> None:
        self.effects += change(self, event.config)

    def _delete(self, event: events.Deleted, now: int) -> None:
        self.waiting.end_all(DELETED)
        self.effects.append(Advise(Advisory.DELETED))

    # deliveries

    def _deliver(self, now: int) -> None:
        self.ready_at = NEVER
        if self.state in PAUSED:
            self.waiting.end_one_shots()
        while self.state is State.AWAKE and self._has_taker(now):
            if not self._left and (self.window.queued or (self.offers.count and self.window.room)):
                self.ready_at = now
                return
            rows, ended = self.window.peek_again(self._left)
            self._exhaust(ended)
            self._left -= len(ended)
            if len(ended) and not (rows.size and self._left):
                continue
            if rows.size:
                is_sent = self._send(None, int(self.window.pending.view("size")[rows[0]]), rows, now)
            elif not self.window.room:
                return
            elif self.offers.count:
                _, time, size = self.offers.peek()
                is_sent = self._send(time, size, None, now)
            else:
                if not self.beyond:
                    self.waiting.end_one_shots()
                return
            if not is_sent:
                return

    def _has_taker(self, now: int) -> bool:
        if self.config.is_push:
            return not self.pace.is_stalled
        return self.waiting.has_taker(self.num_pending, self.window.pending.count, now)

    def _send(self, time: int | None, size: int, again: Ints | None, now: int) -> bool:
        """Give the next messages to whom they belong; False if they have to wait. `time`: None for those that go again."""
        size += measure_token(self, again)
        if self.config.is_push:
            ready_at = self.pace.ready_at(now, time, size)
            if ready_at > now:
                self.ready_at = ready_at
                return False
            self._give(None, NEVER if self.pace.is_even else 1, again is not None, now)
            self._ask(self.pace.spend(now, time, size, self.window.delivered.stream))
            return True
        # of a pull consumer only the gaps of a replay: a rate limit and flow control are of push consumers
        if (ready_at := self.pace.ready_at(now, time, size)) > now:
            self.ready_at = ready_at
            return False
        waiter = self.waiting.choose(size, self.num_pending, self.window.pending.count, now)
        if waiter is None:
            return False
        if self.waiting.take_pin(waiter, now):
            pin = self.waiting.pin.id
            self.effects.append(Advise(Advisory.PINNED, group=waiter.request.group, pin=pin))
        most = self.waiting.run_length(waiter) if self.pace.is_even else 1
        count = self._give(waiter, most, again is not None, now)
        self.pace.spend(now, time, size, self.window.delivered.stream)
        self.waiting.serve(waiter, count, size, now)
        self.waiting.finish(waiter)
        return True

    def _give(self, waiter: Waiter | None, most: int, is_again: bool, now: int) -> int:
        """Deliver up to `most` messages; returns how many."""
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

    def _say(self, waiter: Waiter, text: StatusText) -> None:
        self.effects.append(Status(waiter.reply, text))

    def _ask(self, subject: str) -> None:
        """Send the flow control request of this subject, or another one if it takes its answer to go on."""
        if (flow := self.pace.flow) is None:
            return
        if subject := subject or (flow.ask() if flow.awaits_acks(self.window.room) else ""):
            self.effects.append(flow.make_request(subject, self.window.delivered))

    def _arm(self, now: int) -> None:
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
