"""The dispatcher, step by step: what is delivered, what is remembered, what a restart goes on with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.consumer.acks import Flaw, Verb
from overlay.consumer.deadlines import NEVER
from overlay.consumer.events import Acked, Nakked, Paused, Read, Resumed, Termed, Ticked
from overlay.consumer.window import Pair
from overlay.dispatch import dispatcher as dispatcher_module
from overlay.dispatch.ack_decoder import AckBatch
from overlay.dispatch.record_cache import RecordCache
from overlay.output.batch_builder import OutputBatch
from tests.consumer.driver import SECOND
from tests.dispatch.scenes import Office
from tests.oracle.push import parse_token
from tests.output.pressing import decode


def rows(office: Office) -> list[tuple[int, int]]:
    """Stream sequence and deliveries, in order of the consumer sequence."""
    assert [token.consumer_sequence for token in office.sent] == list(range(1, len(office.sent) + 1))
    return [(token.sequence, token.deliveries) for token in office.sent]


def test_what_is_offered_is_delivered_and_what_is_not_acked_again() -> None:
    office = Office(10, ack_wait=SECOND)
    office.offer()
    assert rows(office) == [(n, 1) for n in range(1, 11)]
    office.ack(*range(1, 8))
    office.pass_time(2 * SECOND)
    assert rows(office)[10:] == [(8, 2), (9, 2), (10, 2)]
    office.ack(8, 9, 10)
    office.pass_time(10 * SECOND)
    assert len(office.sent) == 13
    assert office.slot.machine.state.window.pending.count == 0
    assert office.dispatcher.next_at == NEVER


def test_num_pending_counts_down() -> None:
    office = Office(5, ack_wait=SECOND)
    office.offer()
    assert [token.pending for token in office.sent] == [4, 3, 2, 1, 0]


@pytest.mark.parametrize("times", [(0, 0, 0), (-1, -1, -1), (0, 7, -1)])
def test_the_times_of_deliveries_are_told_whatever_they_are(times: tuple[int, ...]) -> None:
    office = Office(3)
    office.log = [replace(record, timestamp=time) for record, time in zip(office.log, times, strict=True)]
    office.offer()
    [work] = [work for work in office.works if work.delivered]
    assert (work.oldest, work.newest) == ({office.config.id: min(times)}, {office.config.id: max(times)})


def test_max_ack_pending_holds_back_and_the_hold_says_from_where() -> None:
    office = Office(10, max_ack_pending=4, ack_wait=SECOND)
    office.offer()
    office.settle()
    assert [token.sequence for token in office.sent] == [1, 2, 3, 4]
    assert office.hold == 5
    office.ack(1, 3)
    assert [token.sequence for token in office.sent] == [1, 2, 3, 4, 5, 6]
    office.ack(2, 4, 5, 6)
    assert office.hold is None or office.hold == 11
    office.ack(7, 8, 9, 10)
    assert office.hold is None


def test_a_deadline_waits_until_all_acks_before_it_are_read() -> None:
    office = Office(3, ack_wait=SECOND)
    office.offer()
    before = office.now
    office.now += 2 * SECOND
    office.step(up_to=before)
    assert len(office.sent) == 3
    assert office.dispatcher.waiting_for_acks == {"S"}
    office.step(up_to=before)
    assert len(office.sent) == 3
    office.step()
    office.settle()
    assert rows(office)[3:] == [(1, 2), (2, 2), (3, 2)]
    assert office.dispatcher.waiting_for_acks == set()


def test_a_deadline_that_comes_with_an_ack_fires_when_the_acks_are_read() -> None:
    office = Office(3, ack_wait=SECOND)
    office.offer()
    office.dispatcher.order(office.config.id, Ticked(office.now), office.now)
    office.step()
    before = office.now
    office.now += 2 * SECOND
    numbers = np.array([1])
    office.step(said=[AckBatch(Verb.ACK, numbers, numbers, numbers)], up_to=before)
    assert office.dispatcher.waiting_for_acks == {"S"}
    office.step()
    assert rows(office)[3:] == [(2, 2), (3, 2)]


def test_an_ack_that_was_on_its_way_counts() -> None:
    """The deadline has passed, and the ack is read before it may fire."""
    office = Office(1, ack_wait=SECOND)
    office.offer()
    before = office.now
    office.now += 2 * SECOND
    office.step(up_to=before)
    office.ack(1)
    office.pass_time(5 * SECOND)
    assert len(office.sent) == 1


def test_with_interest_group_the_timer_waits_for_the_reader() -> None:
    office = Office(4, ack_wait=SECOND, interest="group")
    office.offer()
    assert office.sent == []
    office.bind()
    office.settle()
    assert len(office.sent) == 4
    office.pass_time(10 * SECOND)
    assert len(office.sent) == 4
    office.step(said=[Read(2)])
    office.pass_time(2 * SECOND)
    assert rows(office)[4:] == [(1, 2), (2, 2)]


def test_acks_of_what_was_never_delivered_are_counted() -> None:
    office = Office(3, ack_wait=SECOND)
    office.offer()
    office.ack(2, 900)
    assert sum((work.refused for work in office.works), start=type(office.works[0].refused)()) == {Flaw.FUTURE: 1}
    assert office.slot.machine.state.window.pending.count == 2


def test_verbs() -> None:
    office = Office(4, ack_wait=SECOND)
    office.offer()
    office.ack(1, verb=Verb.NAK)
    assert rows(office)[4:] == [(1, 2)]
    office.step(said=[Nakked(2, 2, 1, 3 * SECOND)])
    office.ack(3, verb=Verb.TERM)
    office.now += SECOND // 2
    office.ack(4, verb=Verb.PROGRESS)
    office.pass_time(SECOND * 3 // 4)
    assert (4, 2) not in rows(office)
    office.pass_time(4 * SECOND)
    assert {(4, 2), (2, 2)} <= set(rows(office))
    assert (3, 2) not in rows(office)


def test_an_ack_of_all() -> None:
    office = Office(6, ack_policy="all", ack_wait=SECOND)
    office.offer()
    office.ack(5, 2)
    assert office.slot.machine.state.window.pending.count == 1


def test_an_ack_of_all_that_was_overtaken_takes_no_other_along() -> None:
    """After a redelivery the ack of a delivery before it is not heard, however high its message; the one beside it is."""
    office = Office(30, ack_policy="all", ack_wait=SECOND)
    office.offer()
    office.pass_time(2 * SECOND)
    assert rows(office)[30:] == [(n, 2) for n in range(1, 31)]
    window = office.slot.machine.state.window
    for acks, left in (([(3, 33)], 27), ([(10, 10), (9, 39)], 21), ([(12, 42), (20, 20), (14, 44), (13, 43)], 16)):
        columns = np.array(acks)
        office.step(said=[AckBatch(Verb.ACK, columns[:, 0], columns[:, 1], np.full(len(acks), 2))])
        assert window.pending.count == left
    assert window.floor == Pair(44, 14)


def dead(office: Office) -> list[tuple[int, str]]:
    """Sequence and reason of the dead letters."""
    found = []
    for outgoing in letters(office):
        for record in decode(outgoing).records:
            headers = dict(record.headers)
            token = parse_token(headers[b"Nats-Reply-To"] or b"")
            found.append((token.sequence, (headers[b"Overlay-Dead-Reason"] or b"").decode()))
    return found


def letters(office: Office) -> list[OutputBatch]:
    return [out for work in office.works for _, out in work.batches if out.topic == "graves"]


@pytest.fixture
def graves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dead letters have a topic of their own name."""
    from tests.dispatch import scenes

    output_topic = scenes.letters_output_topic()
    monkeypatch.setattr(scenes, "letters_output_topic", lambda: replace(output_topic, topic="graves"))


