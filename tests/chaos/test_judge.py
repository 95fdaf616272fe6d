"""The judge of the storm finds each kind of broken promise: a check that cannot fail would prove nothing."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.chaos.flights.applications import Notes
from tests.chaos.flights.faults import What, plan_faults
from tests.chaos.flights.judge import Delivery, Judge, Source
from tests.chaos.flights.plan import Consumer, Flight, plan_consumers

COUNT = 20
BEGAN = 1_000_000.0
PLAIN, ACKED, ALL, PULLED = "everything", "shared", "newark", "boston"


def take_consumer(name: str) -> Consumer:
    return next(each for each in plan_consumers("p", "exactly_once") if each.name == name)


def make_judge(delivery: str = "exactly_once") -> Judge:
    """Return a judge whose source has records 1 to COUNT, which every consumer wants."""
    source = Source()
    for number in range(1, COUNT + 1):
        subject = "flights.LGA.BOS.UA"
        source.flights[number] = Flight(subject, 2000, "N5", 200.0)
        source.bodies[number] = number * 7
    return Judge(source, delivery, (0.0, 0.0))


def deliver_all() -> list[Delivery]:
    """Return an output that keeps every promise: record n has sequence n, and arrives n seconds after BEGAN."""
    return [
        Delivery(0, n - 1, n, n * 7, int((BEGAN + n) * 1000), sequence=n, consumer_sequence=n, deliveries=1)
        for n in range(1, COUNT + 1)
    ]


def ack_all(deliveries: list[Delivery]) -> Notes:
    """Return the notes of an application that acks everything half a second after it arrived."""
    notes = Notes()
    for each in deliveries:
        notes.taken[each.sequence] = notes.acked[each.sequence] = each.time / 1000 + 0.5
    return notes


def judge(name: str, deliveries: list[Delivery], notes: Notes | None = None, delivery: str = "exactly_once") -> str:
    found = make_judge(delivery)
    found.judge(take_consumer(name), deliveries, notes)
    return "\n".join(found.faults)


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_a_sound_output_passes(delivery: str) -> None:
    assert not judge(PLAIN, deliver_all(), None, delivery)
    assert not judge(ACKED, deliver_all(), ack_all(deliver_all()), delivery)


def drop(found: list[Delivery]) -> list[Delivery]:
    return found[:7] + [each._replace(consumer_sequence=each.consumer_sequence - 1) for each in found[8:]]


def repeat(found: list[Delivery]) -> list[Delivery]:
    last = found[3]._replace(offset=COUNT, consumer_sequence=COUNT + 1)
    return [*found, last]


def swap(found: list[Delivery]) -> list[Delivery]:
    return [
        *found[:4],
        found[5]._replace(offset=4, consumer_sequence=5),
        found[4]._replace(offset=5, consumer_sequence=6),
        *found[6:],
    ]


def skip_number(found: list[Delivery]) -> list[Delivery]:
    return [each._replace(consumer_sequence=each.consumer_sequence + (each.number > 5)) for each in found]


FAULTS: dict[str, Callable[[list[Delivery]], list[Delivery]]] = {
    "lost: 1": drop,
    "doubled: 1": repeat,
    "sequences out of order: 1": swap,
    "consumer sequences are not 1 to": skip_number,
    "not wanted: 1": lambda found: [*found[:-1], found[-1]._replace(number=99)],
    "changed: 1": lambda found: [*found[:-1], found[-1]._replace(body=0)],
}


@pytest.mark.parametrize("blame", FAULTS)
def test_each_fault_of_an_output_is_blamed(blame: str) -> None:
    assert blame in judge(PLAIN, FAULTS[blame](deliver_all()))


def test_a_repetition_is_allowed_at_least_once() -> None:
    assert not judge(PLAIN, repeat(deliver_all()), None, "at_least_once")
    assert "out of order" in judge(PLAIN, swap(deliver_all()), None, "at_least_once")


def test_one_sequence_names_one_record_in_all_outputs() -> None:
    found = make_judge()
    found.judge(take_consumer(PLAIN), deliver_all(), None)
    moved = [each._replace(sequence=each.sequence + 1) for each in deliver_all()]
    found.judge(take_consumer(PLAIN), moved, None)
    assert any("name two records" in fault for fault in found.faults)


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_an_unacked_message_that_does_not_come_again_is_missed(delivery: str) -> None:
    notes = ack_all(deliver_all())
    del notes.acked[9]
    assert "settled without an ack: 1, such as [9]" in judge(ACKED, deliver_all(), notes, delivery)


def test_with_all_a_message_has_to_be_taken_and_lie_below_an_ack() -> None:
    notes = ack_all(deliver_all())
    del notes.taken[9]
    notes.acked = {sequence: at for sequence, at in notes.acked.items() if sequence <= COUNT - 2}
    found = make_judge()
    found.judge(take_consumer(ALL), deliver_all(), notes)
    blames = "\n".join(found.faults)
    assert "settled before it was taken: 1" in blames
    assert "settled without an ack: 2" in blames


def deliver_again(after_s: float, deliveries: int = 2) -> list[Delivery]:
    """Return an output in which the first message comes again so long after its first delivery."""
    found = deliver_all()
    again = found[0]._replace(
        offset=COUNT, consumer_sequence=COUNT + 1, time=found[0].time + int(after_s * 1000), deliveries=deliveries
    )
    return [*found, again]


def test_what_was_acked_in_time_may_not_come_again() -> None:
    notes = ack_all(deliver_all())
    assert "came again though acked in time: 1" in judge(ACKED, deliver_again(7.0), notes)
    notes.nakked.add(1)
    assert not judge(ACKED, deliver_again(7.0), notes)


def test_what_was_acked_late_may_come_again_and_is_counted() -> None:
    notes = ack_all(deliver_all())
    notes.acked[1] += 6.0
    assert not judge(ACKED, deliver_again(7.0), notes)
    assert "not counted 1, 2, 3" in judge(ACKED, deliver_again(7.0, deliveries=3), notes)


def test_what_was_confirmed_may_not_come_again() -> None:
    notes = ack_all(deliver_all())
    notes.nakked.add(1)
    notes.confirmed[1] = BEGAN + 3
    assert "came again after ack_sync: 1" in judge(ACKED, deliver_again(7.0), notes)


def judge_pulled(notes: Notes) -> str:
    found = make_judge()
    found.judge_pulled(take_consumer(PULLED), notes)
    return "\n".join(found.faults)


def test_what_is_pulled_is_judged_as_well() -> None:
    notes = ack_all(deliver_all())
    notes.numbers = {number: {number} for number in range(1, COUNT + 1)}
    assert not judge_pulled(notes)
    del notes.acked[3]
    assert judge_pulled(notes) == "boston: settled without an ack: 1, such as [3]"
    notes.numbers[4] = {4, 5}
    assert "sequences that name two records: 1" in judge_pulled(notes)
    del notes.numbers[7]
    assert "lost: 1, such as [7]" in judge_pulled(notes)


def test_timetables_are_those_of_their_seed_and_end_with_every_worker_running() -> None:
    for seed in range(50):
        one, other = (plan_faults(random.Random(seed), 240, 2, 4) for _ in range(2))
        assert one == other == sorted(one, key=lambda fault: fault.at)
        for worker in range(2):
            mine = [fault.what for fault in one if fault.worker == worker]
            pairs = set(zip(mine[::2], mine[1::2], strict=True))
            assert pairs <= {(What.KILL, What.START), (What.FREEZE, What.THAW)}
