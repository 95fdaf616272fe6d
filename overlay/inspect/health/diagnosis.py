"""A diagnosis: one thing that `overlay doctor` has looked at, and what to do about it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum


class Severity(Enum):
    """How bad a diagnosis is. In the order in which they are shown."""

    ERROR = "error"
    """Something does not work, or will be lost."""
    WARNING = "warning"
    """It works now, and may not under a fault or a load that is to be expected."""
    NOTE = "note"
    """Something that is worth knowing, or that could not be looked at."""
    OK = "ok"


class Check(Enum):
    """What a diagnosis is about. The values are part of the JSON."""

    CONFIG = "config"
    KAFKA = "kafka"
    RIGHTS = "rights"
    RETENTION = "retention"
    SIZES = "sizes"
    CLOCK = "clock"
    WORKERS = "workers"
    HTTP = "http"
    KERNELS = "kernels"
    JAVA = "java"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What was found. `about`: the topic, broker or worker, empty if it is about all. `text`: what happened.

    `todo`: what to do, empty if there is nothing to do.
    """

    severity: Severity
    check: Check
    about: str
    text: str
    todo: str = ""


def split_advice(sentence: str) -> tuple[str, str]:
    """Split a message whose last sentence says what to do. Return the sentences before it, and that last one. For a
    message of one sentence, return it and "".
    """
    text, dot, todo = sentence.rpartition(". ")
    return (text, todo) if dot else (sentence, "")


def sort(found: Iterable[Diagnosis]) -> list[Diagnosis]:
    """Return diagnoses with the worst first; those of one severity in the order of the checks."""
    severities, checks = [*Severity], [*Check]
    return sorted(found, key=lambda each: (severities.index(each.severity), checks.index(each.check)))


def count(found: Sequence[Diagnosis], severity: Severity) -> int:
    """Return how many diagnoses have this severity."""
    return sum(each.severity is severity for each in found)
