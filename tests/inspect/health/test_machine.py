"""What is said of compiled kernels and of Java."""

from __future__ import annotations

import numba
import pytest

from overlay.cli.doctor import find_java, find_kernels
from overlay.errors import OverlayError
from overlay.inspect.health.diagnosis import Check, Diagnosis, Severity, count, sort, split_advice
from overlay.inspect.health.machine import JavaFacts, KernelFacts, judge_java, judge_kernels
from overlay.kernel_cache import find_folder
from overlay.kernels import kernel
from overlay.local.java import OLDEST
from overlay.scan.kernel import walk


@pytest.mark.parametrize(
    ("facts", "severity", "says"),
    [
        (KernelFacts("/k", is_writable=True, is_filled=True), Severity.OK, "are kept"),
        (KernelFacts("/k", is_writable=True), Severity.NOTE, "the next start compiles them"),
        (KernelFacts("/k", is_filled=True), Severity.WARNING, "this user may not write there"),
        (KernelFacts("/k"), Severity.ERROR, "every start compiles them"),
        (KernelFacts(failure="no place. Name a folder"), Severity.ERROR, "no place"),
    ],
)
def test_the_cache_of_kernels(facts: KernelFacts, severity: Severity, says: str) -> None:
    found = judge_kernels(facts)
    assert found.severity is severity and says in found.text
    assert bool(found.todo) == (severity in (Severity.ERROR, Severity.WARNING))


@pytest.mark.parametrize(
    ("failure", "jobs", "severity"),
    [("", 0, Severity.OK), ("no Java. Install it", 0, Severity.NOTE), ("no Java. Install it", 2, Severity.WARNING)],
)
def test_java(failure: str, jobs: int, severity: Severity) -> None:
    assert judge_java(JavaFacts(0 if failure else 21, "java", failure), jobs).severity is severity


@kernel
def double(a: int) -> int:
    return 2 * a


def test_a_folder_is_filled_once_a_kernel_was_called() -> None:
    """Its entries are those of the present code, so that they are made again after each change of this file."""
    assert double(2) == 4
    found = find_folder(double)
    assert found.is_filled and any(found.path.glob("test_machine.double-*"))


def test_kernels_of_reading_alone_do_not_fill_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    @kernel
    def never_called(a: int) -> int:
        return a

    assert double(2) == 4
    monkeypatch.setattr("overlay.scan.kernel.walk", double)
    monkeypatch.setattr("overlay.output.partition.murmur2", double)
    assert find_kernels().is_filled
    monkeypatch.setattr("overlay.output.partition.murmur2", never_called)
    assert not find_kernels().is_filled


def test_a_machine_without_a_place_for_kernels_is_told_to_name_one(monkeypatch: pytest.MonkeyPatch) -> None:
    # numba then asks of this locator alone, which knows no source file
    monkeypatch.setattr(numba.config, "CACHE_LOCATOR_CLASSES", "ZipCacheLocator")

    @kernel
    def treble(a: int) -> int:
        return 3 * a

    with pytest.raises(OverlayError, match="Let NUMBA_CACHE_DIR name a folder that this user may write to"):
        treble(2)
    monkeypatch.delitem(vars(walk), "dispatcher", raising=False)
    found = judge_kernels(find_kernels())
    assert (found.severity, found.todo) == (
        Severity.ERROR,
        "Let NUMBA_CACHE_DIR name a folder that this user may write to",
    )


def test_facts_about_this_machine() -> None:
    assert find_kernels().folder
    assert find_java().release >= OLDEST


def test_the_worst_comes_first() -> None:
    made = [
        Diagnosis(severity, check, "", "t") for check in (Check.JAVA, Check.KAFKA) for severity in reversed(Severity)
    ]
    found = sort(made)
    assert [each.severity for each in found] == [each for each in Severity for _ in range(2)]
    assert {each.check for each in found[::2]} == {Check.KAFKA}
    assert count(found, Severity.ERROR) == 2


def test_advice_is_the_last_sentence() -> None:
    assert split_advice("a.b is 1. It is small. Raise it") == ("a.b is 1. It is small", "Raise it")
    assert split_advice("it is compacted") == ("it is compacted", "")
