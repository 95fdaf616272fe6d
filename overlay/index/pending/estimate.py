"""How many records of a consumer's subjects lie ahead: num_pending from chunk headers, without reading where that is possible.

A chunk that lies wholly within the range and whose header counts subjects gives its number at once; where all subjects are
wanted every header does, for it says how many of its records have one. A chunk whose Bloom filter refuses gives 0. All
others have to be read and counted by whoever asks: those that the range cuts through (retention, a consumer's position),
those with too many subjects to be counted, and what has no header.

A count is exact for a chunk that has kept all of its records. Where offsets are missing within a chunk, the topic may be
compacted, and go on losing records that the header has counted: then the sum is an estimate (design, section 5). A
topic that is compacted must not be asked when an exact answer is needed: a header does not learn what it loses later.

Only subjects count, as in JetStream: what a consumer's filter or its filter values refuse is pending until it is passed.
`count_pending` looks at every chunk ahead. Who asks again and again keeps a Backlog (backlog.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from overlay.config.stream import StreamConfig
from overlay.index.skip.chunks import Chunks
from overlay.index.skip.derive import derive_subjects
from overlay.index.skip.plan import Span, plan
from overlay.index.skip.probes import Answer, Everything, Part
from overlay.index.skip.prune import Answers, Flags, Ints, might_match
from overlay.subject import Pattern
from overlay.subject.pattern import REST

from .counts import Choice

EVERYTHING = (Pattern(REST),)


@dataclass(frozen=True, slots=True)
class Pending:
    """`count` of the records that headers tell of; those in `to_scan` come on top."""

    count: int
    is_exact: bool
    """Whether `count` is exact. The whole is, when what `to_scan` holds has been counted as well."""
    to_scan: tuple[Span, ...]


def simplify(stream: StreamConfig, patterns: Sequence[Pattern]) -> tuple[Pattern, ...]:
    """The patterns, or EVERYTHING where they take in all that the stream has, which every header can count."""
    return EVERYTHING if derive_subjects(stream, patterns) == Everything() else tuple(patterns)


class Teller:
    """Counts the records of some subjects chunk by chunk, for the chunks of one partition."""

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        self._patterns = tuple(patterns)
        self._choice = None if Pattern(REST) in patterns else Choice(patterns)

    def count(self, chunks: Chunks, low: int, high: int) -> tuple[Ints, Flags]:
        """Records of the chunks low <= row < high, as they were sealed, and where that is known."""
        if self._choice is None:
            return chunks.addressed[low:high], chunks.current[low:high]
        counts, known = chunks.count_subjects(self._choice, low, high), chunks.counted[low:high]
        if not known.all():
            among = np.zeros(len(chunks), np.bool_)
            among[low:high] = ~known
            known = known | ~might_match(chunks, self._patterns, among)[low:high]
        return counts, known


def count_pending(chunks: Chunks, patterns: Sequence[Pattern], first: int, end: int) -> Pending:
    """Records with first <= offset < end whose subject matches one of the patterns; see `simplify`.

    `first`: the consumer's next offset, or the log's start where that is higher. `end`: the last stable offset.
    """
    low = int(np.searchsorted(chunks.next_offset, first, side="right"))
    high = max(int(np.searchsorted(chunks.first_offset, end)), low)
    part = slice(low, high)
    counts, known = Teller(patterns).count(chunks, low, high)
    is_counted = known & (chunks.first_offset[part] >= first) & (chunks.next_offset[part] <= end)
    levels = np.full(len(chunks), Answer.MAYBE, np.int8)
    levels[part][is_counted | (known & (counts == 0))] = Answer.NO
    left = Answers(levels, np.full(len(chunks), Part.SUBJECT, np.uint8), Part.SUBJECT)
    return Pending(
        int(counts[is_counted].sum()),
        bool((chunks.exact[part] | (counts == 0))[is_counted].all()),
        tuple(plan(left, chunks, first, end, exactly=True)),
    )
