"""The subjects of a growing chunk: records per subject, and the bounds of their timestamps."""

from __future__ import annotations

import numpy as np

from overlay.arrays import Int32s, Ints
from overlay.kernels import kernel
from overlay.subject.dictionary import Codes

from .chunk_header import MAX_SUBJECTS, NO_TIME, is_countable
from .contents import Vocabulary
from .term_set import TermSet

_NO_MIN = 1 << 62


class SubjectCounts:
    """Counts the records of a growing chunk by subject, and keeps the bounds of their timestamps.
    It takes codes of one vocabulary after the other, so subjects may get new codes in between.

    Not for two threads at once.
    """

    def __init__(self) -> None:
        self.addressed = 0
        """Records with a subject in the stream."""
        self._times = np.array([_NO_MIN, -1], np.int64)
        self._vocabulary: Vocabulary | None = None
        self._counts = np.zeros(0, np.int64)
        self._seen = np.empty(0, np.int32)
        self._distinct = 0
        self._earlier: dict[str, int] | None = {}

    def clear(self) -> None:
        """Forget all counts and times, for a new chunk. The memory is reused."""
        self._forget_codes()
        self.addressed = 0
        self._times[:] = _NO_MIN, -1
        self._earlier = {}

    def _forget_codes(self) -> None:
        self._counts[self._seen[: self._distinct]] = 0
        self._distinct = 0

    def add(self, codes: Codes, times: Ints, vocabulary: Vocabulary, terms: TermSet) -> None:
        """Count records, given by subject code (negative: no subject in the stream) and timestamp
        (ms). If the vocabulary is a new one, first add the terms of the subjects counted so far to
        `terms`.
        """
        if vocabulary is not self._vocabulary:
            self.put(terms)
            self._earlier = self.count()
            self._forget_codes()
            self._vocabulary = vocabulary
        known = len(vocabulary.subjects)
        if known > self._counts.size:
            counts, seen = np.zeros(2 * known, np.int64), np.empty(2 * known, np.int32)
            counts[: self._counts.size], seen[: self._seen.size] = self._counts, self._seen
            self._counts, self._seen = counts, seen
        self._distinct, added = _tally(codes, times, self._counts, self._seen, self._distinct, self._times)
        self.addressed += added

    def put(self, terms: TermSet) -> None:
        """Add the terms of the subjects counted under the current vocabulary to `terms`."""
        if self._vocabulary is not None:
            self._vocabulary.put(self._seen[: self._distinct], terms)

    def count(self) -> dict[str, int] | None:
        """Return the number of records by subject; None for more than MAX_SUBJECTS subjects or
        MAX_SUBJECT_CHARS characters.
        """
        if self._earlier is None or self._distinct > MAX_SUBJECTS:
            return None
        counts = dict(self._earlier)
        if self._vocabulary is not None:
            for code in self._seen[: self._distinct].tolist():
                subject = self._vocabulary.subjects[code]
                counts[subject] = counts.get(subject, 0) + int(self._counts[code])
        return counts if is_countable(counts) else None

    @property
    def times(self) -> tuple[int, int]:
        """Return the smallest and the largest timestamp in ms since 1970; NO_TIME if a record has
        none, or if there is no record.
        """
        low, high = self._times.tolist()
        return (low, high) if 0 <= low < _NO_MIN else (NO_TIME, NO_TIME)


@kernel
def _tally(codes: Codes, times: Ints, counts: Ints, seen: Int32s, distinct: int, bounds: Ints) -> tuple[int, int]:
    """Add records to `counts` (by code), codes that are new to `seen` (of which `distinct` items
    are in use), and timestamps to `bounds` (min, max). Return how many codes `seen` has now, and
    how many of the records have a subject.
    """
    addressed = 0
    low, high = bounds[0], bounds[1]
    for row in range(codes.size):
        code = codes[row]
        low, high = min(low, times[row]), max(high, times[row])
        if code < 0:
            continue
        addressed += 1
        if counts[code] == 0:
            seen[distinct] = code
            distinct += 1
        counts[code] += 1
    bounds[0], bounds[1] = low, high
    return distinct, addressed
