"""Random scripts, run against the real nats-server and against the machine: both must tell the same.

Both live in real time. Nothing is assumed about how fast a step is: before each step every timer of the machine that is near
is waited out, with room on both sides, so that the two never disagree about what has come first. After each step the
server is asked until it says what the machine says, or the time is over. An attempt during which the test or the server stood
still is no judge of differences, and is made again.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import nats
import numpy as np
import pytest
from nats.aio.client import Client

from overlay.config import fill_defaults
from overlay.config.consumer import Interest
from overlay.consumer.acks import Ack, Token, parse_ack
from overlay.consumer.deadlines import NEVER
from overlay.consumer.effects import Advise, Advisory, Answer, ArmTimer, Deliver, Effect, Status
from overlay.consumer.endings import DELETED_REASON
from overlay.consumer.events import Bound, Event, Offered, Pulled, Removed, Ticked, Updated, read_ack
from overlay.consumer.info import describe
from overlay.consumer.machine import Machine
from overlay.consumer.pulls import PullRequest, parse_pull
from overlay.consumer.queues import Run
from overlay.consumer.state import begin
from overlay.subject import Pattern
from tests.consumer.jetstream import ANSWER_S, SUBJECTS, Peer, Told, serve, settle
from tests.support.wire import from_wire

SCRIPTS = int(os.environ.get("OVERLAY_SCRIPTS", "50"))
SEED = int(os.environ.get("OVERLAY_SEED", "0")) or random.SystemRandom().randrange(1 << 32)
AT_ONCE = 25
STEPS = 14
MS = 1_000_000
GUARD = 120 * MS
PATIENCE = 2.0
RESTLESS = 3000 * MS
ATTEMPTS = 3
STALLED_ATTEMPTS = 12
"""How many more attempts a script has, for those during which the test or the server stood still."""
PAUSE = 0.02

BODIES = {
    "ack": b"+ACK",
    "next": b'+NXT {"batch": 2, "expires": 400000000}',
    "nak": b"-NAK",
    "delay": b'-NAK {"delay": 400000000}',
    "progress": b"+WPI",
    "term": b"+TERM no good",
}


def level_advisory(kind: str, stream_seq: int, deliveries: int, reason: str) -> Told:
    """The server counts one delivery too few for a redelivered message that was deleted; we count them all."""
    return kind, stream_seq, 0 if reason == DELETED_REASON else deliveries, reason


class Twin:
    """The machine with a clock, and what it told, in the peer's words."""

    def __init__(self, name: str, config: dict[str, Any]) -> None:
        self.name = name
        self.machine = Machine(begin(self.read(config), time.time_ns()))
        self.told: dict[str, list[Told]] = {}
        self.advised: Counter[Told] = Counter()
        self.answered: Counter[str] = Counter()
        self.timer = NEVER
        if self.machine.state.config.is_push:
            self.handle(Bound())

    def read(self, config: dict[str, Any]) -> Any:
        # timers start at delivery, as they do in a server
        return fill_defaults(from_wire(self.name, config).model_copy(update={"interest": Interest.ALWAYS}))

    def handle(self, event: Event, now: int = 0) -> None:
        for effect in self.machine.handle(event, now or time.time_ns()):
            self._take(effect)

    def tick(self) -> None:
        """Let every timer fire at its time, as those of a server do."""
        while self.timer <= time.time_ns():
            self.handle(Ticked(), self.timer)

    def info(self) -> Told:
        found = describe(self.machine.facts, time.time_ns())
        pairs = (found.delivered.consumer, found.delivered.stream, found.ack_floor.consumer, found.ack_floor.stream)
        return (*pairs, found.num_ack_pending, found.num_redelivered, found.num_pending, found.num_waiting)

    def _take(self, effect: Effect) -> None:
        match effect:
            case Deliver():
                columns = (effect.deliveries, effect.sequences, effect.consumer_seqs, effect.num_pending)
                self.told.setdefault("", []).extend(zip(*(column.tolist() for column in columns), strict=True))
            case Status(reply, text):
                self.told.setdefault(reply, []).append((text.code, text.description, tuple(sorted(text.headers))))
            case Advise(kind, stream_seq, _, deliveries, reason) if kind in (
                Advisory.MAX_DELIVER,
                Advisory.NAK,
                Advisory.TERMINATED,
            ):
                self.advised[level_advisory(kind.value[0], stream_seq, deliveries, reason)] += 1
            case Answer(reply):
                self.answered[reply] += 1
            case ArmTimer(at):
                self.timer = at
            case _:
                pass