@pytest.mark.usefixtures("graves")
def test_what_is_given_up_becomes_a_dead_letter() -> None:
    office = Office(3, ack_wait=SECOND, max_deliver=2, dead_letter="graves")
    office.offer()
    office.ack(1)
    office.step(said=[Termed(2, 2, 1, "cannot be read")])
    office.settle()
    for _ in range(4):
        office.pass_time(2 * SECOND)
    assert rows(office) == [(1, 1), (2, 1), (3, 1), (3, 2)]
    assert dead(office) == [(2, "term"), (3, "max_deliver")]
    assert office.slot.machine.state.window.pending.count == 0


@pytest.mark.usefixtures("graves")
def test_only_deliveries_name_the_incarnation() -> None:
    """It is what acks authenticate by. Dead letters and events have other readers."""
    secret = "7x1-sOKmJ0v1Qn6nEw3mJb0wVA"
    office = Office(3, ack_wait=SECOND, max_deliver=1, dead_letter="graves", sample_freq="100%", incarnation=secret)
    office.offer()
    office.step(said=[Acked(np.array([1]), 1), Termed(2, 2, 1, "cannot be read")])
    office.pass_time(2 * SECOND)
    assert dead(office) == [(2, "term"), (3, "max_deliver")]
    written = [
        (out.topic, record) for work in office.works for _, out in work.batches for record in decode(out).records
    ]
    assert {topic for topic, _ in written} == {"out", "graves", "p.events"}
    for topic, record in written:
        parts = [record.key or b"", record.value or b"", *(value or b"" for _, value in record.headers)]
        assert any(secret.encode() in part for part in parts) == (topic == "out")
    assert not any(secret.encode() in record for work in office.works for record in work.records.values())


