"""What reading a stream for some condition would cost and why, from its chunk headers alone: a database's EXPLAIN.

The planner itself is asked (overlay/index: derive, prune, plan), so what is shown is what a reader does. Added to it are the
sums over partitions, what part of the log no header covers, and two predictions:

- time, by the cost model of index/skip/plan.py: compressed bytes at READ_BYTES_S, and FETCH_S for each request that a
  gap costs.
  What has no header is taken to be as large per offset as what has one
- false positives of Bloom filters. A filter that lets a share p of absent terms through has let n terms pass by chance when it
  refused n * (1 - p) / p, so n is told by the refusals: refused * p / (1 - p). For wildcards this counts one term, which
  is more than there are as a rule, since all of a pattern's terms have to be found
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from overlay.config.stream import StreamConfig
from overlay.filter import Filter
from overlay.index.skip.chunks import Chunks
from overlay.index.skip.derive import derive
from overlay.index.skip.plan import FETCH_S, READ_BYTES_S, Route, plan
from overlay.index.skip.probes import Answer, Conditions, Has, Probe, SubjectIs, leaves
from overlay.index.skip.prune import Answers, Tally, evaluate
from overlay.kafka.log_position import TopicPartition
from overlay.match import Values
from overlay.subject import Pattern

from .advice import NOTHING, Missing, can_refuse, find_missing
from .strip import MATCHED, READ, UNINDEXED, Canvas, Strip

Ints = npt.NDArray[np.int64]

FOREIGN_RULE = "no record of the stream"
"""Why chunks are refused before anything is asked of them."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked of a stream. Times in ms since 1970, None for no bound; no patterns stand for all subjects."""

    stream: StreamConfig
    patterns: tuple[Pattern, ...] = ()
    filter: Filter | None = None
    values: Values | None = None
    since: int | None = None
    until: int | None = None

    def derive(self, now: int) -> Conditions:
        return derive(self.stream, self.patterns, self.values, self.filter, now=now, since=self.since, until=self.until)


@dataclass(frozen=True, slots=True, eq=False)
class PartPlan:
    """A partition from the start of its log to its committed end."""

    source: TopicPartition
    first: int
    end: int
    chunks: Chunks
    answers: Answers
    route: Route

    @property
    def unindexed(self) -> tuple[Ints, Ints]:
        """The spans of offsets that no chunk covers: where they begin and end."""
        lows = np.concatenate(([self.first], np.maximum(self.chunks.next_offset, self.first)))
        highs = np.concatenate((self.chunks.first_offset, [self.end]))
        return lows[lows < highs], highs[lows < highs]

    @property
    def unindexed_offsets(self) -> int:
        lows, highs = self.unindexed
        return int((highs - lows).sum())

    def draw(self, name: str, width: int, matched: Canvas | None = None) -> Strip:
        """Its strip. `matched`: as wide, with what passed, where somebody has read it."""
        canvas = Canvas(self.first, self.end, width)
        first, after = self.chunks.first_offset, self.chunks.next_offset
        canvas.paint(READ, self.route.first_offset, self.route.next_offset)
        canvas.paint(UNINDEXED, *self.unindexed)
        if matched is not None:
            canvas.cells = np.maximum(canvas.cells, matched.cells)
        else:
            passed = self.answers.levels == Answer.ALL
            canvas.paint(MATCHED, first[passed], after[passed])
        return Strip(name, canvas.cells)


@dataclass(frozen=True, slots=True)
class Share:
    chunks: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Rule:
    """A question to headers: of how many chunks it was asked, how many it refused or let through, and how many it let be read
    by chance, as far as that can be predicted."""

    text: str
    asked: int
    refused: int
    passed: int
    false_positives: float


@dataclass(frozen=True, slots=True)
class Explanation:
    """`shares` by the planner's answer. `reading`: what the route reads of chunks, which may be more than what is not NO."""

    wanted: Wanted
    parts: tuple[PartPlan, ...] = field(repr=False)
    shares: Mapping[Answer, Share]
    rules: tuple[Rule, ...]
    reading: Share
    requests: int
    skips: bool
    """False where everything is read in a row, because skipping saves nothing or too little."""
    unindexed: int
    """Offsets that no header covers; they are read."""
    outdated: int
    """Chunks whose headers were not made from the config of today."""
    weakness: float
    """The mean share of absent terms that the filters of MAYBE chunks let through."""
    seconds: float | None
    """None where there is no header to tell how large the log is."""
    scan_seconds: float | None
    missing: Missing
    can_refuse: bool
    """Whether headers could refuse anything for what is asked."""
    reason: str = ""
    """Why there is no index, where somebody has said."""

    @property
    def chunks(self) -> int:
        return sum(share.chunks for share in self.shares.values())

    @property
    def false_positives(self) -> float:
        """Chunks that are probably read because of a filter's chance alone."""
        return min(sum(rule.false_positives for rule in self.rules), float(self.shares[Answer.MAYBE].chunks))


