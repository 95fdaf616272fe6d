"""The cost of reading a stream for some conditions, and its reasons, from chunk headers alone.

It is what EXPLAIN is in a database. The planner itself is asked (overlay/index/skip: derive, prune,
plan), so the explanation shows what a reader does. Added are sums over partitions, the part of the
log that no header covers, and two predictions:

- Time, by the cost model of index/skip/plan.py: compressed bytes at READ_BYTES_S, and FETCH_S for
  each request that a gap costs. The part without headers is assumed to be as large per offset as
  the rest.
- False positives of Bloom filters. A filter that lets a share p of absent terms through lets n
  chunks pass by chance while it refuses n * (1 - p) / p. So n is estimated from the refusals:
  refused * p / (1 - p). For wildcards this counts one term. That usually is too high, since all
  terms of a pattern must be found.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from overlay.arrays import Doubles, Ints
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

FOREIGN_RULE = "no record of the stream"
"""The rule by which chunks without records of the stream are refused, before any probe."""


@dataclass(frozen=True, slots=True)
class ReadConditions:
    """What a reader asks of a stream.

    Times are ms since 1970, None for no bound. No patterns means all subjects.
    """

    stream: StreamConfig
    patterns: tuple[Pattern, ...] = ()
    filter: Filter | None = None
    values: Values | None = None
    since: int | None = None
    until: int | None = None

    def derive(self, now: int) -> Conditions:
        """Return what chunk headers are asked under these conditions. `now`: ms since 1970."""
        return derive(self.stream, self.patterns, self.values, self.filter, now=now, since=self.since, until=self.until)


@dataclass(frozen=True, slots=True, eq=False)
class PartPlan:
    """The plan of a read of one partition: each chunk's answer, and the spans of offsets to read.

    It covers first <= offset < end: from the start of the log to its last stable offset.
    """

    source: TopicPartition
    first: int
    end: int
    chunks: Chunks
    answers: Answers
    route: Route

    @property
    def unindexed(self) -> tuple[Ints, Ints]:
        """The offset ranges that no chunk covers, as int64 arrays of their first offsets and of the
        offsets after their last.
        """
        lows = np.concatenate(([self.first], np.maximum(self.chunks.next_offset, self.first)))
        highs = np.concatenate((self.chunks.first_offset, [self.end]))
        return lows[lows < highs], highs[lows < highs]

    @property
    def unindexed_offsets(self) -> int:
        lows, highs = self.unindexed
        return int((highs - lows).sum())

    def draw(self, name: str, width: int, matched: Canvas | None = None) -> Strip:
        """Return the partition's strip of at most `width` cells. `name`: printed before it.

        `matched`: a canvas of the same width with the records that passed. Without it, the chunks
        whose records all pass count as matched.
        """
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
    """A part of the chunks, with their number and their compressed bytes."""

    chunks: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Rule:
    """A probe of chunk headers, and its effect.

    `asked`: chunks it was evaluated for. `refused`: those with the answer NO, where no record
    passes. `passed`: those with the answer ALL, where every record does. `false_positives`:
    predicted number of chunks that are read only because a Bloom filter wrongly said that they may
    hold a term.
    """

    text: str
    asked: int
    refused: int
    passed: int
    false_positives: float


@dataclass(frozen=True, slots=True)
class Explanation:
    """The plan of a read and its predicted cost.

    `shares`: chunks and bytes by the planner's answer. `reading`: what the route reads of the
    chunks. It may read refused chunks too, if skipping them does not pay.
    """

    wanted: ReadConditions
    parts: tuple[PartPlan, ...] = field(repr=False)
    shares: Mapping[Answer, Share]
    rules: tuple[Rule, ...]
    reading: Share
    requests: int
    skips: bool
    """False if everything is read in a row, because skipping saves nothing or too little."""
    unindexed: int
    """Offsets that no header covers; the reader reads them."""
    outdated: int
    """Chunks whose headers were made from an older config."""
    weakness: float
    """Mean share of absent terms that the Bloom filters of MAYBE chunks let through."""
    seconds: float | None
    """Predicted seconds of the read; None if there is no header to estimate the log's size from."""
    scan_seconds: float | None
    """Predicted seconds to read everything; None if `seconds` is."""
    missing: Missing
    can_refuse: bool
    """Whether any header could refuse a chunk under these conditions."""
    reason: str = ""
    """Why there is no index, if known."""

    @property
    def chunks(self) -> int:
        return sum(share.chunks for share in self.shares.values())

    @property
    def false_positives(self) -> float:
        """Predicted number of chunks read only because of false positives of Bloom filters."""
        return min(sum(rule.false_positives for rule in self.rules), float(self.shares[Answer.MAYBE].chunks))


def explain(
    wanted: ReadConditions, partitions: Iterable[tuple[TopicPartition, Chunks, int, int]], now: int, reason: str = ""
) -> Explanation:
    """Return the plan of a read of the whole log and its predicted cost. Nothing is read here.

    `partitions`: chunks, log start and committed end of each. `now`: ms since 1970. `reason`: why
    there is no index, "" if unknown.
    """
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
    # the part without headers is assumed to be as large per offset as the rest
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
    """Return the number and the bytes of the chunks with this answer, over all partitions."""
    chunks = size = 0
    for part in parts:
        found = part.answers.levels == answer
        chunks += int(np.count_nonzero(found))
        size += int(part.chunks.bytes[found].sum())
    return Share(chunks, size)


def _list_rules(conditions: Conditions, parts: Iterable[PartPlan]) -> tuple[Rule, ...]:
    """Return each probe that was evaluated for some chunk, with its effect over all partitions, in the
    order of the conditions. FOREIGN_RULE, by which chunks without records of the stream are refused,
    comes first if it refused any.
    """
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
    """Return how many chunks of a partition this probe is predicted to let through by chance: refused * p / (1 - p),
    where p is the mean of the false positive rates below 1 that the Bloom filters of the partition's MAYBE chunks
    have. 0 if the probe asks no Bloom filter or has refused nothing.
    """
    if not isinstance(leaf, Has | SubjectIs) or not tally.refused:
        return 0.0
    share = _find_weakness([part])
    known = share[share < 1]
    p = float(known.mean()) if known.size else 0.0
    return tally.refused * p / (1 - p)


def _find_weakness(parts: Iterable[PartPlan]) -> Doubles:
    """Return the false positive rate (0 to 1) of the Bloom filter of each MAYBE chunk; 1 for a chunk
    without a filter.
    """
    found = [part.chunks.false_positives(part.answers.levels == Answer.MAYBE) for part in parts]
    return np.concatenate(found) if found else np.empty(0)


def _measure(parts: Iterable[PartPlan]) -> float:
    """Return the mean false positive rate (0 to 1) of the Bloom filters of all MAYBE chunks, each
    chunk with the same weight. A chunk without a filter counts as 1. 0 if no chunk is MAYBE.
    """
    share = _find_weakness(parts)
    return float(share.mean()) if share.size else 0.0
