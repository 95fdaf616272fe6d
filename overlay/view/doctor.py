"""The output of `overlay doctor`: a line or two for each diagnosis, the worst first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from rich.console import Console
from rich.text import Text

from overlay.config import summary
from overlay.config.summary import condense, count_rest, name_others
from overlay.inspect.health.diagnosis import Diagnosis, Severity, count

_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "cyan", Severity.OK: "green"}
_WIDTH = max(len(severity.value) for severity in Severity) + 2


def print_diagnoses(console: Console, found: Sequence[Diagnosis]) -> None:
    """Print diagnoses in the order in which they are given, and a line with their numbers. Many of one check and
    severity are told by kind (overlay/config/summary.py).
    """
    for (severity, check), of_check in groupby(found, lambda each: (each.severity, each.check)):
        groups = condense(list(of_check), lambda each: f"{each.text}. {each.todo}")
        for first, *others in groups[: summary.MOST_LINES]:
            _print_lines(console, severity, list_lines(first, others))
        if rest := count_rest(groups):
            _print_lines(console, severity, [f"{check.value}: {rest}", "do: see all with `overlay doctor --json`"])
    console.print(Text(summarise(found)), soft_wrap=True)


def _print_lines(console: Console, severity: Severity, lines: Iterable[str]) -> None:
    """Print the severity with the first line, and the other lines below the first one."""
    word, *rest = lines
    line = Text(severity.value.ljust(_WIDTH), style=_STYLES[severity])
    console.print(line.append(word, style=""), soft_wrap=True)
    for text in rest:
        console.print(Text(" " * _WIDTH + text), soft_wrap=True)


def list_lines(each: Diagnosis, others: Sequence[Diagnosis] = ()) -> Iterator[str]:
    """Yield a line with what was looked at and what was found, and, if there is something to do, a
    second one: `do: ...`. `others`: diagnoses of the same kind, of which the number and some are named.
    """
    yield (
        f"{each.check.value}: {each.about + ': ' if each.about else ''}{each.text}"
        f"{name_others([other.about for other in others])}"
    )
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
