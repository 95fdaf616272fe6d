"""A machine with a clock of its own, for tests: what it was told to do is kept, its timer is run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from overlay.arrays import Ints
from overlay.config import ConsumerConfig, fill_defaults
from overlay.consumer.deadlines import NEVER
from overlay.consumer.effects import ArmTimer, Deliver, Effect, Status
from overlay.consumer.events import Acked, Event, Offered, Ticked
from overlay.consumer.info import ConsumerInfo, describe
from overlay.consumer.machine import Machine
from overlay.consumer.queues import Run
from overlay.consumer.snapshot import MachineRecord
from overlay.consumer.state import begin

SECOND = 1_000_000_000
START = 1_700_000_000 * SECOND

Kind = TypeVar("Kind", bound=Effect)


def configure(**fields: Any) -> ConsumerConfig:
    """A push consumer without a reader, or with `pull=True` a pull consumer."""
    pull = fields.pop("pull", False)
    known = {"stream": "S", "durable_name": "c", "interest": "always", "ack_wait": 30 * SECOND}
    return fill_defaults(ConsumerConfig.model_validate(known | ({} if pull else {"deliver_subject": "out"}) | fields))


def some(*sequences: int) -> Ints:
    return np.array(sequences, np.int64)


class Driver:
    """`now` is ns; `seen` are all effects but timers."""

    def __init__(self, config: ConsumerConfig, records: Sequence[MachineRecord] = (), **options: Any) -> None:
        self.now, self.timer = START, NEVER
        self.seen: list[Effect] = []
        self.machine = Machine(begin(config, self.now, **options), records)
        self.last = options.get("start", 1) - 1

    def do(self, event: Event) -> list[Effect]:
        effects = [effect for effect in self.machine.handle(event, self.now) if not self._arms(effect)]
        self.seen += effects
        return effects

    def offer(self, count: int, *, gap: int = 0, size: int = 100, beyond: int | None = None) -> list[Effect]:
        """The next messages of the stream, all of them matching, stored `gap` ns apart."""
        sequences = np.arange(self.last + 1, self.last + 1 + count)
        self.last += count
        return self.do(Offered(Run(sequences, START + sequences * gap, np.full(count, size)), self.last, beyond))

    def ack(self, *sequences: int) -> list[Effect]:
        return self.do(Acked(some(*sequences), self.machine.state.window.delivered.consumer))

    def pass_time(self, span: int) -> list[Effect]:
        """Let time pass; the timer fires whenever it is due."""
        end, before = self.now + span, len(self.seen)
        while self.timer <= end:
            self.now = max(self.timer, self.now)
            self.do(Ticked())
        self.now = end
        return self.seen[before:]

    def info(self) -> ConsumerInfo:
        return describe(self.machine.facts, self.now)

    def sent(self) -> list[tuple[int, int, int]]:
        """Stream sequence, consumer sequence and deliveries of everything delivered."""
        return [row for effect in self.all(Deliver) for row in rows(effect)]

    def all(self, kind: type[Kind]) -> list[Kind]:
        return [effect for effect in self.seen if isinstance(effect, kind)]

    def statuses(self, reply: str = "") -> list[tuple[int, str]]:
        return [(s.text.code, s.text.description) for s in self.all(Status) if s.reply == reply]

    def _arms(self, effect: Effect) -> bool:
        if isinstance(effect, ArmTimer):
            self.timer = effect.at
            return True
        return False


def rows(effect: Deliver) -> list[tuple[int, int, int]]:
    columns = effect.sequences, effect.consumer_seqs, effect.deliveries
    return list(zip(*(column.tolist() for column in columns), strict=True))
