"""Acks name the incarnation that gave out a delivery: kills between delivery and commit, and consumers made again."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from overlay.client.subscribe.acking import Head, write_acks
from overlay.consumer.acks import Flaw, Token, Verb, write_ranges
from overlay.consumer.effects import Answer, Effect, Refuse
from overlay.consumer.events import Acked, FlowAnswered, RangeAcked, Ticked, Updated
from overlay.consumer.lineage import MOST, RECENT, choose_runs, hide, join_runs
from overlay.consumer.snapshot import decode
from overlay.consumer.window import Pair
from overlay.dispatch.ack_decoder import AckBatch
from overlay.dispatch.served_consumer import ConsumerSlot
from tests.consumer.driver import SECOND, START, Driver, configure, some
from tests.consumer.owners import AT_LEAST, EXACT, WAIT, list_pending, offer, restore, tell


def fail_between_delivery_and_commit(**fields: object) -> Driver:
    """150 is committed as #1; #2 to #4 are 201 to 203 and are not. Then #2 is 150 again, and #3 to #5 are 201 to 203."""
    first = restore([], "7x1-s", START, **fields)
    offer(first, 150)
    records = [first.machine.take_checkpoint()]
    offer(first, 201, 202, 203)
    assert first.sent() == [(150, 1, 1), (201, 2, 1), (202, 3, 1), (203, 4, 1)]
    second = restore(records, "7x2-s", first.now + 2 * WAIT, **fields)
    second.do(Ticked())
    offer(second, 201, 202, 203)
    assert second.sent() == [(150, 2, 2), (201, 3, 1), (202, 4, 1), (203, 5, 1)]
    return second


def test_a_range_of_uncommitted_deliveries_settles_nothing() -> None:
    driver = fail_between_delivery_and_commit()
    refused = tell(driver, b"$JS.ACK._.7x1-s.S.c", write_ranges([(2, 4)]))
    assert refused == [Refuse(Flaw.INCARNATION)]
    assert list_pending(driver.machine) == [150, 201, 202, 203]
    tell(driver, b"$JS.ACK._.7x2-s.S.c", write_ranges([(3, 5)]))
    assert list_pending(driver.machine) == [150]


def test_of_a_range_counts_what_was_committed() -> None:
    driver = fail_between_delivery_and_commit()
    assert tell(driver, b"$JS.ACK._.7x1-s.S.c", write_ranges([(1, 4)])) == [Refuse(Flaw.INCARNATION)]
    assert list_pending(driver.machine) == [201, 202, 203]


def test_a_range_is_answered_if_all_of_it_counts() -> None:
    driver = fail_between_delivery_and_commit(delivery=AT_LEAST)
    for ranges in ([(1, 4)], [(1, 2)], [(1, 1), (4, 4)]):
        assert tell(driver, b"$JS.ACK._.7x1-s.S.c", write_ranges(ranges), "inbox") == [Refuse(Flaw.INCARNATION)]
    assert tell(driver, b"$JS.ACK._.7x1-s.S.c", write_ranges([(1, 1)]), "inbox") == [Answer("inbox")]
    assert list_pending(driver.machine) == [201, 202, 203]
    assert tell(driver, b"$JS.ACK._.7x2-s.S.c", write_ranges([(3, 6)]), "inbox") == [Refuse(Flaw.FUTURE)]
    assert tell(driver, b"$JS.ACK._.7x2-s.S.c", write_ranges([(3, 5)]), "inbox") == [Answer("inbox")]
    assert list_pending(driver.machine) == []


@pytest.mark.parametrize("body", [b"+ACK", b"+TERM"])
@pytest.mark.parametrize("is_range", [False, True])
def test_with_all_an_ack_below_the_floor_is_answered_once_its_message_is_settled(body: bytes, is_range: bool) -> None:
    """Message 1 is acked by its second delivery, #4, before message 3 by its first."""
    driver = restore([], "7x1-s", START, ack_policy="all")
    offer(driver, 1, 2, 3)
    driver.now += 2 * WAIT
    driver.do(Ticked())
    assert driver.sent()[3:] == [(1, 4, 2), (2, 5, 2), (3, 6, 2)]
    tell(driver, Token("S", "c", 2, 1, 4, incarnation="7x1-s"))

    def ack_third() -> list[Effect]:
        if is_range:
            return tell(driver, b"$JS.ACK._.7x1-s.S.c", write_ranges([(3, 3)]), "inbox")
        return tell(driver, Token("S", "c", 1, 3, 3, incarnation="7x1-s"), body, "inbox")

    assert Answer("inbox") not in ack_third()
    assert list_pending(driver.machine) == [2, 3]
    tell(driver, Token("S", "c", 2, 3, 6, incarnation="7x1-s"))
    assert Answer("inbox") in ack_third()


