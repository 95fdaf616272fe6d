"""num_pending from chunk headers: how many records of a consumer's subjects are ahead, without
reading where possible.

A chunk that is wholly inside the range and whose header counts subjects gives its number at once.
If all subjects are wanted, every header that was made with the stream's current subjects does,
since it says how many of its records have one. A chunk whose Bloom filter rules the subjects out
gives 0. The caller has to read and count all others: chunks that a bound of the range cuts
(retention, a consumer's position), chunks without known counts, and offsets without a header.

The count of a chunk is exact if no offset was missing when it was sealed. If offsets are missing,
the topic may be compacted and may lose more records that the header has counted. Then the sum is an
estimate (docs/consumers.md#what-lies-ahead-num_pending). If an exact answer is needed, do not ask
for a compacted topic: a header does not learn what the topic loses later.

Only subjects count, as in JetStream: a record that the consumer's filter or filter values refuse is
pending until the consumer passes it. `count_pending` looks at every chunk ahead. A caller that asks
again and again keeps a Backlog (backlog.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from overlay.arrays import Flags, Ints
from overlay.config.stream import StreamConfig
from overlay.index.skip.chunks import Chunks
from overlay.index.skip.derive import derive_subjects
from overlay.index.skip.plan import Span, plan
from overlay.index.skip.probes import Answer, Everything, Part
from overlay.index.skip.prune import Answers, might_match
from overlay.subject import Pattern
from overlay.subject.pattern import REST

from .counts import Choice

EVERYTHING = (Pattern(REST),)


@dataclass(frozen=True, slots=True)
class Pending:
    """Pending records of a consumer: how many chunk headers count, and the ranges `to_scan`, whose
    records the caller has to read and count.
    """

    count: int
    is_exact: bool
    """Whether `count` is exact. The total is exact too if the records in `to_scan` are counted."""
    to_scan: tuple[Span, ...]


def simplify(stream: StreamConfig, patterns: Sequence[Pattern]) -> tuple[Pattern, ...]:
    """Return the patterns, or EVERYTHING (one pattern `>`) if `derive_subjects` finds that they
    match all subjects of the stream. Every chunk header has the number of records for `>`, also
    without counts by subject.
    """
    return EVERYTHING if derive_subjects(stream, patterns) == Everything() else tuple(patterns)


class Teller:
    """Counts records whose subject matches one of `patterns`, by the chunk headers of one partition."""

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        self._patterns = tuple(patterns)
        self._choice = None if Pattern(REST) in patterns else Choice(patterns)

    def count(self, chunks: Chunks, low: int, high: int) -> tuple[Ints, Flags]:
        """Return for each chunk low <= row < high how many matching records it had when it was
        sealed, and whether that is known. Where it is not known, the number means nothing.
        """
        if self._choice is None:
            return chunks.addressed[low:high], chunks.current[low:high]
        counts, known = chunks.count_subjects(self._choice, low, high), chunks.counted[low:high]
        if not known.all():
            among = np.zeros(len(chunks), np.bool_)
            among[low:high] = ~known
            known = known | ~might_match(chunks, self._patterns, among)[low:high]
        return counts, known


def count_pending(chunks: Chunks, patterns: Sequence[Pattern], first: int, end: int) -> Pending:
    """Count the records with first <= offset < end whose subject matches one of the patterns (as
    `simplify` returned them), by chunk headers alone. Nothing is read: the result lists the ranges
    that no header can count.

    `first`: the consumer's next offset, or the log start if that is higher. `end`: the last stable
    offset.
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
