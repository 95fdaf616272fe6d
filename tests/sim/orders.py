"""Somebody who creates and deletes consumers by request while the storm is on, and what must be there in the end."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .applications import TROUBLES, Run
from .asking import inquire
from .plan import STREAM, Order
from .reading import read_topic

NOT_FOUND = 10014


@dataclass(slots=True)
class Life:
    """What was done about one consumer. Times: ms since 1970."""

    name: str
    is_there: bool = False
    since: float = 0.0
    """When the last request was sent that created it, or answered that deleted it."""

    @property
    def config(self) -> dict[str, Any]:
        return {
            "durable_name": self.name,
            "deliver_subject": f"out-{self.name}",
            "ack_policy": "none",
            "delivery": "exactly_once",
        }


@dataclass(slots=True)
class Operator:
    """Carries out the orders of the plan, those of one consumer one after the other, each until it is answered."""

    run: Run
    lives: dict[str, Life] = field(default_factory=dict)

    async def work(self) -> None:
        """Return when all orders are carried out."""
        orders: dict[str, list[Order]] = defaultdict(list)
        for order in self.run.plan.orders:
            orders[order.name].append(order)
            self.lives.setdefault(order.name, Life(order.name))
        began = self.run.world.loop.now
        await asyncio.gather(*(self._follow(self.lives[name], given, began) for name, given in orders.items()))

    async def _follow(self, life: Life, orders: Sequence[Order], began: float) -> None:
        for order in orders:
            await asyncio.sleep(max(0.0, began + order.at - self.run.world.loop.now))
            if order.creates == life.is_there:
                continue
            sent = self._now_ms()
            if order.creates:
                await self._insist("consumer.create", config=life.config)
            else:
                await self._insist("consumer.delete", consumer=life.name)
            life.is_there, life.since = order.creates, sent if order.creates else self._now_ms()
            self.run.world.tell(f"{life.name} is {'created' if order.creates else 'deleted'}")

    def _now_ms(self) -> float:
        return self.run.world.settings.wall_ms0 + self.run.world.loop.now * 1000

    async def _insist(self, op: str, **fields: Any) -> None:
        """Ask until the answer says that it is done."""
        while True:
            try:
                answer = await inquire(self.run, op, stream=STREAM, **fields)
            except TROUBLES as error:
                self.run.world.tell(f"{op} fails: {error!r}")
                answer = None
            refusal = (answer or {}).get("error", {})
            if answer is not None and (not refusal or (op, refusal["err_code"]) == ("consumer.delete", NOT_FOUND)):
                return
            self.run.world.tell(f"{op} is not done: {answer}")
            await asyncio.sleep(1)

    def find_left(self, wanted: Sequence[bytes], listed: Mapping[str, Any] | None) -> list[str]:
        """Return what is not yet as it must be. `listed`: the answer to consumer.list."""
        if listed is None or "error" in listed:
            return [f"no list of consumers: {listed}"]
        names = {each["name"] for each in listed["consumers"]}
        files = {consumer.name for consumer in self.run.plan.consumers}
        expected = files | {life.name for life in self.lives.values() if life.is_there}
        left = [f"consumers {sorted(names)} instead of {sorted(expected)}"] if names != expected else []
        for life in self.lives.values():
            found = self._find_since(life)
            if life.is_there and (missing := {*wanted} - {*found}):
                left.append(f"{life.name}: {len(missing)} records not delivered since it was created")
        return left

    def judge(self, wanted: Sequence[bytes]) -> None:
        """Raise AssertionError if a consumer delivered what it must not."""
        for life in self.lives.values():
            found = self._find_since(life)
            if life.is_there:
                assert sorted(found) == sorted(wanted), f"{life.name} delivered {len(found)} of {len(wanted)} records"
            else:
                assert not found, f"{life.name} delivered {len(found)} records after it was deleted"

    def _find_since(self, life: Life) -> list[bytes]:
        records = read_topic(self.run.world.cluster, f"out-{life.name}")
        return [record.value or b"" for record in records if record.timestamp > life.since]
