"""Acks name the incarnation that gave out a delivery: kills between delivery and commit, and consumers made again."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from overlay.client.acking import Head, write_acks
from overlay.consumer.acks import Flaw, RangeAck, Token, Verb, parse_ack, write_head, write_ranges
from overlay.consumer.effects import Answer, Effect, Refuse
from overlay.consumer.events import Acked, Event, FlowAnswered, Offered, RangeAcked, Termed, Ticked, read_ack
from overlay.consumer.lineage import MOST, RECENT, Lineage, join_runs
from overlay.consumer.machine import Machine
from overlay.consumer.queues import Run
from overlay.consumer.snapshot import Log, decode, take_checkpoint, take_delta
from overlay.consumer.window import Pair
from overlay.desk.hearing import Said
from overlay.desk.seat import Seat
from tests.consumer.driver import SECOND, Driver, configure, some
from tests.oracle.lineage import History

WAIT = 10 * SECOND
EXACT, AT_LEAST = "exactly_once", "at_least_once"


def restore(records: list[bytes], incarnation: str, now: int, **fields: object) -> Driver:
    """The next owner's machine."""
    driver = Driver(configure(ack_wait=WAIT, **fields), incarnation=incarnation)
    driver.now = now
    log = Log()
    for record in records:
        log.apply(decode(record))
    log.restore(driver.machine)
    driver.last = driver.machine.up_to
    return driver


def offer(driver: Driver, *sequences: int) -> None:
    driver.do(Offered(Run(some(*sequences), some(*sequences), some(*sequences) * 0 + 100), sequences[-1]))


def tell(driver: Driver, token: Token | bytes, body: bytes = b"+ACK", reply: str = "") -> list[Effect]:
    parsed = parse_ack(token if isinstance(token, bytes) else str(token).encode(), body)
    return [effect for event in read_ack(parsed, reply) for effect in driver.do(event)]  # type: ignore[arg-type]


def list_pending(machine: Machine) -> list[int]:
    window = machine.window
    rows = window.pending.find_pending(np.arange(window.pending.end))
    return [int(sequence) for sequence in window.pending.view("sequence")[rows]]


def fail_between_delivery_and_commit() -> Driver:
    """150 is committed as #1; #2 to #4 are 201 to 203 and are not. Then #2 is 150 again, and #3 to #5 are 201 to 203."""
    first = Driver(configure(ack_wait=WAIT), incarnation="7x1")
    offer(first, 150)
    records = [take_checkpoint(first.machine)]
    offer(first, 201, 202, 203)
    assert first.sent() == [(150, 1, 1), (201, 2, 1), (202, 3, 1), (203, 4, 1)]
    second = restore(records, "7x2", first.now + 2 * WAIT)
    second.do(Ticked())
    offer(second, 201, 202, 203)
    assert second.sent() == [(150, 2, 2), (201, 3, 1), (202, 4, 1), (203, 5, 1)]
    return second


def test_a_range_of_uncommitted_deliveries_settles_nothing() -> None:
    driver = fail_between_delivery_and_commit()
    refused = tell(driver, b"$JS.ACK._.7x1.S.c", write_ranges([(2, 4)]))
    assert refused == [Refuse(Flaw.INCARNATION)]
    assert list_pending(driver.machine) == [150, 201, 202, 203]
    tell(driver, b"$JS.ACK._.7x2.S.c", write_ranges([(3, 5)]))
    assert list_pending(driver.machine) == [150]


def test_of_a_range_counts_what_was_committed() -> None:
    driver = fail_between_delivery_and_commit()
    assert tell(driver, b"$JS.ACK._.7x1.S.c", write_ranges([(1, 4)])) == [Refuse(Flaw.INCARNATION)]
    assert list_pending(driver.machine) == [201, 202, 203]


@pytest.mark.parametrize("body", [b"+ACK", b"-NAK", b"+WPI", b"+TERM"])
def test_a_token_of_an_uncommitted_delivery_changes_nothing(body: bytes) -> None:
    driver = fail_between_delivery_and_commit()
    before = take_checkpoint(driver.machine)
    token = Token("S", "c", 1, 201, 2, incarnation="7x1")
    assert tell(driver, token, body, "inbox") == [Refuse(Flaw.INCARNATION)]
    assert take_checkpoint(driver.machine) == before


