"""How much a run does: the whole of it, or the same shape in under two minutes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Settings:
    """scale: how often the flights are repeated; a fraction takes the first part of them.

    `only`: the peers to run, empty for all. `codecs` and `selectivities` name the cases of scan and push to run, `cases`
    those of skip, spark, consumers and start; empty for all.
    """

    scale: float = 3
    rounds: int = 3
    faust_records: int = 60_000
    latency_s: float = 15
    only: frozenset[str] = field(default_factory=frozenset)
    codecs: frozenset[str] = field(default_factory=frozenset)
    selectivities: frozenset[str] = field(default_factory=frozenset)
    cases: frozenset[str] = field(default_factory=frozenset)
    passes: int = 2
    """How often every side reads a whole topic before its first round: a broker that has just started runs uncompiled code,
    and the first measured system would pay for it."""

    def shorten(self) -> Settings:
        """For --quick: one round over a tenth of the flights; enough to see that it works, too little to judge."""
        return replace(self, scale=min(self.scale, 0.1), rounds=1, passes=0, faust_records=5_000, latency_s=3)

    def wants_case(self, codec: str, selectivity: str) -> bool:
        wanted = not self.codecs or codec in self.codecs
        return wanted and (not self.selectivities or selectivity in self.selectivities)

    def wants(self, *cases: str) -> bool:
        """Whether one of these cases is to be run."""
        return not self.cases or not self.cases.isdisjoint(cases)

    def wants_side(self, name: str) -> bool:
        """Our own side is always wanted: without it there is no ratio."""
        return name == "overlay" or not self.only or name in self.only