class Restless(Exception):
    """Messages of a script go out again so often that no step can be told from its neighbours: it ends there."""


class Watch:
    """Notes when the test or the server stood still so long that two timers may change places."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._stalls = 0
        self._round = asyncio.Event()
        """Set when the present question is answered."""

    async def run(self) -> None:
        """Ask the server whether it is there, again and again."""
        while True:
            before = time.monotonic_ns()
            await asyncio.sleep(PAUSE / 2)
            await self._client.flush(ANSWER_S)
            self._stalls += time.monotonic_ns() - before > GUARD // 2
            self._round.set()
            self._round = asyncio.Event()

    async def count(self) -> int:
        """Return how often time stood still until now."""
        # by the end of the question that runs, and of one that begins after this call
        for _ in range(2):
            await self._round.wait()
        return self._stalls


class Script:
    """One random script. `log` says what was done, to find out why the two differ."""

    def __init__(self, client: Client, seed: int, attempt: int) -> None:
        self.random = random.Random(seed)
        self.seed = seed
        name = f"S{seed}-{attempt}"
        self.config = self.invent_config(name)
        self.peer = Peer(client, name, self.config)
        self.twin = Twin(name, self.config)
        self.stored: list[int] = []
        self.log: list[str] = [json.dumps(self.config)]
        self.asked = 0
        self.pause = PAUSE * (min(attempt, ATTEMPTS) + 1)
        self.started = time.time_ns()

    def invent_config(self, name: str) -> dict[str, Any]:
        pick = self.random.choice
        config: dict[str, Any] = {"durable_name": "c", "ack_policy": pick(["explicit"] * 4 + ["all", "none"])}
        if self.random.random() < 0.4:
            config["deliver_subject"] = f"_T.{name}.push"
        if config["ack_policy"] != "none":
            config["ack_wait"] = pick([500, 700]) * MS
            config["max_ack_pending"] = pick([-1, -1, 2, 5])
            config["max_deliver"] = pick([-1, 1, 2, 3])
            if self.random.random() < 0.3 and config["max_deliver"] in (-1, 3):
                config["backoff"] = [300 * MS, 600 * MS]
                del config["ack_wait"]
        filters = pick([[], [], ["a.*"], ["a.x", "b.>"]])
        config["filter_subjects"] = [f"{name}.{text}" for text in filters]
        return config

    @property
    def is_push(self) -> bool:
        return "deliver_subject" in self.config

    def matches(self, subject: str) -> bool:
        filters = self.config["filter_subjects"]
        return not filters or any(Pattern(text).matches(f"{self.peer.name}.{subject}") for text in filters)

    async def run(self) -> str:
        """What differed, with the log; empty for nothing."""
        await self.peer.start()
        self.started = time.time_ns()
        steps = [Script.publish, *self.random.choices([step for step, _ in WEIGHTS], [w for _, w in WEIGHTS], k=STEPS)]
        for step in steps:
            await self.keep_clear()
            if (done := await step(self)) is not None:
                self.log.append(f"{(time.time_ns() - self.started) // MS} ms: {done}")
            self.twin.tick()
            if difference := await self.compare():
                return f"seed {self.seed}: {difference}\n  " + "\n  ".join(self.log)
            await asyncio.sleep(self.pause)
        return ""

    async def keep_clear(self) -> None:
        """Wait out every timer that is near. Raises Restless where there is always one."""
        end = time.time_ns() + RESTLESS
        while self.twin.timer - time.time_ns() < GUARD:
            await asyncio.sleep(max(self.twin.timer - time.time_ns(), 0) / 1e9 + GUARD / 1e9)
            self.twin.tick()
            if time.time_ns() > end:
                raise Restless

    async def compare(self) -> str:
        async def is_same() -> bool:
            if self.twin.timer - time.time_ns() < GUARD // 4:
                await self.keep_clear()
            return not self.differ(await self.peer.info())

        return "" if await settle(is_same, PATIENCE) else self.differ(await self.peer.info())

    def differ(self, info: Told) -> str:
        info = self.level(info)
        advised: Counter[Told] = Counter()
        for advisory, count in self.peer.advised.items():
            advised[level_advisory(*advisory)] += count
        pairs = {
            "told": (self.peer.told, self.twin.told),
            "info": (info, self.twin.info()),
            "advised": (advised, self.twin.advised),
            "answered": (self.peer.answered, self.twin.answered),
        }
        return "; ".join(f"{what}: server {a}, machine {b}" for what, (a, b) in pairs.items() if a != b)

    def level(self, info: Told) -> Told:
        """The server's info with stream sequences of skipped messages left out.

        A server looks at messages that do not match whenever its loop happens to run, and then counts them as delivered.
        """
        own, position = self.twin.info(), self.twin.machine.state.position
        return tuple(
            own[at] if at in (1, 3) and own[at] <= number <= position and info[at - 1] == own[0] else number
            for at, number in enumerate(info)
        )

    # steps

    async def publish(self) -> str:
        done = []
        for _ in range(self.random.randint(1, 4)):
            subject = self.random.choice(SUBJECTS)
            sequence = await self.peer.publish(subject, b"x" * self.random.randint(0, 20))
            self.stored.append(sequence)
            sequences = np.array([sequence] if self.matches(subject) else [], np.int64)
            run = Run(sequences, np.full(sequences.size, 1), np.full(sequences.size, 10))
            self.twin.handle(Offered(run, sequence))
            done.append(f"{sequence} {subject}")
        return "publish " + ", ".join(done)

    async def pull(self) -> str | None:
        if self.is_push:
            return None
        self.asked += 1
        inbox = f"p{self.asked}"
        batch = self.random.randint(1, 4)
        request = {"batch": batch, "expires": 400 * MS, "no_wait": self.random.random() < 0.6}
        # at max_ack_pending a no_wait without expires hangs in a server until something else happens to end it
        if request["no_wait"] and batch <= self.twin.machine.state.window.room and self.random.random() < 0.5:
            del request["expires"]
        body = json.dumps(request).encode()
        await self.peer.pull(body, inbox)
        parsed = parse_pull(body)
        assert isinstance(parsed, PullRequest)
        self.twin.handle(Pulled(parsed, inbox))
        return f"pull {body!r}"

    def choose(self) -> Token | None:
        tokens = self.peer.tokens
        if not tokens or self.config["ack_policy"] == "none":
            return None
        return self.random.choice(tokens if self.random.random() < 0.2 else tokens[-5:])

    async def answer(self, verb: str) -> str | None:
        if verb in ("progress", "delay"):
            # a server's timer may take deadlines that are tens of ms apart as one: keep those that change places apart
            await asyncio.sleep(2 * GUARD / 1e9)
            self.twin.tick()
            await self.keep_clear()
        token = self.choose()
        if token is None or (verb == "next" and self.is_push):
            return None
        self.asked += 1
        reply = f"_A.{self.peer.name}.{self.asked}" if self.random.random() < 0.5 else ""
        if verb == "next":
            reply = f"p{self.asked}"
            await self.peer.ack(token, BODIES[verb], self.peer.inbox(reply))
        else:
            await self.peer.ack(token, BODIES[verb], reply)
        ack = parse_ack(str(token).encode(), BODIES[verb])
        assert isinstance(ack, Ack)
        floor = self.twin.machine.state.window.floor.consumer
        self.twin.handle(read_ack(ack, reply))
        if reply and verb in ("ack", "term") and self.config["ack_policy"] == "all" and token.consumer_seq <= floor:
            self.twin.answered[reply] = 1  # a server answers such an ack also if the message comes again
        if verb in ("progress", "delay"):
            await asyncio.sleep(2 * GUARD / 1e9)
        return f"{verb} {token} {reply}"

    async def wait(self) -> str | None:
        if self.twin.timer == NEVER:
            return None
        await asyncio.sleep(max(self.twin.timer - time.time_ns(), 0) / 1e9 + GUARD / 1e9)
        return "wait"

    async def delete(self) -> str | None:
        # with `all` a server takes the deletion of a message for an ack of all before it; we do not
        if not self.stored or self.config["ack_policy"] == "all":
            return None
        sequence = self.stored.pop(self.random.randrange(len(self.stored)))
        await self.peer.ask(f"STREAM.MSG.DELETE.{self.peer.name}", seq=sequence)
        self.twin.handle(Removed(sequences=np.array([sequence])))
        return f"delete {sequence}"

    async def update(self) -> str | None:
        if self.config["ack_policy"] == "none" or "backoff" in self.config:
            return None
        self.config = {**self.config, "max_ack_pending": self.random.choice([-1, 2, 5])}
        await self.peer.configure(self.config)
        self.twin.handle(Updated(self.twin.read(self.config)))
        return f"update {self.config}"


def _answer(verb: str) -> Any:
    return lambda script: script.answer(verb)


WEIGHTS: list[tuple[Any, int]] = [
    (Script.publish, 3),
    (Script.pull, 6),
    (_answer("ack"), 6),
    (_answer("next"), 1),
    (_answer("nak"), 2),
    (_answer("delay"), 1),
    (_answer("progress"), 1),
    (_answer("term"), 1),
    (Script.wait, 2),
    (Script.delete, 1),
    (Script.update, 1),
]


async def attempt_until(client: Client, watch: Watch, seed: int) -> str | None:
    """Run a script until it agrees with the server, or for so many attempts. Return what differed in the last one; None if
    it was restless."""
    difference: str | None = ""
    # timers of the two that fall within the same few milliseconds may go either way: what is real repeats
    counted = 0
    for attempt in range(ATTEMPTS + STALLED_ATTEMPTS):
        before = await watch.count()
        script = Script(client, seed, attempt)
        try:
            difference = await script.run()
        except Restless:
            difference = None
        finally:
            await script.peer.stop()
        if difference == "":
            break
        if await watch.count() > before:
            continue
        counted += 1
        if difference is None or counted == ATTEMPTS:
            break
    return difference


@pytest.mark.timeout(600 + SCRIPTS)
async def test_scripts(tmp_path: Path) -> None:
    print(f"OVERLAY_SEED={SEED}")  # noqa: T201
    with serve(tmp_path) as address:
        client = await nats.connect(address, connect_timeout=ANSWER_S)
        gate, watch = asyncio.Semaphore(AT_ONCE), Watch(client)
        watching = asyncio.create_task(watch.run())

        async def run(seed: int) -> str | None:
            async with gate:
                return await attempt_until(client, watch, seed)

        found = await asyncio.gather(*(run(SEED + i) for i in range(SCRIPTS)))
        assert not watching.done()
        watching.cancel()
        await client.close()
    differences = [text for text in found if text]
    assert found.count(None) <= SCRIPTS // 5
    assert not differences, f"{len(differences)} scripts differ\n" + "\n".join(differences)