@pytest.mark.usefixtures("graves")
def test_dead_letters_of_records_that_are_not_at_hand_are_read_again() -> None:
    office = Office(40, ack_wait=SECOND, max_deliver=1, dead_letter="graves", record_cache=RecordCache(1, 0), size=2000)
    office.offer(1, 20)
    office.offer(21, 40)
    office.pass_time(2 * SECOND)
    assert [sequence for sequence, _ in dead(office)] == list(range(1, 41))
    assert office.recalled


def test_what_is_not_at_hand_is_read_again() -> None:
    office = Office(60, ack_wait=SECOND, record_cache=RecordCache(1, 0), size=3000)
    for first in range(1, 61, 20):
        office.offer(first, first + 19)
    office.pass_time(2 * SECOND)
    assert rows(office)[60:] == [(n, 2) for n in range(1, 61)]
    assert office.recalled == 40  # the last piece is kept


def test_what_left_the_log_is_terminated_and_takes_no_sequence() -> None:
    office = Office(60, ack_wait=SECOND, record_cache=RecordCache(1, 0), size=3000)
    for first in range(1, 61, 20):
        office.offer(first, first + 19)
    office.gone = set(range(1, 11))
    office.pass_time(2 * SECOND)
    assert rows(office)[60:] == [(n, 2) for n in range(11, 61)]
    assert office.slot.machine.state.window.pending.count == 50


def test_a_pause() -> None:
    office = Office(5, ack_wait=SECOND)
    office.step(said=[Paused(office.now + 100 * SECOND)])
    office.offer()
    office.settle()
    assert office.sent == []
    assert office.hold == 1
    office.step(said=[Resumed()])
    office.settle()
    assert len(office.sent) == 5


def test_a_rate_is_kept() -> None:
    office = Office(40, rate_limit_bps=8 * 20_000, ack_wait=100 * SECOND, size=100_000 // 4)
    office.offer()
    office.settle()
    at_once = len(office.sent)
    assert 38 <= at_once <= 40 or at_once < 40
    office.pass_time(SECOND)
    assert len(office.sent) <= at_once + 2


def test_a_storm_goes_out_in_bounded_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher_module, "STEP_MESSAGES", 100)
    office = Office(1000, ack_wait=SECOND, max_ack_pending=-1)
    office.offer()
    office.settle()
    office.pass_time(2 * SECOND)
    assert rows(office)[1000:] == [(n, 2) for n in range(1, 1001)]
    assert max(sum(work.delivered.values()) for work in office.works) <= 100


