"""The machine beside a dict, under any order of events; and each of a consumer's fields by itself."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from overlay.consumer.acks import Flaw
from overlay.consumer.deadlines import NEVER
from overlay.consumer.effects import (
    Advise,
    Advisory,
    Answer,
    DeadLetter,
    Deliver,
    Refuse,
    Remove,
    Rewind,
    Sample,
    Status,
)
from overlay.consumer.endings import UNDELIVERABLE, UNSET
from overlay.consumer.events import (
    Acked,
    Bound,
    Deleted,
    FlowAnswered,
    Nakked,
    Offered,
    Paused,
    Progressed,
    Pulled,
    RangeAcked,
    Read,
    Removed,
    Resumed,
    Termed,
    Ticked,
    Unbound,
    Undeliverable,
    Updated,
)
from overlay.consumer.info import Gate
from overlay.consumer.machine import Machine
from overlay.consumer.pulls import PullRequest
from overlay.consumer.queues import Run
from overlay.consumer.snapshot import decode
from overlay.consumer.state import begin
from overlay.consumer.table import Phase
from overlay.consumer.window import Pair
from tests.consumer.driver import SECOND, START, Driver, configure, some
from tests.oracle.consumer import Consumer

LIMITS = st.sampled_from([-1, 1, 2, 3])


class BesideADict(RuleBasedStateMachine):
    """The same events to the machine and to the obvious consumer."""

    def __init__(self) -> None:
        super().__init__()
        self.ready = False

    @rule(max_deliver=LIMITS, max_ack_pending=st.sampled_from([-1, 1, 3]))
    def begin(self, max_deliver: int, max_ack_pending: int) -> None:
        if not self.ready:
            config = configure(ack_wait=10 * SECOND, max_deliver=max_deliver, max_ack_pending=max_ack_pending)
            self.driver = Driver(config)
            self.model = Consumer(10 * SECOND, max_deliver, max_ack_pending)
            self.ready, self.last_floor = True, 0

    @rule(count=st.integers(1, 4))
    def offer(self, count: int) -> None:
        if self.ready:
            first = self.driver.last + 1
            self.driver.offer(count)
            self.model.offer(list(range(first, first + count)), self.driver.now)

    @rule(data=st.data(), verb=st.sampled_from(["ack", "ack", "nak", "delay", "progress", "term"]))
    def answer(self, data: st.DataObject, verb: str) -> None:
        if not self.ready or not self.model.sent:
            return
        sequence, consumer_seq, deliveries = data.draw(st.sampled_from(self.model.sent))
        now = self.driver.now
        match verb:
            case "ack":
                self.driver.do(Acked(some(sequence), consumer_seq))
                self.model.ack(sequence, now)
            case "term":
                self.driver.do(Termed(sequence, consumer_seq, deliveries))
                self.model.ack(sequence, now)
            case "progress":
                self.driver.do(Progressed(some(sequence)))
                self.model.progress(sequence, now)
            case _:
                delay = 3 * SECOND if verb == "delay" else None
                self.driver.do(Nakked(sequence, consumer_seq, deliveries, delay))
                self.model.nak(sequence, consumer_seq, delay, now)

    @rule(sequence=st.integers(1, 30))
    def remove(self, sequence: int) -> None:
        if self.ready and sequence <= self.driver.last:
            self.driver.do(Removed(sequences=some(sequence)))
            self.model.remove(sequence, self.driver.now)

    @rule(span=st.sampled_from([1, 3, 7, 20]))
    def wait(self, span: int) -> None:
        if self.ready:
            self.driver.now += span * SECOND
            self.driver.do(Ticked())
            self.model.tick(self.driver.now)

    @invariant()
    def tells_the_same(self) -> None:
        if not self.ready:
            return
        info, model = self.driver.info(), self.model
        assert self.driver.sent() == model.sent
        assert (info.delivered.consumer, info.delivered.stream) == model.delivered
        assert (info.ack_floor.consumer, info.ack_floor.stream) == model.floor
        assert (info.num_ack_pending, info.num_pending) == (len(model.pending), len(model.offered))
        assert info.num_redelivered == model.num_redelivered

    @invariant()
    def holds_what_it_promises(self) -> None:
        if not self.ready:
            return
        window, config = self.driver.machine.state.window, self.driver.machine.state.config
        assert window.floor.consumer >= self.last_floor
        self.last_floor = window.floor.consumer
        assert [sent[1] for sent in self.driver.sent()] == list(range(1, len(self.driver.sent()) + 1))
        if config.max_deliver > 0:
            assert all(deliveries <= config.max_deliver for _, _, deliveries in self.driver.sent())
        if config.max_ack_pending > 0:
            assert window.pending.count <= config.max_ack_pending


TestBesideADict = BesideADict.TestCase
TestBesideADict.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_acks_of_all_settle_what_lies_below() -> None:
    driver = Driver(configure(ack_policy="all"))
    driver.offer(5)
    driver.ack(3)
    info = driver.info()
    assert (info.ack_floor.stream, info.num_ack_pending) == (3, 2)


def test_without_acks_floors_follow() -> None:
    driver = Driver(configure(ack_policy="none"))
    driver.offer(5)
    info = driver.info()
    assert (info.ack_floor, info.num_ack_pending) == (info.delivered, 0)
    assert driver.do(Acked(some(2), 2, "inbox")) == []


def test_backoff_stretches_the_waits() -> None:
    driver = Driver(configure(backoff=(SECOND, 3 * SECOND), max_deliver=4))
    driver.offer(1)
    at = []
    for _ in range(100):
        at += [driver.now] * len([e for e in driver.pass_time(SECOND // 2) if isinstance(e, Deliver)])
    assert np.diff(at).tolist() == [3 * SECOND, 3 * SECOND]
    assert [advice.deliveries for advice in driver.all(Advise)] == [4]


def test_a_double_ack_is_answered_each_time() -> None:
    driver = Driver(configure())
    driver.offer(1)
    for _ in range(2):
        assert driver.do(Acked(some(1), 1, "inbox")) == [Answer("inbox")]


@pytest.mark.parametrize("event", [Acked(some(9), 9, "i"), Nakked(9, 9, 1), Termed(9, 9, 1), RangeAcked(((3, 9),))])
def test_acks_of_what_was_never_delivered_change_nothing(event: Acked) -> None:
    driver = Driver(configure())
    driver.offer(2)
    assert driver.do(event) == [Refuse(Flaw.FUTURE)]
    assert driver.info().num_ack_pending == 2


def test_ranges_name_any_delivery() -> None:
    driver = Driver(configure(ack_wait=SECOND))
    driver.offer(4)
    driver.pass_time(2 * SECOND + 1)
    assert driver.sent()[-1] == (4, 12, 3)
    driver.do(RangeAcked(((1, 1), (6, 6), (12, 12))))
    assert driver.machine.state.window.pending.view("sequence")[
        driver.machine.state.window.pending.find(some(1, 2, 3, 4))
    ].tolist() == [3]


def test_what_is_given_up_goes_to_the_dead_letters() -> None:
    driver = Driver(configure(ack_wait=SECOND, max_deliver=2, dead_letter="dead"))
    driver.offer(2)
    driver.do(Termed(1, 1, 1, "broken"))
    driver.pass_time(5 * SECOND)
    assert [(d.stream_seq, d.reason, d.deliveries) for d in driver.all(DeadLetter)] == [
        (1, "term", 1),
        (2, "max_deliver", 2),
    ]
    second = driver.all(DeadLetter)[1]
    assert second.last_delivered - second.first_delivered == SECOND


def test_delayed_naks_may_free_the_window() -> None:
    for frees, delivered in ((False, 2), (True, 3)):
        driver = Driver(configure(max_ack_pending=2, nak_delay_frees_pending=frees))
        driver.offer(5)
        driver.do(Nakked(1, 1, 1, 10 * SECOND))
        assert driver.machine.state.window.delivered.stream == delivered
        assert driver.info().gate is Gate.FULL


def test_removed_messages_are_terminated() -> None:
    driver = Driver(configure(dead_letter="dead", max_ack_pending=3))
    driver.offer(5)
    assert [e.stream_seq for e in driver.do(Removed(below=3)) if isinstance(e, Advise)] == [1, 2]
    assert driver.all(Advise)[0].reason == "Unacknowledged message was deleted"
    assert not driver.all(DeadLetter)
    assert driver.machine.state.window.delivered.stream == 5


def test_timers_start_when_the_group_has_read() -> None:
    driver = Driver(configure(interest="group", ack_wait=SECOND))
    driver.do(Bound())
    driver.offer(3)
    driver.pass_time(10 * SECOND)
    assert len(driver.sent()) == 3
    driver.do(Read(2))
    driver.pass_time(SECOND)
    assert [sent[0] for sent in driver.sent()[3:]] == [1, 2]
    driver.pass_time(10 * SECOND)
    assert len(driver.sent()) == 5
    driver.do(Read(4))
    driver.pass_time(SECOND)
    assert [sent[0] for sent in driver.sent()[5:]] == [1, 3]


def test_the_timer_of_a_redelivery_starts_when_the_group_has_read_that_one() -> None:
    """Not when a commit past the first delivery comes late, behind the nak of it."""
    driver = Driver(configure(interest="group", ack_wait=SECOND, max_deliver=2, dead_letter="dead"))
    driver.do(Bound())
    driver.offer(3)
    driver.do(Nakked(1, 1, 1, None))
    driver.do(Read(3))
    driver.ack(2, 3)
    driver.pass_time(10 * SECOND)
    assert driver.sent()[3:] == [(1, 4, 2)]
    assert not driver.all(DeadLetter)
    driver.do(Read(4))
    driver.pass_time(SECOND)
    assert len(driver.all(DeadLetter)) == 1


def test_the_timer_of_a_redelivery_starts_however_many_follow_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those of other messages the oldest are forgotten."""
    monkeypatch.setattr("overlay.consumer.window._MANY_AGAIN", 64)
    driver = Driver(configure(interest="group", ack_wait=SECOND))
    driver.do(Bound())
    driver.offer(2)
    driver.do(Read(2))
    driver.do(Nakked(1, 1, 1, None))
    for delivery in range(100):
        driver.do(Nakked(2, driver.machine.state.window.delivered.consumer if delivery else 2, 1, None))
    driver.do(Read(3))
    driver.pass_time(SECOND)
    assert [sent[0] for sent in driver.sent()[-1:]] == [1]


