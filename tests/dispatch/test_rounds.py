"""Several consumers at one dispatcher: what a full step does to the consumers after it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from overlay.consumer.acks import Verb
from overlay.dispatch import dispatcher as dispatcher_module
from overlay.dispatch.ack_decoder import AckBatch
from overlay.dispatch.dispatcher import Dispatcher, Offer, Work
from overlay.dispatch.effect_encoder import EffectEncoder
from overlay.dispatch.served_consumer import Beginning, slot
from tests.consumer.driver import START, configure
from tests.dispatch.scenes import STEP, letters_output_topic, make_pieces
from tests.output.pressing import Settings, make_records

BUSY, OTHER = ("S", "busy"), ("S", "other")


class Two:
    """A consumer that has more to give than a step may hold, and another one whose messages may become dead letters."""

    def __init__(self) -> None:
        configs = [configure(durable_name="busy"), configure(durable_name="other", dead_letter="dead")]
        output_topic = Settings().make_output_topic()
        self.dispatcher = Dispatcher(
            {config.id: slot(config, Beginning(), START, output_topic, letters_output_topic()) for config in configs},
            EffectEncoder("p"),
        )
        self.now, self.log = START, list[bytes]()
        [self.piece] = make_pieces(make_records(50, 200))
        self.step([Offer(OTHER, self.piece, np.arange(3))])
        self.settle()

    def step(self, offers: Sequence[Offer] = (), said: Sequence[AckBatch] = ()) -> Work:
        self.now += STEP
        self.dispatcher.take_in(offers, {OTHER: said}, {"S": self.now}, self.now)
        assert not self.dispatcher.find_wanted()
        work = self.dispatcher.give_out([], {}, self.now)
        assert {consumer for consumer, _ in work.batches} <= work.records.keys()
        if OTHER in work.records:
            self.log.append(work.records[OTHER])
        return work

    def settle(self) -> None:
        while self.dispatcher.next_at <= self.now:
            self.step()

    def count_pending(self) -> int:
        """Of the other consumer, after a restart."""
        stored = Beginning(records=self.log)
        return slot(configure(durable_name="other"), stored, self.now, None, None).machine.state.window.pending.count


@pytest.mark.parametrize("least_log", [0, dispatcher_module.LEAST_LOG])
def test_what_was_taken_in_goes_out_with_the_state_it_made(monkeypatch: pytest.MonkeyPatch, least_log: int) -> None:
    monkeypatch.setattr(dispatcher_module, "ROUND_BYTES", 1_000)
    monkeypatch.setattr(dispatcher_module, "STEP_MESSAGES", 10)
    monkeypatch.setattr(dispatcher_module, "LEAST_LOG", least_log)
    two = Two()
    two.step([Offer(BUSY, two.piece, np.arange(50))])
    work = two.step(said=[AckBatch(Verb.TERM, *(np.array([number]) for number in (1, 1, 1)))])
    assert work.delivered[BUSY] == 10
    assert work.dead_letters == {(OTHER, "term"): 1}
    assert {outgoing.topic for consumer, outgoing in work.batches if consumer == OTHER} == {"out", "p.events"}
    assert two.count_pending() == 2
    two.settle()
    assert two.dispatcher.slots[BUSY].machine.state.window.delivered.consumer == 50


def test_who_comes_after_a_full_step_is_given_in_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher_module, "ROUND_BYTES", 1_000)
    two = Two()
    offers = [Offer(BUSY, two.piece, np.arange(50)), Offer(OTHER, two.piece, np.arange(3, 50))]
    assert set(two.step(offers).delivered) == {BUSY}
    assert two.dispatcher.next_at == 0
    assert two.step().delivered[OTHER] == 47
