"""The output of `overlay doctor`: a line or two for each diagnosis, the worst first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from overlay.inspect.health.diagnosis import Diagnosis, Severity, count

_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "cyan", Severity.OK: "green"}
_WIDTH = max(len(severity.value) for severity in Severity) + 2


def print_diagnoses(console: Console, found: Sequence[Diagnosis]) -> None:
    """Print diagnoses in the order in which they are given, and a line with their numbers."""
    for each in found:
        word, *rest = list_lines(each)
        line = Text(each.severity.value.ljust(_WIDTH), style=_STYLES[each.severity])
        console.print(line.append(word, style=""), soft_wrap=True)
        for text in rest:
            console.print(Text(" " * _WIDTH + text), soft_wrap=True)
    console.print(Text(summarise(found)), soft_wrap=True)


def list_lines(each: Diagnosis) -> Iterator[str]:
    """Yield a line with what was looked at and what was found, and, if there is something to do, a
    second one: `do: ...`.
    """
    yield f"{each.check.value}: {each.about + ': ' if each.about else ''}{each.text}"
    if each.todo:
        yield f"do: {each.todo}"


def summarise(found: Sequence[Diagnosis]) -> str:
    """Return the numbers of diagnoses: `1 error, 0 warnings, 2 notes, 5 ok`."""
    parts = []
    for severity in Severity:
        number = count(found, severity)
        plural = "" if number == 1 or severity is Severity.OK else "s"
        parts.append(f"{number} {severity.value}{plural}")
    return ", ".join(parts)


def describe_diagnoses(found: Sequence[Diagnosis]) -> dict[str, object]:
    """Return diagnoses as a JSON object: how many there are of each severity, and each."""
    return {
        **{severity.value: count(found, severity) for severity in Severity},
        "found": [
            {
                "severity": each.severity.value,
                "check": each.check.value,
                "about": each.about,
                "text": each.text,
                "todo": each.todo,
            }
            for each in found
        ],
    }