def test_deadlines_wait_for_unread_acks() -> None:
    driver = Driver(configure(ack_wait=SECOND))
    driver.offer(2)
    deadline = driver.timer
    driver.now = deadline + SECOND
    assert driver.do(Ticked(acks_up_to=deadline - 1)) == []
    assert driver.timer > driver.now
    driver.ack(1)
    driver.do(Ticked(acks_up_to=deadline))
    assert driver.sent()[2:] == [(2, 3, 2)]


def test_a_deadline_that_comes_with_an_ack_is_not_overlooked() -> None:
    """What was read before the deadline says nothing of a deadline that no tick has looked at yet."""
    driver = Driver(configure(ack_wait=SECOND))
    driver.offer(2)
    driver.do(Ticked(acks_up_to=driver.now))
    driver.now += 2 * SECOND
    driver.ack(1)
    assert driver.timer <= driver.now
    driver.do(Ticked(acks_up_to=driver.now))
    assert driver.sent()[2:] == [(2, 3, 2)]


def test_without_a_reader_nothing_is_sent() -> None:
    driver = Driver(configure(interest="group"))
    assert driver.offer(2) == []
    assert driver.info().push_bound is False
    driver.do(Bound())
    assert len(driver.sent()) == 2
    driver.do(Unbound())
    driver.offer(1)
    assert len(driver.sent()) == 2


