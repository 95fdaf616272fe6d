"""What a slot remembers, and what it is told."""

from __future__ import annotations

from overlay.consumer.events import Offered, Ticked
from overlay.consumer.queues import Run
from overlay.consumer.window import Pair
from overlay.dispatch.served_consumer import Beginning, ConsumerSlot, slot
from tests.consumer.driver import START, configure, some


def deliver(slot: ConsumerSlot, sequence: int) -> None:
    slot.machine.handle(Offered(Run(some(sequence), some(START), some(10)), sequence), START)


def test_records_of_a_machine_that_was_given_up_are_not_gone_by() -> None:
    """A consumer is paused, resumed and paused again: consumer sequences go on from where it was served without a machine."""
    config = configure(ack_policy="none", rate_limit_bps=8_000_000)
    first = slot(config, Beginning(101, 100), START, None, None)
    first.machine.handle(Ticked(), START)
    records = [first.take_delta()]
    second = slot(config, Beginning(5001, 5000, records=records), START, None, None)
    assert (second.machine.state.window.delivered, second.machine.state.up_to) == (Pair(5000, 5000), 5000)
    deliver(second, 5001)
    assert second.machine.state.window.delivered == Pair(5001, 5001)
    # the log has the old ones still
    records.append(second.take_delta())
    third = slot(config, Beginning(5002, 5001, records=records), START, None, None)
    assert (third.machine.state.window.delivered, third.machine.state.up_to) == (Pair(5001, 5001), 5001)


def test_records_as_far_as_what_was_given_out_count() -> None:
    config = configure()
    first = slot(config, Beginning(), START, None, None)
    deliver(first, 7)
    second = slot(config, Beginning(8, 1, records=[first.take_delta()]), START, None, None)
    assert second.machine.state.window.pending.count == 1