@pytest.mark.parametrize(
    ("delivery", "body"),
    [(EXACT, b"+ACK"), (EXACT, b"-NAK"), (EXACT, b"+WPI"), (EXACT, b"+TERM"), (AT_LEAST, b"-NAK"), (AT_LEAST, b"+WPI")],
)
def test_a_token_of_an_uncommitted_delivery_changes_nothing(delivery: str, body: bytes) -> None:
    driver = fail_between_delivery_and_commit(delivery=delivery)
    before = driver.machine.take_checkpoint()
    token = Token("S", "c", 1, 201, 2, incarnation="7x1-s")
    assert tell(driver, token, body, "inbox") == [Refuse(Flaw.INCARNATION)]
    assert driver.machine.take_checkpoint() == before


@pytest.mark.parametrize("body", [b"+ACK", b"+TERM"])
def test_with_at_least_once_the_last_word_on_an_uncommitted_delivery_counts(body: bytes) -> None:
    driver = fail_between_delivery_and_commit(delivery=AT_LEAST)
    assert Answer("inbox") in tell(driver, Token("S", "c", 1, 201, 2, incarnation="7x1-s"), body, "inbox")
    assert list_pending(driver.machine) == [150, 202, 203]
    # an incarnation that the state does not know, and a message that was not delivered since
    assert tell(driver, Token("S", "c", 1, 202, 3, incarnation="6x9-s"), body) == [Refuse(Flaw.INCARNATION)]
    assert tell(driver, Token("S", "c", 1, 204, 5, incarnation="7x1-s"), body) == [Refuse(Flaw.FUTURE)]
    assert list_pending(driver.machine) == [150, 202, 203]


@pytest.mark.parametrize("is_batch", [False, True])
@pytest.mark.parametrize("later", [0, 2])
def test_with_all_an_uncommitted_delivery_stands_for_what_was_committed(is_batch: bool, later: int) -> None:
    first = restore([], "7x1-s", START, ack_policy="all")
    first.offer(10)
    records = [first.machine.take_checkpoint()]
    first.offer(10)
    driver = restore(records, "7x2-s", START, ack_policy="all")
    if later:
        driver.offer(later)
    if is_batch:
        slot = ConsumerSlot(driver.machine)
        said, refused = slot.sift(AckBatch(Verb.ACK, some(20), some(20), some(1), some(0), names=("7x1-s", "")))
        assert not refused
        for event in slot.list_events(said):
            driver.do(event)
    else:
        told = tell(driver, Token("S", "c", 1, 20, 20, incarnation="7x1-s"), reply="inbox")
        assert told == [], "message 20 comes again, so its ack is not answered"
    assert list_pending(driver.machine) == list(range(11, 11 + later))
    assert driver.machine.state.window.floor == Pair(10, 10)


def test_with_all_the_ack_of_an_uncommitted_delivery_is_answered_once_its_message_is_settled() -> None:
    first = restore([], "7x1-s", START, ack_policy="all")
    first.offer(10)
    records = [first.machine.take_checkpoint()]
    first.offer(10)
    driver = restore(records, "7x2-s", START, ack_policy="all")
    driver.offer(10)
    lost = Token("S", "c", 1, 15, 15, incarnation="7x1-s")
    assert tell(driver, lost, reply="inbox") == []
    tell(driver, Token("S", "c", 1, 15, 15, incarnation="7x2-s"))
    assert tell(driver, lost, reply="inbox") == [Answer("inbox")]
    assert list_pending(driver.machine) == [16, 17, 18, 19, 20]


def test_a_token_of_an_earlier_owner_counts_for_what_it_committed() -> None:
    driver = fail_between_delivery_and_commit()
    assert tell(driver, Token("S", "c", 1, 150, 1, incarnation="7x1-s"), reply="inbox") == [Answer("inbox")]
    assert list_pending(driver.machine) == [201, 202, 203]


