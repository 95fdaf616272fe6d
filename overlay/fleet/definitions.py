"""Which consumers there are, by the control topic: its records about consumers folded into rows. Pure.

The control topic is the truth, and workers' statuses come after it: a consumer that was deleted while its
worker died is told of no more, and one that was made by request is in no file. Rows go by Kafka's time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from overlay.control.records import MAX_VALUE, Subject, Unreadable, read_json, split_key
from overlay.state.shard_state import ConsumerId

from .memory import Rows
from .status import Refusal

MOST_DEFINITIONS = 200_000
"""Most rows that are kept, whatever is written to the topic."""
FORGET_MS = 3_600_000
"""How long a deleted consumer is remembered, in ms: as long as what workers have told of it."""
MOST_NAME = 255
_KAFKA_NAME = 249


@dataclass(frozen=True, slots=True)
class Confirmed:
    """Which consumers the control topic has defined. It is compacted and keeps deletions for an hour, so the rows of a fleet
    that was away for longer may be of consumers whose deletion is not there to be read any more.

    `before`: rows from before that are of other consumers are wrong; Kafka's time, ms since 1970.
    """

    consumers: frozenset[ConsumerId]
    before: int

    def may_be(self, row: Mapping[str, Any]) -> bool:
        """Return whether a row may be right."""
        return row.get("deleted", False) or row["seen"] >= self.before or (row["stream"], row["name"]) in self.consumers


@dataclass(slots=True)
class Definitions:
    """The rows, as JSON objects by stream/name: `seen` (Kafka's time, ms since 1970), `deleted`, `by_request`, `served`
    (whether workers deliver it, and no Spark job), and `letters`, the topic of its dead letters or "".
    """

    rows: Rows = field(default_factory=dict)
    refused: Counter[Refusal] = field(default_factory=Counter)
    """How many records were passed over."""
    confirmed: Confirmed | None = None
    """What the topic has defined, for the next `forget`; None if it was not asked."""

    def take(self, key: bytes | None, value: bytes | None, appended: int) -> None:
        """Put a record of the control topic into the rows if it is about how a consumer is defined. Of others, count those
        that cannot be read. Never raises. `appended`: Kafka's time on the record, ms since 1970.
        """
        if len(value or b"") > MAX_VALUE:
            self.refused[Refusal.SIZE] += 1
            return
        try:
            subject, names = split_key(key)
            if subject is not Subject.CONSUMER:
                return
            row = {"deleted": True} if value is None else _read(value)
        except Unreadable:
            self.refused[Refusal.MALFORMED] += 1
            return
        if any(len(name) > MOST_NAME or not name.isprintable() for name in names):
            self.refused[Refusal.MALFORMED] += 1
            return
        id = "/".join(names)
        if id not in self.rows and len(self.rows) >= MOST_DEFINITIONS:
            self.refused[Refusal.LIMIT] += 1
            return
        self.rows[id] = {"stream": names[0], "name": names[1], "seen": appended, **row}

    def forget(self, now: int) -> None:
        """Drop the rows of consumers that were deleted FORGET_MS ago, and those that `confirmed` does not have. `now`: Kafka's
        time, ms since 1970.
        """
        if (confirmed := self.confirmed) is not None:
            self.confirmed = None
            for id in [id for id, row in self.rows.items() if not confirmed.may_be(row)]:
                self.rows.pop(id, None)
        for id in [id for id, row in self.rows.items() if row.get("deleted") and row["seen"] < now - FORGET_MS]:
            self.rows.pop(id, None)

    def list_deleted(self) -> dict[ConsumerId, int]:
        """Return the consumers that were deleted, with Kafka's time of that, ms since 1970."""
        return {(row["stream"], row["name"]): row["seen"] for row in list(self.rows.values()) if row.get("deleted")}

    def list_wanted(self) -> frozenset[ConsumerId]:
        """Return the consumers that were made by request and that workers have to serve."""
        return frozenset(
            (row["stream"], row["name"])
            for row in list(self.rows.values())
            if not row.get("deleted") and row.get("by_request") and row.get("served")
        )

    def list_letter_topics(self) -> set[str]:
        """Return the topics of dead letters that definitions name."""
        return {row["letters"] for row in list(self.rows.values()) if row.get("letters") and not row.get("deleted")}


def _read(value: bytes) -> dict[str, Any]:
    """Return what a row keeps of a definition. Raises Unreadable."""
    body = read_json(value)
    config = body.get("config")
    if not isinstance(config, dict):
        raise Unreadable("a definition without a config")
    letters = config.get("dead_letter")
    named = letters if isinstance(letters, str) and len(letters) <= _KAFKA_NAME and letters.isprintable() else ""
    return {
        "deleted": bool(body.get("deleted")),
        "by_request": body.get("origin") == "request",
        "served": config.get("engine", "service") == "service",
        "letters": named,
    }
