"""The expected content of the output topics, from the data set alone, and its comparison. Pure.

The flights are in one partition of their own topic, published in order by one producer. So the row
number of a record is its offset, and its stream sequence is the row number + 1. That makes the
check exact: it knows not only how many records of each subject an output must have, but which ones,
in which order. Subjects are selected by regular expressions, not by the service's matcher. The
selections of SQL filters are written in pandas (selection.py).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from overlay.arrays import Flags, Ints

_SHOWN = 3


@dataclass(frozen=True, slots=True, eq=False)
class Content:
    """The records of an output topic: counts by subject, and stream sequences in topic order."""

    counts: Counter[str]
    sequences: Ints

    @property
    def total(self) -> int:
        return self.sequences.size


def expect(subjects: pa.Array, filters: Sequence[str], records: int, selected: Flags | None = None) -> Content:
    """Return what a consumer with these filters must receive of `records` records.

    The records repeat the rows with these subjects. `selected`: the rows that the consumer's SQL
    filter selects, None for all.
    """
    selects = re.compile("|".join(_spell_pattern(text) for text in filters or [">"]))
    distinct = [subject for subject in pc.unique(subjects).to_pylist() if selects.fullmatch(subject)]
    wanted = pc.is_in(subjects, pa.array(distinct, pa.string())).to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(wanted if selected is None else wanted & selected)
    rounds = -(-records // len(subjects))
    all_rows = (np.arange(rounds)[:, None] * len(subjects) + rows).ravel()
    all_rows = all_rows[all_rows < records]
    counted = pc.value_counts(subjects.take(pa.array(all_rows % len(subjects)))).to_pylist()
    return Content(Counter({entry["values"]: entry["counts"] for entry in counted}), all_rows + 1)


def _spell_pattern(text: str) -> str:
    tokens = {"*": r"[^.]+", ">": ".+"}
    return r"\.".join(tokens.get(token) or re.escape(token) for token in text.split("."))


def compare(wanted: Content, found: Content) -> list[str]:
    """Return the faults of an output, a sentence each.

    The list is empty if the output has exactly the expected content.
    """
    faults = []
    for word, difference in (("missing", wanted.counts - found.counts), ("too many", found.counts - wanted.counts)):
        if difference:
            some = ", ".join(f"{subject} ({count:,})" for subject, count in difference.most_common(_SHOWN))
            faults.append(f"{difference.total():,} records {word} by their subjects: {some}")
    distinct = np.unique(found.sequences)
    if twice := found.total - distinct.size:
        faults.append(f"{twice:,} records are there more than once")
    for word, strange in (
        ("missing", np.setdiff1d(wanted.sequences, distinct)),
        ("not among those selected", np.setdiff1d(distinct, wanted.sequences)),
    ):
        if strange.size:
            some = ", ".join(map(str, strange[:_SHOWN]))
            faults.append(f"{strange.size:,} stream sequences are {word}: {some}")
    if (np.diff(found.sequences) < 0).any():
        faults.append("records are out of order")
    return faults
