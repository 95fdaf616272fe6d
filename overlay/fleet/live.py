"""The picture that one fleet process shows: rows, open findings and Kafka's time, kept up to date."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import mmh3

from overlay.units import format_time

from .definitions import Definitions
from .findings import Expected, Finding, OpenFindings, Picture, look, survey
from .memory import KafkaTime, Memory
from .picture import DescribedConsumers, describe
from .tallies import Tallies

KEEP_MS = 1_000
"""How long an answer of `/fleet` is used again, in ms, however many pages ask."""
EVENT = "$OVERLAY.EVENT.FLEET"
EVENT_TYPE = "overlay.fleet.v1.finding"


@dataclass(slots=True)
class LivePicture:
    """What `overlay fleet run` knows. The rows of `memory`, `open_findings`, `definitions` and `tallies` may lie in tables that
    outlive the process.
    """

    memory: Memory = field(default_factory=Memory)
    open_findings: OpenFindings = field(default_factory=OpenFindings)
    definitions: Definitions = field(default_factory=Definitions)
    tallies: Tallies = field(default_factory=Tallies)
    expected: Expected = field(default_factory=Expected)
    _time: KafkaTime = field(default_factory=KafkaTime)
    _picture: Picture | None = None
    _answer: dict[str, Any] = field(default_factory=dict)
    _described: DescribedConsumers = field(default_factory=DescribedConsumers)
    _text: str = ""
    """The same as JSON, empty until it is asked for."""
    _answered_at: int = -KEEP_MS

    def judge(self, monotonic: int) -> tuple[list[Finding], list[Finding]]:
        """Replace the picture by one of the rows as they are now, and forget rows that are too old. Return
        the findings that open, and those that close; two empty lists before the first status.

        `monotonic`: the monotonic clock in ms.
        """
        newest = max((row["seen"] for row in self.memory.workers.values()), default=0)
        if newest:
            self._time.note(newest, monotonic)
        now = self._time.tell(monotonic)
        if now is None:
            return [], []
        self.memory.forget(now)
        self.definitions.forget(now)
        self.tallies.flush(now)
        self._picture = look(self.memory, now, self.expected, self.definitions)
        return self.open_findings.update(survey(self._picture), now)

    @property
    def letter_topics(self) -> set[str]:
        """The topics of dead letters, by the config folder and the control topic."""
        return {*self.expected.letter_topics, *self.definitions.list_letter_topics()}

    @property
    def picture(self) -> Picture | None:
        """The picture that `judge` made last; None before the first status, and while this process stands by."""
        return self._picture

    def stand_by(self) -> None:
        """Drop the picture, so that nothing is shown until the next `judge`: another process has the fleet's
        topic. Rows and findings stay.
        """
        self._picture, self._answer, self._text = None, {}, ""

    def describe(self, monotonic: int) -> dict[str, Any]:
        """Return the JSON object that `/fleet` answers, made of the picture that `judge` made last and used again
        until it is KEEP_MS old; {} before the first status, and while another process has the topic. `monotonic`: the
        monotonic clock in ms.
        """
        if self._picture is None:
            return {}
        if not self._answer or monotonic - self._answered_at >= KEEP_MS:
            refused = self.memory.refused + self.definitions.refused + self.tallies.refused
            self._answer = describe(self._picture, self.open_findings.list(), refused, self._described)
            self._answer["advisories"] = self.tallies.describe(self._picture.now)
            self._answered_at, self._text = monotonic, ""
        return self._answer

    def encode(self, monotonic: int) -> str:
        """Return what `describe` returns as JSON text, "" if that is {}. `monotonic`: as there."""
        if (answer := self.describe(monotonic)) and not self._text:
            self._text = json.dumps(answer)
        return self._text


def encode_event(finding: Finding, now: int, *, is_open: bool) -> tuple[bytes, bytes]:
    """Return key and value of the record of the events topic that says that a finding opens, or closes if not `is_open`.
    `now`: ns since 1970.
    """
    id = f"{mmh3.hash128(f'{finding.name}/{finding.since}/{is_open}', signed=False):032x}"
    body = {
        "type": EVENT_TYPE,
        "id": id,
        "timestamp": format_time(now),
        "action": "opened" if is_open else "closed",
        "kind": finding.kind.value,
        "about": finding.about,
        "text": finding.text,
        "since": format_time(finding.since * 1_000_000),
    }
    return f"{EVENT}.{finding.kind.value.upper()}".encode(), json.dumps(body, separators=(",", ":")).encode()
