"""What is told of machines while a step moves them in its thread."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.consumer.events import Bound
from overlay.consumer.info import ConsumerInfo
from overlay.dispatch.dispatcher import Offer, Work
from overlay.dispatch.machine_facts import MachineFacts
from overlay.jobs import Jobs
from tests.dispatch.scenes import Office, make_pieces

CONSUMER = ("S", "c")
STEPS, MESSAGES = 12, 1_000


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    """Threads take turns every few microseconds."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("hasty_threads")
async def test_no_message_is_missing_while_machines_move() -> None:
    """Every message that was offered is pending or delivered, and every one that was delivered waits for its ack, whenever
    the loop asks."""
    office = Office(STEPS * MESSAGES, ack_policy="explicit", max_ack_pending=-1)
    office.bind()
    machine_facts = MachineFacts(office.dispatcher.facts)
    asked = 0

    def tell() -> ConsumerInfo:
        info = machine_facts.find_info(CONSUMER, office.now)
        assert info is not None
        return info

    async with Jobs("dispatching") as jobs:
        for step in range(STEPS):
            first, last = 1 + step * MESSAGES, (step + 1) * MESSAGES
            records = office.log[first - 1 : last]
            offers = [Offer(CONSUMER, piece, np.arange(len(piece))) for piece in make_pieces(records)]
            for offer in offers:
                machine_facts.offer(CONSUMER, offer.rows.size)
            machine_facts.begin_step()
            stepping = asyncio.create_task(jobs.run(office.step, offers))
            while not stepping.done():
                info = tell()
                assert info.delivered.consumer + info.num_pending == last
                assert info.num_ack_pending == info.delivered.consumer
                assert machine_facts.count_offered(CONSUMER) == info.num_pending
                asked += 1
                await asyncio.sleep(0)
            machine_facts.end_step((await stepping).facts)
            assert (tell().num_pending, tell().num_ack_pending) == (0, last)
    assert asked > STEPS


_NEWS = st.lists(st.tuples(st.integers(0, 5), st.none() | st.integers(0, 20)), max_size=3)


@given(first=_NEWS, second=_NEWS)
def test_what_waits_for_steps_is_counted_as_the_machine_will(
    first: list[tuple[int, int | None]], second: list[tuple[int, int | None]]
) -> None:
    """Two steps are put together, and the first is under way: the answer is that of the machine after both. `first`, `second`:
    of each call of the dispatch loop, the messages that it offers and what it tells of those behind them."""
    office = Office(40, interest="group")  # it has no readers yet: nothing is delivered
    machine_facts = MachineFacts(office.dispatcher.facts)
    given_out = 0

    def hand_in(calls: list[tuple[int, int | None]]) -> list[Offer]:
        nonlocal given_out
        offers = []
        for count, beyond in calls:
            if count:
                (piece,) = make_pieces(office.log[given_out : given_out + count])
                offers.append(Offer(CONSUMER, piece, np.arange(count)))
                machine_facts.offer(CONSUMER, count)
                given_out += count
            if beyond is not None:
                office.beyond[CONSUMER] = beyond
                machine_facts.tell({CONSUMER: beyond})
        return offers

    def finish(work: Work) -> None:
        machine_facts.end_step(work.facts)

    def step(calls: list[tuple[int, int | None]]) -> tuple[list[Offer], dict[tuple[str, str], int]]:
        offers, beyond = hand_in(calls), dict(office.beyond)
        office.beyond.clear()
        return offers, beyond

    one = step(first)
    machine_facts.begin_step()
    two = step(second)
    told = machine_facts.count_pending(CONSUMER)
    office.beyond = one[1]
    finish(office.step(one[0]))
    assert machine_facts.count_pending(CONSUMER) == told
    machine_facts.begin_step()
    office.beyond = two[1]
    finish(office.step(two[0]))
    assert machine_facts.count_pending(CONSUMER) == office.slot.machine.state.num_pending == told
    assert machine_facts.count_offered(CONSUMER) == office.slot.machine.state.offers.count


def test_consumers_without_a_machine() -> None:
    assert MachineFacts({}).find_info(CONSUMER, 0) is None


def test_an_event_is_seen_after_its_step() -> None:
    office = Office(1, interest="group")
    machine_facts = MachineFacts(office.dispatcher.facts)
    before = machine_facts.facts[CONSUMER]
    machine_facts.begin_step()
    work = office.step(said=[Bound()])
    assert machine_facts.facts[CONSUMER] is before
    machine_facts.end_step(work.facts)
    assert machine_facts.facts[CONSUMER].phase != before.phase