def test_a_late_ack_of_a_settled_message_is_answered() -> None:
    driver = fail_between_delivery_and_commit()
    tell(driver, Token("S", "c", 1, 201, 3, incarnation="7x2-s"))
    late = tell(driver, Token("S", "c", 1, 201, 2, incarnation="7x1-s"), reply="inbox")
    assert late == [Refuse(Flaw.INCARNATION), Answer("inbox")]
    assert list_pending(driver.machine) == [150, 202, 203]


@pytest.mark.parametrize("policy", ["explicit", "all"])
def test_acks_of_a_consumer_deleted_and_made_again_settle_nothing(policy: str) -> None:
    again = Driver(configure(ack_policy=policy), incarnation="7x2-s")
    again.offer(5)
    tell(again, b"$JS.ACK._.7x1-s.S.c", write_ranges([(1, 5)]))
    tell(again, Token("S", "c", 1, 5, 5, incarnation="7x1-s"))
    assert list_pending(again.machine) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(("committed", "left"), [(3, [4, 5]), (0, [1, 2, 3, 4, 5])])
def test_tokens_of_version_one_settle_what_a_former_version_delivered(committed: int, left: list[int]) -> None:
    old = Driver(configure(ack_wait=WAIT))
    records = [old.machine.take_checkpoint()]
    if committed:
        old.offer(committed)
        records.append(old.machine.take_delta())
    assert all("incarnations" not in decode(record).head for record in records)
    driver = restore(records, "7x1-s", old.now)
    driver.offer(5 - committed)
    for number in range(1, 6):
        tell(driver, Token("S", "c", 1, number, number))
    assert list_pending(driver.machine) == left


def test_a_range_whose_head_names_no_incarnation_settles_nothing_that_an_incarnation_delivered() -> None:
    driver = fail_between_delivery_and_commit()
    assert tell(driver, b"$JS.ACK.S.c", write_ranges([(1, 4)])) == [Refuse(Flaw.INCARNATION)]
    assert list_pending(driver.machine) == [150, 201, 202, 203]


def test_our_client_s_ranges_of_tokens_without_incarnation_settle_what_a_former_version_delivered() -> None:
    former = Driver(configure(ack_wait=WAIT))
    former.offer(2)
    records = [former.machine.take_checkpoint()]
    former.offer(2)
    driver = restore(records, "7x1-s", former.now)
    driver.offer(2)
    # #3 and #4 of the former version were not committed; the new owner has given them out again
    tokens = [str(Token("S", "c", 1, number, number)).encode() for number in range(1, 5)]
    (record,) = write_acks(Head("S", "c"), tokens)
    assert tell(driver, record.key or b"", record.value or b"") == [Refuse(Flaw.INCARNATION)]
    assert list_pending(driver.machine) == [3, 4]


def test_a_policy_without_acks_by_name_refuses_none() -> None:
    driver = Driver(configure(ack_policy="none"), incarnation="7x2-s")
    driver.offer(2)
    assert tell(driver, Token("S", "c", 1, 1, 1, incarnation="7x1-s")) == []


def test_flow_control_requests_of_two_owners_differ() -> None:
    fields = {"ack_policy": "flow_control", "flow_control": True, "idle_heartbeat": SECOND, "max_ack_pending": 2}
    subjects = []
    for incarnation in ("7x1-s", "7x2-s"):
        driver = Driver(configure(**fields, ack_wait=0), incarnation=incarnation)
        driver.offer(2)
        assert driver.machine.state.pace.flow is not None
        subjects.append(driver.machine.state.pace.flow.subject)
    assert subjects == ["$JS.FC._.7x1-s.S.c.0000", "$JS.FC._.7x2-s.S.c.0000"]
    driver.do(FlowAnswered(subjects[0], 2))
    assert list_pending(driver.machine) == [1, 2]
    driver.do(FlowAnswered(subjects[1], 2))
    assert list_pending(driver.machine) == []