def test_a_pause_that_is_asked_for_twice_is_told_of_once() -> None:
    driver = Driver(configure())
    until = driver.now + SECOND
    told = [effect for _ in range(2) for effect in driver.do(Paused(until)) if isinstance(effect, Advise)]
    assert told == [Advise(Advisory.PAUSE, is_paused=True, until=until)]


def test_a_pause_of_the_config_is_told_of_once() -> None:
    """A new owner of the consumer, which has the pause from the state, does not tell of it again."""
    config = configure(pause_until="2100-01-01T00:00:00Z")
    assert config.pause_until is not None
    first = Machine(begin(config, 0))
    told = [effect for effect in first.handle(Ticked(), 1) if isinstance(effect, Advise)]
    assert told == [Advise(Advisory.PAUSE, is_paused=True, until=config.pause_until)]
    second = Machine(begin(config, 2), [decode(first.take_checkpoint())])
    assert not [effect for effect in second.handle(Ticked(), 3) if isinstance(effect, Advise)]


def test_a_pause_ends_by_itself_or_by_request() -> None:
    driver = Driver(configure())
    driver.do(Paused(driver.now + 5 * SECOND))
    driver.offer(1)
    info = driver.info()
    assert (info.paused, info.pause_remaining, driver.sent()) == (True, 5 * SECOND, [])
    driver.pass_time(5 * SECOND)
    assert len(driver.sent()) == 1
    driver.do(Paused(driver.now + 5 * SECOND))
    driver.do(Resumed())
    assert [(a.kind, a.is_paused) for a in driver.all(Advise)] == [(Advisory.PAUSE, flag) for flag in (True, False) * 2]


