"""Filters for many consumers: subject patterns that each match about the same share of the records (pure)."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pyarrow as pa
import pyarrow.compute as pc


def choose_patterns(subjects: pa.Array, number: int, share: float) -> tuple[str, ...]:
    """Return the patterns that match nearest to `share` of the subjects (0 to 1), the nearest first.

    `number`: how many different ones. Each keeps the first token of a subject, and has a value or `*` for every other.
    """
    counts: Counter[str] = Counter()
    for row in pc.value_counts(subjects).to_pylist():
        first, *tokens = row["values"].split(".")
        for chosen in product(*((token, "*") for token in tokens)):
            counts[".".join((first, *chosen))] += row["counts"]
    wanted = share * len(subjects)
    return tuple(sorted(counts, key=lambda pattern: (abs(counts[pattern] - wanted), pattern))[:number])
