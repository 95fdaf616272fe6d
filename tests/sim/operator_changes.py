"""What operators change in a history: files of consumers, pauses, and consumers that were created by request."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from overlay.units import parse_duration

from .applications import CONTROL, Run
from .host import Worker
from .orders import Operator
from .plan import KEYS, STREAM, Consumer, Kind, select
from .reading import read_topic

PATIENCE_S = 240.0
"""Longest time until a request is carried out: the storm and the calm after it."""
AWAY_S = (1.0, 10.0, 40.0)
"""Longest times for which a file is away."""
PAUSE_S = (1.0, 10.0, 40.0)
OF_ACKS = {"ack_wait", "interest", "max_ack_pending", "max_deliver"}
"""What the file of a consumer without acks does not say."""
RELOAD_S = 3.0
"""Longest time until a worker has noticed that files have changed."""


class OperatorChanges:
    """What is changed in files and by request. `acts` says how each kind of mishap is carried out."""

    def __init__(self, run: Run, workers: Sequence[Worker], operator: Operator) -> None:
        self._run, self._workers, self._operator = run, workers, operator
        self.acts: Mapping[Kind, Callable[[random.Random], Awaitable[None]]] = {
            Kind.EDIT: self._edit,
            Kind.REPOLICY: self._change_policy,
            Kind.REMOVE: self._remove,
            Kind.ADD: self._add,
            Kind.PAUSE: self._pause,
            Kind.UPDATE: self._update,
        }

    async def _edit(self, chance: random.Random) -> None:
        """Give a consumer another filter, or other limits."""
        files = self._run.files
        consumer = chance.choice(files.consumers)
        if consumer.acks and chance.random() < 0.5:
            limits = {"ack_wait": chance.choice(("2s", "5s", "10s")), "max_ack_pending": chance.choice((5, 50, 1000))}
            changed = replace(consumer, config={**consumer.config, **limits})
        else:
            changed = select(consumer, chance.sample(range(KEYS), chance.choice((1, 2, KEYS))))
        files.versions[consumer.name].append(changed)
        files.refused.pop(consumer.name, None)
        await self._reload(f"the file of {consumer.name} is changed: {changed}", chance)

    async def _change_policy(self, chance: random.Random) -> None:
        """Have a file say another ack policy, perhaps beside another filter. All of it is refused, and the file may be put back
        later."""
        files = self._run.files
        consumer = chance.choice(files.consumers)
        if consumer.is_pulled or not self._is_taken_up(consumer):
            return  # a consumer that is pulled has to ack; and what the file says first is no update
        policy = chance.choice([other for other in ("none", "explicit", "all") if other != consumer.policy])
        kept = {name: value for name, value in consumer.config.items() if name not in OF_ACKS or policy != "none"}
        changed = replace(consumer, config={**kept, "ack_policy": policy})
        if chance.random() < 0.3:
            changed = select(changed, chance.sample(range(KEYS), chance.choice((1, 2, KEYS))))
        files.refused[consumer.name] = changed
        await self._reload(f"the file of {consumer.name} has another ack policy: {changed}", chance)
        if chance.random() < 0.5:
            await asyncio.sleep(chance.choice(AWAY_S) * chance.random())
            files.refused.pop(consumer.name, None)
            await self._reload(f"the file of {consumer.name} is put back", chance)

    async def put_back(self, chance: random.Random) -> None:
        """Have the files that say what is refused say again what they said before."""
        if self._run.files.refused:
            self._run.files.refused.clear()
            await self._reload("files that were refused are put back", chance)

    def _is_taken_up(self, consumer: Consumer) -> bool:
        """Return whether the control topic has what the latest version of a consumer's file says."""
        key = f"consumer {STREAM} {consumer.name}".encode()
        found = [one.value for one in read_topic(self._run.world.cluster, CONTROL) if one.key == key]
        config = json.loads(found[-1])["config"] if found and found[-1] else {}
        has_filter = sorted(config.get("filter_subjects", ())) == sorted(consumer.config.get("filter_subjects", ()))
        limits = {
            name: parse_duration(value) if name == "ack_wait" else value
            for name, value in consumer.config.items()
            if name in ("ack_wait", "max_ack_pending")
        }
        is_same = config.get("ack_policy") == consumer.policy and has_filter
        return is_same and all(config[name] == value for name, value in limits.items())

    async def _remove(self, chance: random.Random) -> None:
        """Take a consumer's file away for a while. It goes on where it was when the file is there again."""
        files = self._run.files
        present = [each.name for each in files.consumers if each.name not in files.absent]
        if not present:
            return
        name = chance.choice(present)
        files.absent.add(name)
        await self._reload(f"the file of {name} is removed", chance)
        await asyncio.sleep(chance.choice(AWAY_S) * chance.random())
        files.absent.discard(name)
        await self._reload(f"the file of {name} is there again", chance)

    async def _add(self, chance: random.Random) -> None:
        """Add a file with a consumer that takes everything from the beginning of the log."""
        name = f"f{len(self._run.files.versions)}"
        config = {
            "stream": STREAM,
            "durable_name": name,
            "deliver_subject": f"out-{name}",
            "ack_policy": "none",
            "delivery": "exactly_once",
        }
        consumer = Consumer(name, config, frozenset(b"k%d" % number for number in range(KEYS)))
        self._run.files.versions[name] = [consumer]
        await self._reload(f"a file is added: {consumer}", chance)

    async def _reload(self, what: str, chance: random.Random) -> None:
        """Let each worker notice after a while, and read what the files say then."""
        self._run.world.tell(what)

        async def notice(worker: Worker, after_s: float) -> None:
            await asyncio.sleep(after_s)
            worker.reload(self._run.files.read(self._run.world, self._run.plan))

        await asyncio.gather(*(notice(worker, RELOAD_S * chance.random()) for worker in self._workers))

    async def _pause(self, chance: random.Random) -> None:
        """Have a consumer deliver nothing for a while, perhaps until a request resumes it earlier."""
        name, seconds = chance.choice(self._run.files.consumers).name, chance.choice(PAUSE_S) * chance.random()
        until = datetime.fromtimestamp(self._operator.now_ms / 1000 + seconds, UTC).isoformat()
        async with asyncio.timeout(PATIENCE_S):
            if await self._operator.insist("consumer.pause", consumer=name, pause_until=until):
                self._run.world.tell(f"{name} is paused until {until}")
            if chance.random() < 0.5:
                await asyncio.sleep(seconds * chance.random())
                await self._operator.insist("consumer.resume", consumer=name)
                self._run.world.tell(f"{name} goes on")

    async def _update(self, chance: random.Random) -> None:
        """Give a consumer that was created by request another filter."""
        if self._operator.lives:
            life = self._operator.lives[chance.choice(sorted(self._operator.lives))]
            async with asyncio.timeout(PATIENCE_S):
                await self._operator.update(life, chance.sample(range(KEYS), chance.choice((1, 2, KEYS))))