def explain(
    wanted: Wanted, partitions: Iterable[tuple[TopicPartition, Chunks, int, int]], now: int, reason: str = ""
) -> Explanation:
    """Plan a reading of everything. `partitions`: chunks, log start and committed end of each; `now`: ms since 1970."""
    conditions = wanted.derive(now)
    parts = [_plan(conditions, *partition) for partition in partitions]
    shares = {answer: _add_up(parts, answer) for answer in Answer}
    rules = _list_rules(conditions, parts)
    reading = Share(*(sum(part.route.saving[i] for part in parts) for i in (0, 1)))
    requests = sum(part.route.saving.gaps + bool(part.route.first_offset.size) for part in parts)
    unindexed = sum(part.unindexed_offsets for part in parts)
    seconds = scan_seconds = None
    covered = sum(part.end - part.first for part in parts) - unindexed
    everything = sum(share.bytes for share in shares.values())
    if covered or not unindexed:
        rest = everything / covered * unindexed if unindexed else 0.0
        seconds = (reading.bytes + rest) / READ_BYTES_S + requests * FETCH_S
        scan_seconds = (everything + rest) / READ_BYTES_S + len(parts) * FETCH_S
    return Explanation(
        wanted,
        tuple(parts),
        shares,
        rules,
        reading,
        requests,
        any(part.route.skips for part in parts),
        unindexed,
        sum(int(np.count_nonzero(~part.chunks.made)) for part in parts),
        _measure(parts),
        seconds,
        scan_seconds,
        NOTHING if wanted.filter is None else find_missing(wanted.stream, wanted.filter, now),
        any(can_refuse(probe) for _, probe in conditions.parts()),
        reason,
    )


def _plan(conditions: Conditions, source: TopicPartition, chunks: Chunks, first: int, end: int) -> PartPlan:
    answers = evaluate(conditions, chunks)
    return PartPlan(source, first, end, chunks, answers, plan(answers, chunks, first, end))


def _add_up(parts: Iterable[PartPlan], answer: Answer) -> Share:
    chunks = size = 0
    for part in parts:
        found = part.answers.levels == answer
        chunks += int(np.count_nonzero(found))
        size += int(part.chunks.bytes[found].sum())
    return Share(chunks, size)


def _list_rules(conditions: Conditions, parts: Iterable[PartPlan]) -> tuple[Rule, ...]:
    """Every question that was asked of some chunk, in the order of the conditions."""
    parts = list(parts)
    foreign = sum(int(np.count_nonzero(part.chunks.current & (part.chunks.addressed == 0))) for part in parts)
    rules = [Rule(FOREIGN_RULE, sum(len(part.chunks) for part in parts), foreign, 0, 0.0)] if foreign else []
    for leaf in dict.fromkeys(leaf for _, probe in conditions.parts() for leaf in leaves(probe)):
        tallies = [(part, part.answers.tallies[leaf]) for part in parts if leaf in part.answers.tallies]
        if tallies:
            asked, refused, passed = (
                sum(getattr(tally, name) for _, tally in tallies) for name in ("asked", "refused", "passed")
            )
            chance = sum(_predict(leaf, part, tally) for part, tally in tallies)
            rules.append(Rule(str(leaf), asked, refused, passed, chance))
    rules = [rule for rule in rules if rule.asked]
    return tuple(rules)


def _predict(leaf: Probe, part: PartPlan, tally: Tally) -> float:
    """How many chunks of a partition a filter lets through by chance; see above."""
    if not isinstance(leaf, Has | SubjectIs) or not tally.refused:
        return 0.0
    share = _find_weakness([part])
    known = share[share < 1]
    p = float(known.mean()) if known.size else 0.0
    return tally.refused * p / (1 - p)


def _find_weakness(parts: Iterable[PartPlan]) -> npt.NDArray[np.float64]:
    """The false positives of the filters of all MAYBE chunks."""
    found = [part.chunks.false_positives(part.answers.levels == Answer.MAYBE) for part in parts]
    return np.concatenate(found) if found else np.empty(0)


def _measure(parts: Iterable[PartPlan]) -> float:
    share = _find_weakness(parts)
    return float(share.mean()) if share.size else 0.0
