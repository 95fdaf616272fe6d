"""Machine facts: what the event loop may ask about machines while a dispatcher step changes them in
its thread.

A machine in the middle of a step is inconsistent. Messages that it has taken out of its offers and
not delivered yet are neither pending nor delivered. So nothing outside the dispatcher reads a
machine during a step. This module keeps each machine's state after the last step, replaced as a
whole when a step ends, and what is queued for the steps to come. An answer combines both. So a
message counts as soon as it was read from the log, and an ack is visible before its unit is
committed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from overlay.consumer.info import ConsumerInfo, Facts, describe
from overlay.state.shard_state import ConsumerId


@dataclass(slots=True)
class _News:
    """Counts that are queued for a step of the dispatcher and that the machines do not have yet, by
    consumer.
    """

    offered: Counter[ConsumerId] = field(default_factory=Counter)
    """Number of messages that are queued as offers."""
    beyond: dict[ConsumerId, int] = field(default_factory=dict)
    """How many messages lie behind the offers, if that has changed."""


@dataclass(slots=True)
class MachineFacts:
    """What the event loop can say about a session's machines: their state after the last step of
    the dispatcher, and what is queued for the steps to come. Only the event loop's thread may use
    it.

    `facts`: each machine's state after the last step.
    """

    facts: dict[ConsumerId, Facts]
    _taken: _News = field(default_factory=_News)
    """What the current step handles."""
    _waiting: _News = field(default_factory=_News)
    """What the step after it will handle."""

    def offer(self, consumer: ConsumerId, messages: int) -> None:
        """Add to the number of messages that the next step will offer to a consumer."""
        self._waiting.offered[consumer] += messages

    def tell(self, beyond: Mapping[ConsumerId, int]) -> None:
        """Record for the next step how many matching messages are above the offers, by consumer. A
        new count replaces the one before.
        """
        self._waiting.beyond |= beyond

    def renew(self, consumer: ConsumerId, facts: Facts | None) -> None:
        """Record, between two steps, that a consumer has come, has been changed, or is gone (`facts` is None). What was
        queued for it is dropped.
        """
        for counts in (self._waiting.offered, self._waiting.beyond):
            counts.pop(consumer, None)
        if facts is None:
            self.facts.pop(consumer, None)
        else:
            self.facts[consumer] = facts

    def begin_step(self) -> None:
        """Record that a step has begun, which handles everything queued so far. What is queued from
        now on is for the next one.
        """
        self._taken, self._waiting = self._waiting, _News()

    def end_step(self, facts: Mapping[ConsumerId, Facts]) -> None:
        """Record that the step has ended. `facts`: the new state of each machine that it has changed."""
        self.facts.update(facts)
        self._taken = _News()

    def count_offered(self, consumer: ConsumerId) -> int:
        """Return how many messages were read from the log for a consumer and are not delivered yet,
        those queued for a step included. Raises KeyError if the consumer has no machine here.
        """
        queued = self._taken.offered[consumer] + self._waiting.offered[consumer]
        return self.facts[consumer].offered + queued

    def count_pending(self, consumer: ConsumerId) -> int:
        """Return how many messages a consumer has still to deliver for the first time: those of
        `count_offered`, and the matching ones above them as far as they are known. Raises KeyError
        if it has no machine here.
        """
        beyond = self.facts[consumer].beyond
        for news in (self._taken, self._waiting):
            # as a machine counts: an offered message was counted in `beyond` before, unless a new
            # count was told
            beyond = news.beyond.get(consumer, max(beyond - news.offered[consumer], 0))
        return self.count_offered(consumer) + beyond

    def find_info(self, consumer: ConsumerId, now: int) -> ConsumerInfo | None:
        """Return the ConsumerInfo of a consumer at `now`, ns since 1970; None if it has no machine
        here."""
        facts = self.facts.get(consumer)
        return None if facts is None else replace(describe(facts, now), num_pending=self.count_pending(consumer))