def test_a_checkpoint_takes_the_place_of_many_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher_module, "LEAST_LOG", 4_000)
    office = Office(500, ack_wait=SECOND, max_ack_pending=-1)
    for first in range(1, 500, 10):
        office.offer(first, first + 9)
        office.ack(*range(first, first + 5))
    checkpoints = sum(work.is_checkpoint for work in office.works)
    assert 2 <= checkpoints <= 20
    assert sum(map(len, office.records)) < 60_000
    before = office.slot.machine.state.window
    office.sit(office.records)
    after = office.slot.machine.state.window
    assert (after.delivered, after.floor, after.pending.count) == (before.delivered, before.floor, 250)


moves = st.lists(
    st.one_of(
        st.tuples(st.just("offer"), st.integers(1, 30)),
        st.tuples(st.just("ack"), st.lists(st.integers(1, 60), min_size=1, max_size=8, unique=True)),
        st.tuples(st.just("nak"), st.lists(st.integers(1, 60), min_size=1, max_size=4, unique=True)),
        st.tuples(st.just("wait"), st.integers(1, 3)),
        st.tuples(st.just("restart"), st.none()),
    ),
    max_size=25,
)


@given(moves=moves, limit=st.sampled_from([1, 64 << 20]), pending=st.sampled_from([-1, 3, 20]))
@settings(max_examples=40, deadline=None)
def test_nothing_is_lost_and_nothing_acked_comes_again(moves: list[tuple[str, Any]], limit: int, pending: int) -> None:
    """Whatever comes, and through restarts: every message is delivered, an acked one never after its ack, and consumer
    sequences have no hole."""
    office = Office(60, ack_wait=SECOND, max_ack_pending=pending, record_cache=RecordCache(limit, 0))
    offered, acked = 0, set[int]()
    for what, how in moves:
        if what == "offer" and offered < 60:
            office.offer(offered + 1, min(offered + how, 60))
            offered = min(offered + how, 60)
        elif what in ("ack", "nak"):
            given = {token.sequence for token in office.sent}
            mine = [sequence for sequence in how if sequence in given and sequence not in acked]
            if mine:
                acked |= set(mine) if what == "ack" else set()
                office.ack(*mine, verb=Verb.ACK if what == "ack" else Verb.NAK)
        elif what == "wait":
            office.pass_time(how * SECOND)
        elif what == "restart":
            hold = office.hold
            office.sit(office.records)
            if hold is not None:
                office.offer(hold, offered)
        before = len(office.sent)
        check(office, acked)
        office.settle()
        assert not {token.sequence for token in office.sent[before:]} & acked
    office.offer(offered + 1 if office.hold is None else office.hold, 60)
    for _ in range(200):
        office.settle()
        left = sorted({token.sequence for token in office.sent} - acked)
        if not left and len(acked) == 60:
            break
        if left:
            acked |= set(left)
            office.ack(*left)
    assert acked == set(range(1, 61))
    check(office, acked)


def check(office: Office, acked: set[int]) -> None:
    assert [token.consumer_sequence for token in office.sent] == list(range(1, len(office.sent) + 1))
    own = office.slot.machine.state.window.pending
    waiting = own.view("sequence")[own.find_pending(np.arange(own.end))]
    assert not set(waiting.tolist()) & acked


def test_what_lies_behind_the_offers_is_pending_too() -> None:
    """Also when there is no offer to tell of it by."""
    office = Office(5, ack_wait=SECOND)
    office.beyond = {office.config.id: 7}
    office.offer(last=3)
    assert [token.pending for token in office.sent] == [9, 8, 7]
    office.beyond = {office.config.id: 0}
    office.step()
    assert office.slot.machine.state.num_pending == 0
    office.offer(first=4)
    assert [token.pending for token in office.sent[3:]] == [1, 0]