def test_rate_limit() -> None:
    driver = Driver(configure(rate_limit_bps=8 * 1000), burst=1000)
    driver.offer(10, size=500)
    sent = len(driver.sent())
    assert sent < 4
    driver.pass_time(3 * SECOND)
    assert 4 <= len(driver.sent()) - sent <= 6
    driver.pass_time(10 * SECOND)
    assert len(driver.sent()) == 10


def test_replay_keeps_the_gaps_until_it_has_caught_up() -> None:
    driver = Driver(configure(replay_policy="original", ack_policy="none"), replay_until=3)
    driver.offer(5, gap=2 * SECOND)
    counts = [len(driver.sent())]
    for _ in range(4):
        driver.pass_time(SECOND)
        counts.append(len(driver.sent()))
    assert counts == [1, 1, 2, 2, 5]


def test_replay_holds_back_pulls_and_no_redelivery() -> None:
    config = configure(replay_policy="original", pull=True)
    driver = Driver(config, replay_until=3)
    driver.do(Pulled(PullRequest(batch=9, expires=60 * SECOND), "r"))
    driver.offer(5, gap=2 * SECOND)
    counts = [len(driver.sent())]
    driver.do(Nakked(1, 1, 1))
    counts.append(len(driver.sent()))
    assert driver.info().gate is Gate.PACED
    for _ in range(4):
        driver.pass_time(SECOND)
        counts.append(len(driver.sent()))
    assert counts == [1, 2, 2, 3, 3, 6]


@pytest.mark.parametrize(
    ("policy", "sent"), [("by_start_sequence", 1), ("new", 5), ("last", 5), ("last_per_subject", 5)]
)
def test_replay_is_for_policies_that_begin_in_the_past(policy: str, sent: int) -> None:
    more = {"opt_start_seq": 1} if policy == "by_start_sequence" else {}
    driver = Driver(configure(replay_policy="original", deliver_policy=policy, **more), replay_until=9)
    driver.offer(5, gap=2 * SECOND)
    assert len(driver.sent()) == sent


def test_a_replay_goes_on_with_another_rate() -> None:
    driver = Driver(configure(replay_policy="original"), replay_until=3)
    driver.offer(5, gap=2 * SECOND)
    driver.do(Updated(configure(replay_policy="original", rate_limit_bps=1 << 30)))
    assert len(driver.sent()) == 1
    driver.pass_time(2 * SECOND)
    assert len(driver.sent()) == 2
    driver.pass_time(2 * SECOND)
    assert len(driver.sent()) == 5


def test_flow_control_stalls_and_goes_on() -> None:
    config = configure(flow_control=True, idle_heartbeat=SECOND, ack_policy="none")
    driver = Driver(config)
    driver.offer(40, size=100_000)
    requests = [status.answer_to for status in driver.all(Status)]
    assert (len(requests), len(driver.sent()), driver.info().gate) == (1, 21, Gate.STALLED)
    driver.pass_time(SECOND)
    assert dict(driver.all(Status)[-1].text.headers)["Nats-Consumer-Stalled"] == requests[0]
    driver.do(FlowAnswered("another"))
    assert len(driver.sent()) == 21
    driver.do(FlowAnswered(requests[0]))
    assert len(driver.sent()) == 40


def test_heartbeats_come_when_nothing_else_does() -> None:
    driver = Driver(configure(idle_heartbeat=SECOND, ack_policy="none"))
    driver.offer(2)
    driver.pass_time(2 * SECOND + 1)
    assert driver.statuses() == [(100, "Idle Heartbeat")] * 2
    assert driver.all(Status)[0].text.headers == (("Nats-Last-Consumer", "2"), ("Nats-Last-Stream", "2"))


def test_samples() -> None:
    driver = Driver(configure(sample_freq="25%"))
    driver.offer(8)
    driver.now += SECOND
    driver.ack(*range(1, 9))
    assert [(s.stream_seq, s.ack_time) for s in driver.all(Sample)] == [(4, SECOND), (8, SECOND)]


