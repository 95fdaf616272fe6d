"""What the event loop may ask of machines while a step of the dispatcher moves them in its thread.

A machine in the midst of a step tells nonsense: messages that it has taken out of its offers and not given out yet
are neither pending nor delivered. So nothing outside the dispatcher reads a machine. Here is what each machine was
after the last step, replaced as a whole when a step has ended, and what has been put down for the steps to come. An
answer is made of both. So a message that was read from the log is counted from then on, and an ack is seen before its
round is committed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from overlay.consumer.info import ConsumerInfo, Facts, describe
from overlay.state.shard_state import ConsumerId


@dataclass(slots=True)
class _News:
    """What the machines have not been told yet, by consumer."""

    offered: Counter[ConsumerId] = field(default_factory=Counter)
    """Messages that are to be offered."""
    beyond: dict[ConsumerId, int] = field(default_factory=dict)
    """How many messages lie behind those that are offered, where that has changed."""


@dataclass(slots=True)
class MachineFacts:
    """Belongs to the event loop. `facts`: what each machine was after the last step."""

    facts: dict[ConsumerId, Facts]
    _taken: _News = field(default_factory=_News)
    """Handed to the step that is under way."""
    _waiting: _News = field(default_factory=_News)
    """For the step after it."""

    def offer(self, consumer: ConsumerId, messages: int) -> None:
        """Note messages that the next step offers to a consumer."""
        self._waiting.offered[consumer] += messages

    def tell(self, beyond: Mapping[ConsumerId, int]) -> None:
        """Note what the next step tells of messages behind the offers."""
        self._waiting.beyond |= beyond

    def begin_step(self) -> None:
        """A step takes all that waits."""
        self._taken, self._waiting = self._waiting, _News()

    def end_step(self, facts: Mapping[ConsumerId, Facts]) -> None:
        """A step has ended. `facts`: of the machines that it has moved."""
        self.facts.update(facts)
        self._taken = _News()

    def count_offered(self, consumer: ConsumerId) -> int:
        """Messages that were read for a consumer and are not delivered to it."""
        queued = self._taken.offered[consumer] + self._waiting.offered[consumer]
        return self.facts[consumer].offered + queued

    def count_pending(self, consumer: ConsumerId) -> int:
        """The same, with the messages behind them as far as they are known."""
        beyond = self.facts[consumer].beyond
        for news in (self._taken, self._waiting):
            # as a machine does: what is offered lay beyond before, unless something else is said
            beyond = news.beyond.get(consumer, max(beyond - news.offered[consumer], 0))
        return self.count_offered(consumer) + beyond

    def find_info(self, consumer: ConsumerId, now: int) -> ConsumerInfo | None:
        """What a consumer tells of itself at `now`, ns; None for one that has no machine here."""
        facts = self.facts.get(consumer)
        return None if facts is None else replace(describe(facts, now), num_pending=self.count_pending(consumer))
