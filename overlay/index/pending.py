"""How many records of a consumer's subjects lie ahead: num_pending from subject counts, without reading where that is possible.

A chunk that lies wholly within the range and whose header counts subjects gives its number at once. One that its header refuses
gives 0. All others have to be read and counted by whoever asks: those that the range cuts through (retention, a
consumer's position), those with too many subjects to be counted, and what has no header.

A count is exact for a chunk that has kept all of its records. Where offsets are missing within a chunk, the topic may be
compacted, and go on losing records that the header has counted: then the sum is an estimate (design, section 5).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from overlay.subject import Matcher, Pattern

from .plan import Span, plan
from .probes import Answer, Conditions, Part, SubjectIs
from .prune import Answers, Chunks, evaluate


@dataclass(frozen=True, slots=True)
class Pending:
    """`count` of the records that headers tell of; those in `to_scan` come on top."""

    count: int
    is_exact: bool
    """Whether `count` is exact. The whole is, when what `to_scan` holds has been counted as well."""
    to_scan: tuple[Span, ...]


def count_pending(chunks: Chunks, patterns: Sequence[Pattern], first: int, end: int) -> Pending:
    """Records with first <= offset < end whose subject matches one of the patterns.

    `first`: the consumer's next offset, or the log's start where that is higher. `end`: the last stable offset. A topic that
    is compacted must not be asked when an exact answer is needed.
    """
    answers = evaluate(Conditions(subject=SubjectIs(tuple(patterns))), chunks)
    counts, known = chunks.subject_counts(Matcher([(pattern, 0) for pattern in patterns]))
    is_whole = (chunks.first_offset >= first) & (chunks.next_offset <= end)
    is_counted = is_whole & known
    levels = np.where(is_counted, np.int8(Answer.NO), answers.levels)
    left = Answers(levels, np.full(len(chunks), Part.SUBJECT, np.uint8), Part.SUBJECT)
    return Pending(
        int(counts[is_counted].sum()),
        bool((chunks.exact | (counts == 0))[is_counted].all()),
        tuple(plan(left, chunks, first, end, exactly=True)),
    )
