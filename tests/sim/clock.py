"""Clocks and chance while a history runs: the loop's time, and draws from one seed.

`time`, `random`, `os.urandom` and `uuid.uuid4` are replaced for the whole Python process, since aiokafka, tenacity and the
standard library call them by these names. Each simulated process has a wall clock of its own (`Process.offset_s`); the
monotonic clock is the same for all.

Threads that do not belong to the history, such as those of a Spark session that an earlier test has opened, sleep in real time
and draw from real chance. They would move the history's time and take its draws otherwise.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aiokafka.producer.message_accumulator import BatchBuilder

import overlay.jobs

from . import waits
from .loop import Loop
from .process import PROCESS
from .threads import InlineExecutor


@contextmanager
def simulated(loop: Loop, wall_ms0: float) -> Iterator[None]:
    """Have the code of the block take the time, chance and threads from a loop. The block must not be nested.

    `wall_ms0`: the cluster's wall clock at second 0 of the loop, ms since 1970. Python collects no garbage in the block: when
    it does depends on more than the seed, and it would close what a killed process has left behind.
    """
    wall_s0 = wall_ms0 / 1000
    draws = random.Random(loop.chance.random())
    own, real_sleep, real_urandom, real_uuid4 = threading.get_ident(), time.sleep, os.urandom, uuid.uuid4

    def monotonic() -> float:
        return loop.now

    def monotonic_ns() -> int:
        return int(loop.now * 1e9)

    def wall() -> float:
        process = PROCESS.get()
        return wall_s0 + loop.now + (process.offset_s if process is not None else 0.0)

    def wall_ns() -> int:
        return int(wall() * 1e6) * 1000

    def sleep(seconds: float) -> None:
        if threading.get_ident() != own:
            real_sleep(seconds)
            return
        loop.now += seconds

    def draw_bytes(size: int) -> bytes:
        return draws.randbytes(size) if threading.get_ident() == own else real_urandom(size)

    def make_uuid() -> uuid.UUID:
        if threading.get_ident() != own:
            return real_uuid4()
        return uuid.UUID(int=draws.getrandbits(128), version=4)

    def append(self: BatchBuilder, *, timestamp: int | None, **fields: Any) -> Any:
        # its compiled part reads the real clock where a record has no timestamp
        return append_stamped(self, timestamp=int(wall() * 1000) if timestamp is None else timestamp, **fields)

    append_stamped = BatchBuilder.append
    replaced: list[tuple[Any, str, Any]] = [
        (time, "monotonic", monotonic),
        (time, "monotonic_ns", monotonic_ns),
        (time, "perf_counter", monotonic),
        (time, "perf_counter_ns", monotonic_ns),
        (time, "time", wall),
        (time, "time_ns", wall_ns),
        (time, "sleep", sleep),
        (os, "urandom", draw_bytes),
        (uuid, "uuid4", make_uuid),
        (BatchBuilder, "append", append),
        (overlay.jobs, "open_thread", lambda name: InlineExecutor(loop)),
        (asyncio, "wait", waits.wait),
    ]
    kept = [(owner, name, getattr(owner, name)) for owner, name, _ in replaced]
    chance, was_collecting = random.getstate(), gc.isenabled()
    random.seed(draws.getrandbits(64))
    gc.disable()
    try:
        for owner, name, value in replaced:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in kept:
            setattr(owner, name, value)
        random.setstate(chance)
        if was_collecting:
            gc.enable()
