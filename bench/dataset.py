"""The data of all benches: flights in a topic per codec, published once, and the counts that every filter must give."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from bench.errors import WrongAnswer
from bench.sides import Tally, Work
from overlay.local import flights
from overlay.subject import Matcher, Pattern

CODECS = ("none", "lz4", "zstd")
SELECTIVITIES = {"0.1%": "flights.JFK.HNL.HA", "33%": "flights.JFK.>", "100%": "flights.>"}
"""A daily flight to Honolulu (342 of 336,776, spread over the year), everything out of JFK (111,279), everything."""
WARM_UP_RECORDS = 2_000


@dataclass(frozen=True, slots=True)
class Dataset:
    """The flights `scale` times over, on one broker."""

    bootstrap: str
    table: pa.Table
    subjects: pa.Array
    scale: float
    prefix: str
    """Topics of one run, also on a broker that others use."""

    @property
    def records(self) -> int:
        return flights.count_records(self.table, self.scale)

    def publish(
        self,
        codec: str,
        progress: Callable[[int], None] | None = None,
        *,
        form: str = "json",
        encode: Callable[[bytes], bytes] | None = None,
    ) -> None:
        """Fill the codec's two topics: the one to measure and a small one to warm up on.

        `form`: the format of the values, for the topics' names; `encode` makes it of JSON.
        """
        name, scale = self._name(codec, form), WARM_UP_RECORDS / self.table.num_rows
        flights.publish(self.bootstrap, name, self.scale, codec, progress, table=self.table, encode=encode)
        flights.publish(self.bootstrap, f"{name}-warm-up", scale, codec, table=self.table, encode=encode)

    def plan(self, codec: str, pattern: str, form: str = "json") -> Work:
        return Work(self.bootstrap, self._name(codec, form), self.records, pattern)

    def plan_warm_up(self, codec: str, form: str = "json") -> Work:
        return Work(self.bootstrap, f"{self._name(codec, form)}-warm-up", WARM_UP_RECORDS, SELECTIVITIES["33%"])

    def _name(self, codec: str, form: str) -> str:
        return f"{self.prefix}-{codec}" + (f"-{form}" if form != "json" else "")

    def count(self, pattern: str, records: int) -> int:
        """How many of the first `records` records match: from the data set alone, without Kafka."""
        return self.count_repeated(lambda rows: _count(self.subjects.slice(0, rows), pattern), records)

    def count_repeated(self, count: Callable[[int], int], records: int) -> int:
        """What `count` says of the first rows of the data set, for as many records as repeat it."""
        wraps, rest = divmod(records, self.table.num_rows)
        return (wraps * count(self.table.num_rows) if wraps else 0) + count(rest)

    def check(self, side: str, work: Work, tally: Tally) -> None:
        """Raises WrongAnswer when a side did not read what it says or did not find what is there."""
        if not 0 < tally.records <= work.records:
            raise WrongAnswer(f"{side} on {work.topic}: read {tally.records} records, {work.records} are there")
        expected = self.count(work.pattern, tally.records)
        if tally.matched is not None and tally.matched != expected:
            raise WrongAnswer(
                f"{side} on {work.topic}: {tally.matched} of {tally.records} records match {work.pattern},"
                f" the data set says {expected}. Run this side alone (--only) to look into it"
            )


def load(bootstrap: str, scale: float) -> Dataset:
    """Read the data set. Raises FlightsError."""
    table = flights.read_flights()
    return Dataset(bootstrap, table, flights.subjects(table), scale, f"flights-{uuid.uuid4().hex[:8]}")


def _count(subjects: pa.Array, pattern: str) -> int:
    matcher = Matcher([(Pattern(pattern), 0)])
    found: list[int] = [row["counts"] for row in pc.value_counts(subjects).to_pylist() if matcher.match(row["values"])]
    return sum(found)
