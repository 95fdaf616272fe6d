"""What the sql bench asks for: flights from one airport that left late, as SQL, as a Python test, and as a count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow.compute as pc

from bench.dataset import Dataset
from bench.sides import Work
from overlay.config.values import ValuesConfig

HEADERS: Mapping[str, Mapping[str, str]] = {
    "origin": {"type": "string", "from": "{header:origin}"},
    "dep_delay": {"type": "long", "from": "{header:dep_delay}"},
}
JSON: Mapping[str, Mapping[str, str]] = {
    "origin": {"type": "string", "from": "{value:origin}"},
    "dep_delay": {"type": "long", "from": "{value:dep_delay}"},
}
"""The same properties, read from headers or from the value."""


@dataclass(frozen=True, slots=True)
class Late:
    """Flights from `origin` that left more than `delay` minutes late; before their time where it is negative."""

    origin: str
    delay: int

    @property
    def sql(self) -> str:
        return f"origin = '{self.origin}' AND dep_delay > {self.delay}"


@dataclass(frozen=True, slots=True)
class Sifting:
    """Read the records of `work` and count those that pass, for each of `filters`; one scan for all of them.

    `work.pattern` is for systems that filter by subject instead. `values`: their format. `as_json`: the same records with
    JSON values, for a side that reads these.
    """

    work: Work
    filters: tuple[Late, ...]
    properties: Mapping[str, Mapping[str, str]]
    values: ValuesConfig
    as_json: Work

    def shorten(self, work: Work, as_json: Work) -> Sifting:
        """The same of other records."""
        return replace(self, work=work, as_json=as_json)


def count_late(dataset: Dataset, filters: Sequence[Late], records: int) -> int:
    """How many of the first `records` records pass, summed over the filters: from the data set alone."""

    def count(rows: int) -> int:
        table = dataset.table.slice(0, rows)
        passes = (
            pc.and_(pc.equal(table["origin"], late.origin), pc.greater(table["dep_delay"], late.delay))
            for late in filters
        )
        return sum(pc.sum(mask).as_py() or 0 for mask in passes)

    return dataset.count_repeated(count, records)
