"""Counts of records by subject from chunk headers: what need not be read to count.

A header answers for its chunk if the chunk is wholly inside the range, if its counts by subject are
known, if no offset was missing when it was sealed, and if all its records pass whatever else is
asked: filter, filter values, offsets and times. A chunk of which no record can pass answers with
zero, also where a bound cuts it. All other offsets have to be read and counted: chunks without
known counts, chunks with missing offsets, chunks whose records may pass only in part, cut ones, and
offsets without a header.

A topic that is compacted now may lose records that a header has counted, so there only refusals
hold. They hold in any case, since compaction adds nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from overlay.index.skip.chunks import Chunks
from overlay.index.skip.plan import plan
from overlay.index.skip.probes import Answer, Conditions, Part
from overlay.index.skip.prune import Answers, evaluate
from overlay.subject import Pattern

from .counts import Choice

_BESIDE = Part.VALUES | Part.FILTER | Part.WINDOW
"""What a record has to pass besides its subject, which counts by subject know nothing of."""


@dataclass(frozen=True, slots=True)
class SubjectTally:
    """The records of a range of a partition by subject, as far as chunk headers tell.

    `counts`: records by subject, only subjects that have some. `to_read`: the ranges of offsets
    (first, next) whose records the caller has to read and count, rising, with gaps between them.
    `answered`, `unanswered`: how many chunks of the range headers have answered for, and how many
    have to be read. `uncovered`: how many offsets have no header, and have to be read too.
    """

    counts: Mapping[str, int]
    to_read: tuple[tuple[int, int], ...]
    answered: int
    unanswered: int
    uncovered: int

    @property
    def offsets_to_read(self) -> int:
        return sum(after - first for first, after in self.to_read)


def count_by_subject(
    conditions: Conditions,
    patterns: Sequence[Pattern],
    chunks: Chunks,
    first: int,
    end: int,
    *,
    compacted: bool,
) -> SubjectTally:
    """Count the records with first <= offset < end by subject, by chunk headers alone.

    `conditions`: all that a record has to pass; its condition on subjects is that one of `patterns`
    matches. `compacted`: whether the topic is compacted now. If so, headers only rule chunks out,
    and `counts` of the result is empty.
    """
    low = int(np.searchsorted(chunks.next_offset, first, side="right"))
    high = max(int(np.searchsorted(chunks.first_offset, end)), low)
    part = slice(low, high)
    found = evaluate(conditions, chunks)
    is_refused = found.levels[part] == Answer.NO
    is_whole = (chunks.first_offset[part] >= first) & (chunks.next_offset[part] <= end)
    passes = (found.residual[part] & np.uint8(_BESIDE)) == 0
    is_counted = chunks.counted[part] & chunks.exact[part] & is_whole & passes & ~is_refused & (not compacted)
    is_answered = is_counted | is_refused
    levels = np.full(len(chunks), Answer.MAYBE, np.int8)
    levels[part][is_answered] = Answer.NO
    route = plan(Answers(levels, found.residual, found.asked), chunks, first, end, exactly=True)
    spans = _join((span.first_offset, span.next_offset) for span in route)
    starts = np.maximum(chunks.first_offset[part], first)
    covered = int((np.minimum(chunks.next_offset[part], end) - starts).sum())
    return SubjectTally(
        chunks.sum_subjects(Choice(patterns), is_counted, low, high),
        spans,
        int(np.count_nonzero(is_answered)),
        int(np.count_nonzero(~is_answered)),
        max(end - first, 0) - covered,
    )


def _join(spans: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return rising ranges with those that touch made one."""
    joined: list[tuple[int, int]] = []
    for first, after in spans:
        if joined and joined[-1][1] == first:
            first = joined.pop()[0]
        joined.append((first, after))
    return tuple(joined)
