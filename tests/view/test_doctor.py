"""The output of `overlay doctor`: a line or two for each diagnosis, or for each kind if there are many."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich.console import Console

from overlay.inspect.health.diagnosis import Check, Diagnosis, Severity
from overlay.view.doctor import print_diagnoses


def print_lines(found: Sequence[Diagnosis]) -> list[str]:
    console = Console(file=io.StringIO(), width=500)
    print_diagnoses(console, found)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def make_bad(count: int) -> list[Diagnosis]:
    return [
        Diagnosis(Severity.ERROR, Check.CONFIG, f"c{number}.yaml:3:1", f"'x{number}' is unknown", "Remove it")
        for number in range(count)
    ]


OK = Diagnosis(Severity.OK, Check.KAFKA, "", "1 broker")


def test_each_diagnosis_has_a_line_and_what_to_do() -> None:
    assert print_lines([*make_bad(2), OK]) == [
        "error    config: c0.yaml:3:1: 'x0' is unknown",
        "         do: Remove it",
        "error    config: c1.yaml:3:1: 'x1' is unknown",
        "         do: Remove it",
        "ok       kafka: 1 broker",
        "2 errors, 0 warnings, 0 notes, 1 ok",
    ]


def test_many_of_a_kind_are_told_once() -> None:
    assert print_lines([*make_bad(5_000), OK]) == [
        "error    config: c0.yaml:3:1: 'x0' is unknown (4,999 more of this kind: c1.yaml:3:1, c2.yaml:3:1, c3.yaml:3:1, ...)",
        "         do: Remove it",
        "ok       kafka: 1 broker",
        "5000 errors, 0 warnings, 0 notes, 1 ok",
    ]


def test_kinds_beyond_the_first_are_counted() -> None:
    found = [Diagnosis(Severity.NOTE, Check.RIGHTS, "t", chr(ord("a") + number)) for number in range(26)]
    *_, rest, todo, _ = print_lines(found)
    assert rest == "note     rights: 6 more of 6 other kinds"
    assert todo == "         do: see all with `overlay doctor --json`"