def test_flow_control_requests_are_numbered_on_when_the_config_changes() -> None:
    fields = {"ack_policy": "flow_control", "flow_control": True, "idle_heartbeat": SECOND, "max_ack_pending": 2}
    driver = Driver(configure(**fields, ack_wait=0), incarnation="7x1-s")
    driver.offer(2)
    driver.do(Updated(configure(**fields, ack_wait=0, rate_limit_bps=1 << 30)))
    driver.pass_time(2 * SECOND)
    assert driver.machine.state.pace.flow is not None
    assert driver.machine.state.pace.flow.subject == "$JS.FC._.7x1-s.S.c.0001"
    driver.do(FlowAnswered("$JS.FC._.7x1-s.S.c.0000", 2))
    assert list_pending(driver.machine) == [1, 2]


def test_runs_are_kept_while_acks_may_name_them() -> None:
    records: list[bytes] = []
    for owner in range(1, 2 * RECENT):
        driver = restore(records, f"7x{owner}-s", 1)
        driver.offer(2)
        settled = driver.sent()[0] if owner % 2 else driver.sent()[1]
        driver.do(Acked(some(settled[0]), settled[1]))
        if owner % 3 == 0:
            driver.do(RangeAcked(((1, 2 * owner),)))
        records = [driver.machine.take_checkpoint()]
        runs = driver.machine.state.lineage.list_runs(2 * owner)
        assert len(runs) == min(owner, RECENT + 1)


@pytest.mark.parametrize(
    ("named", "is_cumulative", "kept"),
    [([1, 3], False, [1, 3]), ([1, 3], True, range(1, 101)), ([30], True, range(30, 101)), ([], True, [])],
)
def test_the_newest_runs_stay_and_those_that_an_ack_may_use(
    named: list[int], is_cumulative: bool, kept: Iterable[int]
) -> None:
    runs = [(each, each, str(each)) for each in range(1, 101)]
    expected = {*kept, *range(101 - RECENT, 101)}
    assert choose_runs(runs, some(*named), is_cumulative=is_cumulative) == [run for run in runs if run[0] in expected]


def test_of_very_many_runs_the_newest_stay() -> None:
    runs = [(each, each, str(each)) for each in range(1, MOST + 1001)]
    assert choose_runs(runs, np.arange(1, MOST + 1001)) == runs[-MOST:]


def test_acks_count_after_a_thousand_restarts() -> None:
    """A message of each owner waits for its ack; none is dead-lettered that was acked."""
    records: list[bytes] = []
    for owner in range(1, 1001):
        driver = restore(records, f"7x{owner}-s", 1, max_deliver=1)
        offer(driver, owner)
        records = [driver.machine.take_checkpoint()]
    driver = restore(records, "7x1001-s", 1, max_deliver=1)
    for owner in range(1, 1001):
        assert tell(driver, Token("S", "c", 1, owner, owner, incarnation=f"7x{owner}-s")) == []
    assert list_pending(driver.machine) == []


def test_a_delta_does_not_grow_with_the_owners() -> None:
    records: list[bytes] = []
    for owner in range(1, 200):
        driver = restore(records, f"7x{owner}-s", 1)
        offer(driver, 2 * owner)
        records.append(driver.machine.take_delta())
        offer(driver, 2 * owner + 1)
        records.append(driver.machine.take_delta())
    assert max(map(len, records)) < len(records[0]) + 30
    last = restore(records, "7x200-s", 1).machine
    runs = [(2 * owner - 1, 2 * owner, hide(f"7x{owner}-s")) for owner in range(1, 200)]
    assert last.state.lineage.list_runs(398) == runs


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
    first = restore([], "7x1-s", 1)
    first.offer(2)
    records = [first.machine.take_checkpoint() if is_checkpoint else first.machine.take_delta()]
    # two deltas of an earlier version: it knows nothing of incarnations
    former = restore(records, "", 1)
    for _ in range(2):
        former.offer(1)
        records.append(former.machine.take_delta())
    assert not {"run", "incarnations"} & {*decode(records[-1]).head}
    second = restore(records, "7x2-s", 1)
    second.offer(1)
    records.append(second.machine.take_delta())
    last = restore(records, "7x3-s", 1)
    assert last.machine.state.lineage.list_runs(5) == [(1, 2, hide("7x1-s")), (3, 4, ""), (5, 5, hide("7x2-s"))]
    for number, by in enumerate(["7x1-s", "7x1-s", "", "", "7x2-s"], 1):
        assert tell(last, Token("S", "c", 1, number, number, incarnation=by)) == []
    assert list_pending(last.machine) == []