def test_a_token_of_an_earlier_owner_counts_for_what_it_committed() -> None:
    driver = fail_between_delivery_and_commit()
    assert tell(driver, Token("S", "c", 1, 150, 1, incarnation="7x1"), reply="inbox") == [Answer("inbox")]
    assert list_pending(driver.machine) == [201, 202, 203]


def test_a_late_ack_of_a_settled_message_is_answered() -> None:
    driver = fail_between_delivery_and_commit()
    tell(driver, Token("S", "c", 1, 201, 3, incarnation="7x2"))
    late = tell(driver, Token("S", "c", 1, 201, 2, incarnation="7x1"), reply="inbox")
    assert late == [Refuse(Flaw.INCARNATION), Answer("inbox")]
    assert list_pending(driver.machine) == [150, 202, 203]


@pytest.mark.parametrize("policy", ["explicit", "all"])
def test_acks_of_a_consumer_deleted_and_made_again_settle_nothing(policy: str) -> None:
    again = Driver(configure(ack_policy=policy), incarnation="7x2")
    again.offer(5)
    tell(again, b"$JS.ACK._.7x1.S.c", write_ranges([(1, 5)]))
    tell(again, Token("S", "c", 1, 5, 5, incarnation="7x1"))
    assert list_pending(again.machine) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(("committed", "left"), [(3, [4, 5]), (0, [1, 2, 3, 4, 5])])
def test_tokens_of_version_one_settle_what_a_former_version_delivered(committed: int, left: list[int]) -> None:
    old = Driver(configure(ack_wait=WAIT))
    records = [take_checkpoint(old.machine)]
    if committed:
        old.offer(committed)
        records.append(take_delta(old.machine))
    assert all("incarnations" not in decode(record).head for record in records)
    driver = restore(records, "7x1", old.now)
    driver.offer(5 - committed)
    for number in range(1, 6):
        tell(driver, Token("S", "c", 1, number, number))
    assert list_pending(driver.machine) == left


def test_a_range_whose_head_names_no_incarnation_counts_as_before() -> None:
    driver = fail_between_delivery_and_commit()
    assert tell(driver, b"$JS.ACK.S.c", write_ranges([(2, 4)])) == []
    assert list_pending(driver.machine) == [203]


def test_our_client_s_ranges_of_tokens_without_incarnation_settle_what_a_former_version_delivered() -> None:
    former = Driver(configure(ack_wait=WAIT))
    former.offer(2)
    records = [take_checkpoint(former.machine)]
    former.offer(2)
    driver = restore(records, "7x1", former.now)
    driver.offer(2)
    # #3 and #4 of the former version were not committed; the new owner has given them out again
    tokens = [str(Token("S", "c", 1, number, number)).encode() for number in range(1, 5)]
    (record,) = write_acks(Head("S", "c"), tokens)
    assert tell(driver, record.key or b"", record.value or b"") == [Refuse(Flaw.INCARNATION)]
    assert list_pending(driver.machine) == [3, 4]


def test_a_policy_without_acks_by_name_refuses_none() -> None:
    driver = Driver(configure(ack_policy="none"), incarnation="7x2")
    driver.offer(2)
    assert tell(driver, Token("S", "c", 1, 1, 1, incarnation="7x1")) == []


def test_flow_control_requests_of_two_owners_differ() -> None:
    fields = {"ack_policy": "flow_control", "flow_control": True, "idle_heartbeat": SECOND, "max_ack_pending": 2}
    subjects = []
    for incarnation in ("7x1", "7x2"):
        driver = Driver(configure(**fields, ack_wait=0), incarnation=incarnation)
        driver.offer(2)
        assert driver.machine.pace.flow is not None
        subjects.append(driver.machine.pace.flow.subject)
    assert subjects == ["$JS.FC._.7x1.S.c.0000", "$JS.FC._.7x2.S.c.0000"]
    driver.do(FlowAnswered(subjects[0], 2))
    assert list_pending(driver.machine) == [1, 2]
    driver.do(FlowAnswered(subjects[1], 2))
    assert list_pending(driver.machine) == []


