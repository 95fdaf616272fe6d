"""Threads that repeat jobs and compare each answer with the one of a single thread."""

from __future__ import annotations

import hashlib
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Answer = Mapping[str, str]
"""A digest of each part of a job's answer, by the part's name."""
Work = Callable[[], Answer]

SWITCH_S = 20e-6
REOPEN = 50
"""Rounds after which a thread makes the objects that it works with anew."""
MOST_FAULTS = 20
"""Each thread stops at its first fault; with this many in all, the run stops."""

_counting = threading.Lock()


@dataclass(frozen=True, slots=True)
class Job:
    """Work for a thread. `open` makes what one thread works with and returns the work; each call must answer the same."""

    name: str
    open: Callable[[], Work]


@dataclass(slots=True)
class Report:
    """How often each job was done, and what went wrong."""

    done: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


class Digest:
    """Hashes the parts of an answer, each under its name."""

    def __init__(self) -> None:
        self._hashes: dict[str, Any] = {}

    def add(self, part: str, *values: npt.NDArray[Any] | bytes | object) -> None:
        """Add values to a part: arrays and bytes by their bytes, everything else by its repr."""
        made = self._hashes.get(part) or self._hashes.setdefault(part, hashlib.blake2b(digest_size=8))
        for value in values:
            if isinstance(value, np.ndarray):
                made.update(np.ascontiguousarray(value).tobytes())
            else:
                made.update(value if isinstance(value, bytes) else repr(value).encode())

    def finish(self) -> Answer:
        """Return the digests."""
        return {part: made.hexdigest() for part, made in self._hashes.items()}


def run(jobs: Sequence[Job], neighbours: Sequence[Job], seconds: float, threads: int) -> Report:
    """Do each job in `threads` threads and each neighbour in one, for `seconds` or until too much has gone wrong.

    The right answer of a job is the one that it gives three times before the threads start. That also compiles its kernels.
    """
    expected = {job.name: _ask_alone(job) for job in (*jobs, *neighbours)}
    report, over = Report(), threading.Event()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    try:
        workers = [
            threading.Thread(target=_repeat, args=(job, expected[job.name], report, over))
            for job in (*(job for job in jobs for _ in range(threads)), *neighbours)
        ]
        for worker in workers:
            worker.start()
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and len(report.faults) < MOST_FAULTS:
            over.wait(0.1)
        over.set()
        for worker in workers:
            worker.join()
    finally:
        sys.setswitchinterval(interval)
    return report


def _ask_alone(job: Job) -> Answer:
    work = job.open()
    first, second, fresh = work(), work(), job.open()()
    if not first == second == fresh:
        raise AssertionError(f"job {job.name} gives different answers in a single thread: {_compare(first, second)}")
    return first


def _repeat(job: Job, expected: Answer, report: Report, over: threading.Event) -> None:
    """Do a job again and again, at least once. Every so often, its objects are made anew."""
    done = 0
    try:
        while not (over.is_set() and done):
            if done % REOPEN == 0:
                work = job.open()
            answer = work()
            if answer != expected:
                report.faults.append(f"{job.name}: round {done} gives other {_compare(expected, answer)}")
                return
            done += 1
    except BaseException:  # noqa: BLE001 - whatever ends the work early is a fault
        report.faults.append(f"{job.name}: {traceback.format_exc()}")
    finally:
        with _counting:
            report.done[job.name] += done


def _compare(one: Answer, other: Answer) -> str:
    return ", ".join(sorted(part for part in {*one, *other} if one.get(part) != other.get(part)))
