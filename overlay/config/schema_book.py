"""The schemas of a stream that are known so far, and the ids that a schema registry does not know. No IO.

A stream whose schemas come from a registry meets ids that it does not know. Each such id is settled
before its records are decoded: the registry has the schema, or it says that there is none. The book
has what is settled. All readers of the stream in a process share it, so each id is asked for once.

Producers can write any id into their records. So the book limits what ids can cost: how many are
asked for in a minute, how many schemas are kept, and how many unknown ids are remembered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

MOST_SCHEMAS = 1_000
"""Most schemas of one stream."""
MOST_UNKNOWN = 10_000
"""Most unknown ids that are remembered. Beyond that, those that were settled first are forgotten."""
ASKED_A_MINUTE = 120
"""Ids that a stream asks for in a minute. After a quiet minute as many may be asked for at once."""
AGAIN_S = (10.0, 3_600.0)
"""Seconds after which an unknown id is asked for once more: at first, and at most. They double each time."""


class SchemaBook:
    """What is known of the ids of one stream's schemas. `folder`: where the schemas are kept as files; None to keep
    them in memory alone. Times are monotonic seconds.

    Two books are equal: what a process has asked for is no part of a config. For threads: each method
    is one change of one attribute.
    """

    def __init__(self, schemas: Mapping[int, Any], folder: Path | None) -> None:
        self.folder = folder
        self._known: Mapping[int, Any] = MappingProxyType(dict(schemas))
        self._unknown: dict[int, tuple[int, float]] = {}
        # full at the first question, whatever the clock shows
        self._turns, self._refilled = float(ASKED_A_MINUTE), 0.0
        self._asking: dict[str, object] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SchemaBook)

    def __hash__(self) -> int:
        return hash(SchemaBook)

    def __reduce__(self) -> tuple[type[SchemaBook], tuple[dict[int, Any], Path | None]]:
        return SchemaBook, (dict(self._known), self.folder)

    def __deepcopy__(self, memo: object) -> SchemaBook:
        return self

    @property
    def known(self) -> Mapping[int, Any]:
        """The schemas by id. A new object if there is a new one; one that was returned never changes."""
        return self._known

    @property
    def is_full(self) -> bool:
        """Whether no more schemas are taken up."""
        return len(self._known) >= MOST_SCHEMAS

    def add(self, id: int, schema: Any) -> None:
        """Take up the schema of an id."""
        self._known = MappingProxyType({**self._known, id: schema})
        self._unknown.pop(id, None)

    def note_unknown(self, id: int, now: float) -> float:
        """Record that there is no schema of this id that can be used. Return the seconds after which the id is open
        again.
        """
        times = self._unknown.pop(id, (0, 0.0))[0]
        pause = min(AGAIN_S[0] * 2.0 ** min(times, 20), AGAIN_S[1])
        self._unknown[id] = times + 1, now + pause
        while len(self._unknown) > MOST_UNKNOWN:
            self._unknown.pop(next(iter(self._unknown)))
        return pause

    def list_open(self, ids: Iterable[int], now: float) -> list[int]:
        """Return those of the ids that are not settled: that were not asked for, or whose next question is due."""
        known, unknown = self._known, self._unknown
        return [id for id in ids if id not in known and unknown.get(id, (0, now))[1] <= now]

    def take_turn(self, now: float) -> float:
        """Return 0 if a question may be sent now, and count it; else the seconds until one may."""
        self._turns = min(self._turns + (now - self._refilled) * ASKED_A_MINUTE / 60, float(ASKED_A_MINUTE))
        self._refilled = now
        if self._turns >= 1:
            self._turns -= 1
            return 0.0
        return (1 - self._turns) * 60 / ASKED_A_MINUTE

    def claim(self, asker: object) -> bool:
        """Return whether `asker` is the one that asks, until it calls `release`. Others wait for what it learns."""
        return self._asking.setdefault("asker", asker) is asker

    def release(self, asker: object) -> None:
        """Let another asker ask. Does nothing if `asker` is not the one that asks."""
        if self._asking.get("asker") is asker:
            del self._asking["asker"]