def test_runs_are_kept_while_acks_may_name_them() -> None:
    records: list[bytes] = []
    for owner in range(1, 2 * RECENT):
        driver = restore(records, f"7x{owner}", 1)
        driver.offer(2)
        settled = driver.sent()[0] if owner % 2 else driver.sent()[1]
        driver.do(Acked(some(settled[0]), settled[1]))
        if owner % 3 == 0:
            driver.do(RangeAcked(((1, 2 * owner),)))
        records = [take_checkpoint(driver.machine)]
        runs = driver.machine.lineage.list_runs(2 * owner)
        assert len(runs) == min(owner, RECENT + 1)


@pytest.mark.parametrize(
    ("named", "is_cumulative", "kept"),
    [([1, 3], False, [1, 3]), ([1, 3], True, range(1, 101)), ([30], True, range(30, 101)), ([], True, [])],
)
def test_the_newest_runs_stay_and_those_that_an_ack_may_use(
    named: list[int], is_cumulative: bool, kept: Iterable[int]
) -> None:
    runs = [(each, each, str(each)) for each in range(1, 101)]
    lineage = Lineage("new")
    lineage.restore(runs, 100, some(*named), is_cumulative=is_cumulative)
    expected = {*kept, *range(101 - RECENT, 101)}
    assert lineage.list_runs(100) == [run for run in runs if run[0] in expected]


def test_of_very_many_runs_the_newest_stay() -> None:
    runs = [(each, each, str(each)) for each in range(1, MOST + 1001)]
    lineage = Lineage("new")
    lineage.restore(runs, MOST + 1000, np.arange(1, MOST + 1001))
    assert lineage.list_runs(MOST + 1000) == runs[-MOST:]


def test_acks_count_after_a_thousand_restarts() -> None:
    """A message of each owner waits for its ack; none is dead-lettered that was acked."""
    records: list[bytes] = []
    for owner in range(1, 1001):
        driver = restore(records, f"7x{owner}", 1, max_deliver=1)
        offer(driver, owner)
        records = [take_checkpoint(driver.machine)]
    driver = restore(records, "7x1001", 1, max_deliver=1)
    for owner in range(1, 1001):
        assert tell(driver, Token("S", "c", 1, owner, owner, incarnation=f"7x{owner}")) == []
    assert list_pending(driver.machine) == []


def test_a_delta_does_not_grow_with_the_owners() -> None:
    records: list[bytes] = []
    for owner in range(1, 200):
        driver = restore(records, f"7x{owner}", 1)
        offer(driver, 2 * owner)
        records.append(take_delta(driver.machine))
        offer(driver, 2 * owner + 1)
        records.append(take_delta(driver.machine))
    assert max(map(len, records)) < len(records[0]) + 30
    last = restore(records, "7x200", 1).machine
    assert last.lineage.list_runs(398) == [(2 * owner - 1, 2 * owner, f"7x{owner}") for owner in range(1, 200)]


def test_deltas_with_all_runs_are_read() -> None:
    """Records as the first version with incarnations wrote them."""
    head = {"delivered": Pair(5, 5), "incarnations": [(1, 2, "7x1"), (3, 5, "7x2")]}
    assert join_runs([head]) == [(1, 2, "7x1"), (3, 5, "7x2")]
    assert join_runs([{"delivered": Pair(1, 1)}, head, {"delivered": Pair(6, 6), "run": (6, 6, "7x3")}])[-1] == (
        6,
        6,
        "7x3",
    )


@pytest.mark.parametrize("is_checkpoint", [True, False])
def test_after_an_earlier_version_has_served_acks_count(is_checkpoint: bool) -> None:
    first = restore([], "7x1", 1)
    first.offer(2)
    records = [(take_checkpoint if is_checkpoint else take_delta)(first.machine)]
    # two deltas of an earlier version: it knows nothing of incarnations
    former = restore(records, "", 1)
    for _ in range(2):
        former.offer(1)
        records.append(take_delta(former.machine))
    assert not {"run", "incarnations"} & {*decode(records[-1]).head}
    second = restore(records, "7x2", 1)
    second.offer(1)
    records.append(take_delta(second.machine))
    last = restore(records, "7x3", 1)
    assert last.machine.lineage.list_runs(5) == [(1, 2, "7x1"), (3, 4, ""), (5, 5, "7x2")]
    for number, by in enumerate(["7x1", "7x1", "", "", "7x2"], 1):
        assert tell(last, Token("S", "c", 1, number, number, incarnation=by)) == []
    assert list_pending(last.machine) == []


