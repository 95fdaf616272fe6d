"""How many advisories and dead letters there were of each consumer, by cause, in windows of time. Pure.

Records of the events topic and of dead-letter topics are counted in memory and put into rows once a second,
so that a storm of them costs a few records of a changelog and not one each. Windows go by Kafka's time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from overlay.kafka.header_names import DEAD_CONSUMER, DEAD_STREAM, REASON

from .memory import Rows
from .status import Refusal

WINDOW_MS = 60_000
KEPT_WINDOWS = 60
"""A row has the counts of the last hour."""
RECENT_WINDOWS = 5
MOST_TALLIES = 20_000
"""Most rows that are kept, whatever is written to the topics."""
MOST_NAME = 255
ADVISORY = "$JS.EVENT.ADVISORY.CONSUMER."
DEAD_LETTER = "dead letter"
OTHER = "other"
"""A reason that no version that is known gives. Causes are labels of a metric, so they are few."""
_REASONS = frozenset({"max_deliver", "term", "undeliverable"})
_TOLD = frozenset(
    {"CREATED", "DELETED", "PAUSE", "MAX_DELIVERIES", "MSG_NAKED", "MSG_TERMINATED", "PINNED", "UNPINNED"}
)

Headers = Sequence[tuple[str, bytes | None]] | Mapping[str, bytes] | None
Tally = tuple[str, str, str]
"""What is counted: stream, consumer and cause."""


@dataclass(slots=True)
class Tallies:
    """The rows, as JSON objects by stream/consumer/cause: `stream`, `consumer`, `cause`, `seen` (the time of the last, ms
    since 1970), and `windows`: counts by the number of the window, as text.
    """

    rows: Rows = field(default_factory=dict)
    refused: Counter[Refusal] = field(default_factory=Counter)
    """How many records were passed over."""
    _new: dict[Tally, Counter[int]] = field(default_factory=dict)
    """What is not in the rows yet, by window."""
    _seen: dict[Tally, int] = field(default_factory=dict)

    def take_event(self, key: bytes | None, appended: int, now: int) -> None:
        """Count a record of the events topic if it is an advisory of a consumer. Other events are left out: samples are no
        advisories, and findings are this process's own. Never raises. `appended`: Kafka's time on it; `now`: the reader's;
        both ms since 1970.
        """
        try:
            subject = (key or b"").decode()
        except UnicodeDecodeError:
            self.refused[Refusal.MALFORMED] += 1
            return
        if not subject.startswith(ADVISORY):
            return
        kind, *names = subject.removeprefix(ADVISORY).split(".", 2)
        if kind not in _TOLD or len(names) != 2:
            self.refused[Refusal.MALFORMED] += 1
            return
        self._count((names[0], names[1], kind.lower()), appended, now)

    def take_letter(self, headers: Headers, appended: int, now: int) -> None:
        """Count a record of a dead-letter topic, by the reason in its headers. Never raises. `appended`, `now`: as above."""
        found = dict(headers or ())
        try:
            stream, consumer, reason = (
                (found.get(name) or b"").decode() for name in (DEAD_STREAM, DEAD_CONSUMER, REASON)
            )
        except UnicodeDecodeError:
            self.refused[Refusal.MALFORMED] += 1
            return
        known = reason if reason in _REASONS or not reason else OTHER
        self._count((stream, consumer, known and f"{DEAD_LETTER}: {known}"), appended, now)

    def _count(self, tally: Tally, appended: int, now: int) -> None:
        stream, consumer, _ = tally
        if appended > now + WINDOW_MS * KEPT_WINDOWS:
            self.refused[Refusal.FUTURE] += 1
            return
        if appended <= now - WINDOW_MS * KEPT_WINDOWS:
            return  # a process that reads the topic from its start meets a week of them
        if not all(tally) or max(len(stream), len(consumer)) > MOST_NAME:
            self.refused[Refusal.MALFORMED] += 1
            return
        if not all(text.isprintable() for text in tally):
            self.refused[Refusal.MALFORMED] += 1
            return
        if (
            tally not in self._new
            and len(self._new) + len(self.rows) >= MOST_TALLIES
            and "/".join(tally) not in self.rows
        ):
            self.refused[Refusal.LIMIT] += 1
            return
        self._new.setdefault(tally, Counter())[appended // WINDOW_MS] += 1
        self._seen[tally] = max(appended, self._seen.get(tally, 0))

    def flush(self, now: int) -> None:
        """Put what was counted since the last call into the rows, and drop windows that are over for an hour. `now`: Kafka's
        time, ms since 1970.
        """
        oldest = now // WINDOW_MS - KEPT_WINDOWS
        for tally, counts in self._new.items():
            id, seen = "/".join(tally), self._seen[tally]
            known = self.rows.get(id) or {"windows": {}, "seen": 0}
            sums = Counter({int(window): count for window, count in known["windows"].items()}) + counts
            windows = {str(window): count for window, count in sorted(sums.items()) if window > oldest}
            if windows:
                stream, consumer, cause = tally
                named = {"stream": stream, "consumer": consumer, "cause": cause}
                self.rows[id] = {**named, "seen": max(known["seen"], seen), "windows": windows}
        self._new.clear()
        self._seen.clear()
        for id in [id for id, row in self.rows.items() if row["seen"] // WINDOW_MS <= oldest]:
            self.rows.pop(id, None)

    def describe(self, now: int) -> list[dict[str, Any]]:
        """Return a JSON object for each row, sorted by stream, consumer and cause: with `hour` and `minutes`, the counts of
        the last hour and of the last RECENT_WINDOWS minutes, and `seen`. `now`: as in `flush`.
        """
        window = now // WINDOW_MS
        return [
            {
                "stream": row["stream"],
                "consumer": row["consumer"],
                "cause": row["cause"],
                "minutes": _sum(row, window - RECENT_WINDOWS),
                "hour": _sum(row, window - KEPT_WINDOWS),
                "seen": row["seen"],
            }
            for row in sorted(self.rows.values(), key=lambda row: (row["stream"], row["consumer"], row["cause"]))
        ]


def _sum(row: Mapping[str, Any], after: int) -> int:
    return sum(count for window, count in row["windows"].items() if int(window) > after)
