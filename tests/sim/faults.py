"""Which requests go wrong on their way, and how: data that a history hands to the network."""

from __future__ import annotations

import random
from collections.abc import Container
from dataclasses import dataclass, field
from enum import Enum


class Verdict(Enum):
    """What becomes of one request."""

    PASSES = "passes"
    CUT_BEFORE = "cut before the broker acted"
    CUT_AFTER = "cut after the broker acted"
    STALLED = "answer lost"
    """The broker acts, and nothing arrives on the connection from then on, until the client gives up."""
    SLOW = "slow"


@dataclass(slots=True)
class Faults:
    """Probabilities for each request, and times in seconds. May be changed while a history runs."""

    cut_before: float = 0.0
    cut_after: float = 0.0
    stalled: float = 0.0
    slow: float = 0.0
    latency_s: tuple[float, float] = (0.0002, 0.002)
    """Least and longest time of one way between client and broker."""
    slow_s: tuple[float, float] = (0.1, 10.0)
    """What a slow answer takes in addition."""
    only: Container[str] = field(default_factory=tuple)
    """Kinds of requests that go wrong, as their classes are called without a version; empty: all."""
    parted: set[tuple[str, int]] = field(default_factory=set)
    """Pairs of a process's name and a broker between which nothing arrives."""
    clogged: set[tuple[str, int]] = field(default_factory=set)
    """Such pairs between which batches fill the buffers of connections: a connection that the process closes is closed once
    they are sent, or when the operating system gives up (`network.GIVE_UP_S`)."""

    def draw_latency(self, chance: random.Random) -> float:
        """Return the seconds that one way takes."""
        least, most = self.latency_s
        return least + (most - least) * chance.random()

    def judge(self, chance: random.Random, kind: str) -> Verdict:
        """Return what becomes of a request."""
        total = self.cut_before + self.cut_after + self.stalled + self.slow
        if not total or (self.only and kind not in self.only):
            return Verdict.PASSES
        drawn = chance.random()
        if drawn >= total:
            return Verdict.PASSES
        for share, verdict in (
            (self.cut_before, Verdict.CUT_BEFORE),
            (self.cut_after, Verdict.CUT_AFTER),
            (self.stalled, Verdict.STALLED),
        ):
            if drawn < share:
                return verdict
            drawn -= share
        return Verdict.SLOW