class Ownerships(RuleBasedStateMachine):
    """A machine and an application that acks late and twice, beside the history of all deliveries.

    Whatever happens, a message is settled only if the application has acked it in this life of the consumer, and it is
    settled if the application has acked a delivery that was committed.
    """

    @initialize(policy=st.sampled_from(["explicit", "explicit", "all"]), delivery=st.sampled_from([EXACT, AT_LEAST]))
    def begin(self, policy: str, delivery: str) -> None:
        self.policy, self.delivery, self.owner, self.now = policy, delivery, 0, 0
        self.is_fresh = True
        self.deliveries: list[Token] = []
        self.said: list[Event | Said] = []
        self.make()

    @rule()
    def make(self) -> None:
        """The consumer is made, again if it was there."""
        self.records: list[bytes] = []
        self.history, self.lifetime = History(self.delivery == AT_LEAST), list[Token]()
        # tokens of version 1 do not tell one life from another
        self.deliveries = [token for token in self.deliveries if token.incarnation]
        self.take_over()

    def take_over(self, incarnation: str | None = None) -> None:
        self.owner += 1
        by = f"7x{self.owner}" if incarnation is None else incarnation
        self.driver = restore(self.records, by, self.now, ack_policy=self.policy, delivery=self.delivery)
        self.said.clear()
        self.seen = 0

    @rule()
    def kill(self) -> None:
        """The next owner begins with what was committed, and reads the acks since then again."""
        self.now = self.driver.now
        said = list(self.said)
        self.history.kill()
        self.take_over()
        for each in said:
            self.hear(each)

    @precondition(lambda self: self.is_fresh)
    @rule(count=st.sampled_from([RECENT + 6, 300]))
    def restart(self, count: int) -> None:
        """Very many owners in turn deliver one message each. It takes long, so it happens once."""
        self.is_fresh = False
        for _ in range(count):
            self.hand_over()
            self.offer([1])
        self.hand_over()
        # what is not pending any more may be forgotten by now
        self.deliveries = [t for t in self.deliveries if (t.incarnation, t.consumer_seq) not in self.history.lost]

    def hand_over(self, incarnation: str | None = None) -> None:
        self.commit(is_checkpoint=incarnation is None)
        self.now = self.driver.now
        self.take_over(incarnation)

    @rule(gaps=st.lists(st.integers(1, 3), min_size=1, max_size=4))
    def go_back(self, gaps: list[int]) -> None:
        """A version that knows no incarnations serves for a while."""
        self.hand_over("")
        for gap in gaps:
            self.offer([gap])
            self.commit(is_checkpoint=False)
            assert not {"incarnations", "run"} & {*decode(self.records[-1]).head}
        self.now = self.driver.now
        self.take_over()

    @rule(is_checkpoint=st.booleans())
    def commit(self, is_checkpoint: bool) -> None:
        if is_checkpoint or not self.records:
            self.records = [take_checkpoint(self.driver.machine)]
        else:
            self.records.append(take_delta(self.driver.machine))
        self.history.commit()
        self.said.clear()

    @rule(gaps=st.lists(st.integers(1, 3), min_size=1, max_size=4))
    def offer(self, gaps: list[int]) -> None:
        sequences = self.driver.last + np.cumsum(gaps)
        self.driver.last = int(sequences[-1])
        offer(self.driver, *sequences.tolist())
        self.note()

    @rule(span=st.sampled_from([1, 4, 11]))
    def wait(self, span: int) -> None:
        self.driver.now += span * SECOND
        self.driver.do(Ticked())
        self.note()

    @rule(data=st.data(), verb=st.sampled_from([Verb.ACK, Verb.ACK, Verb.NAK, Verb.PROGRESS, Verb.TERM]))
    def name_one(self, data: st.DataObject, verb: Verb) -> None:
        """The application says something of any delivery it ever had."""
        if self.deliveries:
            token = data.draw(st.sampled_from(self.deliveries))
            if verb is Verb.TERM and self.policy == "all":
                return
            (event,) = read_ack(parse_ack(str(token).encode(), verb.value))  # type: ignore[arg-type]
            self.say(event, [token] if verb in (Verb.ACK, Verb.TERM) else [])

    @rule(data=st.data())
    def name_some(self, data: st.DataObject) -> None:
        """The same as columns, which a fetch of the ack topic becomes."""
        if self.deliveries:
            tokens = data.draw(st.lists(st.sampled_from(self.deliveries), min_size=1, max_size=5))
            names = (*sorted({token.incarnation for token in tokens}), "")
            sequences = some(*(token.stream_seq for token in tokens))
            consumer_seqs = some(*(token.consumer_seq for token in tokens))
            by = np.array([names.index(token.incarnation) for token in tokens])
            self.say(Said(Verb.ACK, sequences, consumer_seqs, consumer_seqs, by, names=names), tokens)

    @rule(data=st.data())
    def name_range(self, data: st.DataObject) -> None:
        """The application acks all that one incarnation delivered between two deliveries."""
        if self.deliveries and self.policy == "explicit":
            one = data.draw(st.sampled_from(self.deliveries))
            others = [token for token in self.deliveries if token.incarnation == one.incarnation]
            last = data.draw(st.sampled_from([t for t in others if t.consumer_seq >= one.consumer_seq]))
            acked = [t for t in others if one.consumer_seq <= t.consumer_seq <= last.consumer_seq]
            head = write_head("S", "c", one.incarnation).encode()
            body = write_ranges([(one.consumer_seq, last.consumer_seq)], is_unnamed=not one.incarnation)
            parsed = parse_ack(head, body)
            assert isinstance(parsed, RangeAck)
            (event,) = read_ack(parsed)
            self.say(event, acked)

    def say(self, what: Event | Said, acked: list[Token]) -> None:
        self.said.append(what)
        # an application acks messages of this life or of another one; only those of this life may be settled
        self.history.acked |= {token.stream_seq for token in acked if token in self.lifetime}
        self.hear(what)

    def hear(self, what: Event | Said) -> None:
        settle = self.history.ack_up_to if self.policy == "all" else self.history.ack
        if isinstance(what, Said):
            kept, _ = Seat(self.driver.machine).sift(what)
            for event in Seat(self.driver.machine).list_events(kept):
                self.driver.do(event)
            settle([(name, seq) for name, rows in what.split() for seq in what.consumer_seqs[rows].tolist()])
        else:
            self.driver.do(what)
            if isinstance(what, Acked | Termed):
                settle([(what.incarnation or "", what.consumer_seq)])
            elif isinstance(what, RangeAcked):
                for first, last in what.ranges:
                    by = what.incarnation or ""
                    self.history.ack(((by, each) for each in range(first, last + 1)), by_range=True)
        self.note()

    def note(self) -> None:
        """Note what the machine has delivered."""
        sent = self.driver.sent()
        for sequence, consumer_seq, deliveries in sent[self.seen :]:
            by = self.driver.machine.lineage.incarnation
            token = Token("S", "c", deliveries, sequence, consumer_seq, incarnation=by)
            self.deliveries.append(token)
            self.lifetime.append(token)
            self.history.deliver(token.incarnation, consumer_seq, sequence)
        self.seen = len(sent)

    @invariant()
    def settles_what_was_acked(self) -> None:
        pending = set(list_pending(self.driver.machine))
        assert pending == self.history.now.pending
        settled = {message for message in self.history.now.given.values() if message not in pending}
        if self.policy == "explicit":
            assert settled <= self.history.acked
        else:
            assert max(settled, default=0) <= max(self.history.acked, default=0)

    def teardown(self) -> None:
        """What is delivered again and acked now is settled, whatever came before."""
        self.driver.now += 2 * WAIT
        self.driver.do(Ticked())
        self.note()
        for token in [t for t in self.deliveries if t.incarnation == f"7x{self.owner}"]:
            tell(self.driver, token)
        assert list_pending(self.driver.machine) == []


TestOwnerships = Ownerships.TestCase
TestOwnerships.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
