"""An administrator who creates and deletes consumers by request during a storm, and what must be there in the end."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .applications import TROUBLES, Run
from .asking import inquire
from .plan import KEYS, STREAM, Order
from .reading import Found, read_topic

NOT_FOUND = (10014, 10149)
"""The second one is that of an update."""
ENDED_BY_ABSENCE = ("consumer.delete", "consumer.pause", "consumer.resume")


@dataclass(slots=True)
class Life:
    """What was done about one consumer. Times: ms since 1970."""

    name: str
    is_there: bool = False
    since: float = 0.0
    """When the last request was answered that deleted it; if it is there, when the request was sent that created it."""
    is_unsure: bool = False
    """Whether its state may be kept though it is deleted: no consumer was found, since the control topic had lost it. It goes
    on where it stood when it is created again."""
    began: float = 0.0
    """Since when it may have kept its state."""
    filters: list[Sequence[int]] = field(default_factory=lambda: [range(KEYS)])
    """The numbers of the keys that it has wanted since then, the latest last."""
    past: list[Sequence[int]] = field(default_factory=lambda: [range(KEYS)])
    """All that it has ever wanted, also before it was deleted."""
    deletions: int = 0
    copies: int = 1
    """How often a record may be delivered since then: a control topic that loses its end may forget that the consumer was
    created again after a deletion, so that the deletion is carried out once more."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a request about it is carried out."""

    @property
    def always(self) -> set[bytes]:
        """The keys that it has wanted all the time."""
        return {b"k%d" % number for number in set(range(KEYS)).intersection(*self.filters)}

    @property
    def ever(self) -> set[bytes]:
        """The keys that it has wanted at any time."""
        return {b"k%d" % number for numbers in self.filters for number in numbers}

    @property
    def config(self) -> dict[str, Any]:
        numbers = self.filters[-1]
        subjects = {} if len(numbers) == KEYS else {"filter_subjects": [f"s.k{number}" for number in sorted(numbers)]}
        return {
            **subjects,
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
            async with life.lock:
                if order.creates == life.is_there:
                    continue
                if order.creates:
                    await self._create(life)
                else:
                    await self._delete(life)
                life.is_there = order.creates
                self.run.world.tell(f"{life.name} is {'created' if order.creates else 'deleted'}")

    async def _create(self, life: Life) -> None:
        if life.is_unsure:
            life.filters, life.copies, life.since = [*life.past, life.filters[-1]], life.copies + 1, life.began
        else:
            life.filters, life.copies, life.since = life.filters[-1:], 1, self.now_ms
        life.began = life.since
        await self.insist("consumer.create", config=life.config)

    async def _delete(self, life: Life) -> None:
        is_found = await self.insist("consumer.delete", consumer=life.name)
        life.deletions += 1
        life.since = self.now_ms
        life.is_unsure = not is_found and self.run.plan.loses_requests

    async def repair(self) -> None:
        """Ask again for all that was asked for, once the control topic has lost its end.

        What it says meanwhile counts: a consumer may be gone, be there again, or want what it wanted before.
        """
        for life in self.lives.values():
            async with life.lock:
                life.filters = [*life.past, life.filters[-1]]
                if life.deletions:
                    life.copies += 1
                if life.is_there:
                    await self.insist("consumer.create", config=life.config)
                elif life.deletions:
                    await self._delete(life)
        self.run.world.tell("the operator has asked again for what the control topic has lost")

    async def update(self, life: Life, numbers: Sequence[int]) -> None:
        """Have a consumer want the keys of these numbers from now on, if it is there."""
        async with life.lock:
            if life.is_there:
                life.filters.append(numbers)
                life.past.append(numbers)
                # a consumer that the control topic has lost is created anew with this config, as soon as this lock is free
                if await self.insist("consumer.update", config=life.config):
                    self.run.world.tell(f"{life.name} is updated: {life.config}")

    @property
    def now_ms(self) -> float:
        """The cluster's time, ms since 1970."""
        return self.run.world.settings.wall_ms0 + self.run.world.loop.now * 1000

    async def insist(self, op: str, **fields: Any) -> bool:
        """Ask until the answer says that it is done; False if the consumer is not there, which ends a deletion and a pause, and
        an update where the control topic may lose consumers."""
        is_ended = op in ENDED_BY_ABSENCE or (op == "consumer.update" and self.run.plan.loses_requests)
        while True:
            try:
                answer = await inquire(self.run, op, stream=STREAM, **fields)
            except TROUBLES as error:
                self.run.world.tell(f"{op} fails: {error!r}")
                answer = None
            refusal = (answer or {}).get("error", {})
            if answer is not None and not refusal:
                return True
            if is_ended and refusal.get("err_code") in NOT_FOUND:
                return False
            self.run.world.tell(f"{op} is not done: {answer}")
            await asyncio.sleep(1)

    def find_left(self, present: Sequence[Found], listed: Mapping[str, Any] | None) -> list[str]:
        """Return what is not yet as it must be. `present`: what the stream has now; `listed`: the answer to consumer.list."""
        if listed is None or "error" in listed:
            return [f"no list of consumers: {listed}"]
        names = {each["name"] for each in listed["consumers"]}
        files = {consumer.name for consumer in self.run.files.consumers}
        expected = files | {life.name for life in self.lives.values() if life.is_there}
        left = [f"consumers {sorted(names)} instead of {sorted(expected)}"] if names != expected else []
        for life in self.lives.values():
            wanted = self._find_values(present, life.always, life)
            if life.is_there and (missing := wanted - {*self._find_since(life)}):
                left.append(f"{life.name}: {len(missing)} records not delivered since it was created")
        return left

    def judge(self, present: Sequence[Found], source: Sequence[Found]) -> None:
        """Raise AssertionError if a consumer delivered what it must not. `present`, `source`: what the stream has, and had."""
        for life in self.lives.values():
            found = self._find_since(life)
            if life.is_there:
                wanted = self._find_values(present, life.always, life)
                allowed = self._find_values(source, life.ever, life)
                again = {value for value, count in Counter(found).items() if count > life.copies}
                assert not again, f"{life.name} delivered {len(again)} records more than {life.copies} times"
                assert wanted <= {*found}, (
                    f"{life.name} did not deliver {len(wanted - {*found})} of {len(wanted)} records"
                )
                assert {*found} <= allowed, (
                    f"{life.name} delivered {len({*found} - allowed)} records that it did not want"
                )
            else:
                assert not found, f"{life.name} delivered {len(found)} records after it was deleted"

    def _find_values(self, source: Sequence[Found], keys: Container[bytes], life: Life) -> set[bytes]:
        """Return the values of the records with these keys; of the last ones, those that the consumer wants now."""
        latest = {b"k%d" % number for number in life.filters[-1]}
        last = self.run.last
        return {one.value or b"" for one in source if one.key in (latest if one.value in last else keys)}

    def _find_since(self, life: Life) -> list[bytes]:
        records = read_topic(self.run.world.cluster, f"out-{life.name}")
        return [record.value or b"" for record in records if record.timestamp > life.since]