def test_headers_only() -> None:
    driver = Driver(configure(headers_only=True))
    driver.offer(1)
    assert driver.all(Deliver)[0].headers_only


def test_inactive_consumers_go() -> None:
    for pull in (False, True):
        driver = Driver(configure(inactive_threshold=5 * SECOND, interest="group", pull=pull, ack_wait=SECOND))
        driver.do(Bound())
        driver.pass_time(4 * SECOND)
        driver.do(Unbound() if not pull else Pulled(PullRequest(1, SECOND), "r"))
        driver.pass_time(4 * SECOND)
        assert not driver.all(Remove)
        driver.pass_time(100 * SECOND)
        assert len(driver.all(Remove)) == 1


def test_a_pull_that_waits_is_use() -> None:
    """Until its end: a threshold later, and not with the request, the consumer goes."""
    driver = Driver(configure(pull=True, inactive_threshold=60 * SECOND))
    driver.do(Pulled(PullRequest(1, expires=120 * SECOND), "r"))
    driver.pass_time(120 * SECOND)
    assert driver.statuses("r")[-1][0] == 408
    driver.pass_time(59 * SECOND)
    assert not driver.all(Remove)
    driver.pass_time(SECOND)
    assert len(driver.all(Remove)) == 1


def test_updates() -> None:
    driver = Driver(configure(max_ack_pending=2, filter_subject="a.>"))
    driver.offer(5)
    driver.do(Updated(configure(max_ack_pending=3, filter_subject="a.>")))
    assert len(driver.sent()) == 3
    assert driver.do(Updated(configure(max_ack_pending=9, filter_subject="b.>"))) == [Rewind(3)]
    assert driver.machine.state.num_pending == 0
    driver.do(Updated(configure(max_ack_pending=9, filter_subject="b.>", deliver_subject="other")))
    assert [sent[0] for sent in driver.sent()[3:]] == [1, 2, 3]


def test_a_deleted_consumer_takes_nothing_more() -> None:
    driver = Driver(configure(pull=True))
    driver.do(Pulled(PullRequest(1), "r"))
    driver.do(Deleted())
    assert driver.statuses("r") == [(409, "Consumer Deleted")]
    assert driver.do(Acked(some(1), 1)) == [Refuse(Flaw.CLOSED)]
    assert (driver.machine.state.phase, driver.timer) == (Phase.GONE, NEVER)


def test_what_is_undeliverable_ends_alone() -> None:
    """Below it nothing is settled, and what was never delivered takes no consumer sequence."""
    driver = Driver(configure(ack_policy="all", dead_letter="dead", ack_wait=SECOND))
    driver.offer(3)
    driver.machine.handle(Ticked(), driver.now + SECOND, 0)
    driver.now += SECOND
    last = Run(some(4), some(START), some(10))
    driver.machine.handle(Offered(last, 4), driver.now, 0)
    effects = driver.machine.handle(Undeliverable(some(2, 4)), driver.now, 0)
    assert [effect for effect in effects if isinstance(effect, Advise | DeadLetter)] == [
        Advise(Advisory.TERMINATED, 2, 2, 1, UNDELIVERABLE),
        DeadLetter(2, UNDELIVERABLE, 1, START, START),
        Advise(Advisory.TERMINATED, 4, 0, 0, UNDELIVERABLE),
        DeadLetter(4, UNDELIVERABLE, 0, UNSET, UNSET),
    ]
    assert driver.machine.find_next_up(10)[0].tolist() == [1, 3]
    assert driver.machine.state.window.floor == Pair(0, 0)
    assert driver.machine.state.window.delivered == Pair(3, 3)


def test_a_message_that_ends_counts_for_what_may_go_out() -> None:
    """Nothing is left for the message behind it then, which waits for the next turn."""
    driver = Driver(configure(max_deliver=2, dead_letter="dead"))
    driver.offer(2)
    driver.do(Nakked(1, 1, 1))
    machine = driver.machine
    machine.handle(Nakked(1, 3, 2), driver.now, 0)
    machine.handle(Nakked(2, 2, 1), driver.now, 0)
    ended = machine.deliver(driver.now, 1)
    assert [effect.stream_seq for effect in ended if isinstance(effect, DeadLetter)] == [1]
    assert not any(isinstance(effect, Deliver) for effect in ended)
    (delivery,) = (effect for effect in machine.deliver(driver.now, 1) if isinstance(effect, Deliver))
    assert delivery.sequences.tolist() == [2]
