"""Nothing that strangers may write ends a worker, or costs more than its size allows.

OVERLAY_FUZZ sets how many inputs are tried."""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest

from tests.support.tiny_records import build_tiny

from .budget import Budget, Cost, count_lines, find_slowness, measure, measure_bytes
from .inputs import Source
from .surfaces import SPLIT, Surface, list_surfaces

ROUNDS = int(os.environ.get("OVERLAY_FUZZ", "300"))
LONG = 1_000_000
MEASURED = 20
"""Of so many inputs one is measured: counting takes longer than reading."""
SEED = int(os.environ.get("OVERLAY_SEED", random.SystemRandom().randrange(10**9)))


@pytest.fixture(params=list_surfaces(), ids=lambda surface: surface.name)
def surface(request: pytest.FixtureRequest) -> Surface:
    found: Surface = request.param
    return found


def attack(surface: Surface, rounds: int, measured: int = MEASURED) -> None:
    """Read so many hostile inputs, and measure some of them."""
    source = Source(surface.samples, random.Random(f"{SEED} {surface.name}"))
    for number in range(rounds):
        data = source.draw()
        try:
            excess = find_slowness(surface.budget, surface.run, data)
            if not excess and number % measured == 0:
                excess = surface.budget.find_excess(measure(surface.run, data), len(data))
        except Exception as error:
            raise AssertionError(f"OVERLAY_SEED={SEED}, input {number}: {data[:400]!r}") from error
        assert not excess, f"OVERLAY_SEED={SEED}, input {number} of {len(data)} bytes costs {excess}: {data[:400]!r}"


def test_the_samples_are_read(surface: Surface) -> None:
    """Otherwise the inputs drawn from them would stop at the first check."""
    assert surface.samples
    for sample in surface.samples:
        surface.read(sample)
        assert not surface.budget.find_excess(measure(surface.run, sample), len(sample))


def test_inputs_are_refused_at_a_bounded_cost(surface: Surface) -> None:
    attack(surface, ROUNDS)


def test_a_file_without_a_required_field_is_refused_at_a_bounded_cost() -> None:
    """Its message has the field's description, which was once read from the sources for each message."""
    (files,) = (surface for surface in list_surfaces() if surface.name == "files")
    data = b"# a stream\nname: FLIGHTS\n"
    files.run(data)
    assert not files.budget.find_excess(measure(files.run, data), len(data))


@pytest.mark.slow
@pytest.mark.timeout(3_000)
def test_a_million_inputs(surface: Surface) -> None:
    attack(surface, LONG, 50 * MEASURED)


GROWTH: tuple[tuple[str, Callable[[int], bytes]], ...] = (
    ("deep lists", lambda n: b"[" * n),
    ("deep objects", lambda n: b'{"a":' * n),
    ("digits", lambda n: b"9" * n),
    ("a list of digits", lambda n: b"[" + b"9," * (n // 2) + b"9]"),
    ("empty objects", lambda n: b"[" + b"{}," * (n // 3) + b"{}]"),
    ("bytes that are no text", lambda n: b"\xff" * n),
    ("escapes", lambda n: b'"' + b"\\u00e9" * (n // 6) + b'"'),
    ("parentheses", lambda n: b"(" * n),
    ("negations", lambda n: b"not " * (n // 4)),
    ("anchors", lambda n: b"a: &x [1]\nb: " + b"[*x," * (n // 4)),
    ("dots", lambda n: b"a." * (n // 2)),
)
"""Inputs that grow without end, by their size in bytes."""


@pytest.mark.parametrize(("name", "grow"), GROWTH, ids=[name for name, _ in GROWTH])
def test_what_grows_costs_no_more_for_each_byte(surface: Surface, name: str, grow: Callable[[int], bytes]) -> None:
    """Behind the beginning of each sample, and by itself."""
    for size in (300, surface.largest):
        for sample in (b"", surface.samples[0]):
            head = sample[: sample.find(SPLIT) + len(SPLIT)] if SPLIT in sample else b""
            data = head + grow(size)
            excess = find_slowness(surface.budget, surface.run, data)
            excess = excess or surface.budget.find_excess(measure(surface.run, data), len(data))
            assert not excess, f"{name} of {size} bytes costs {excess}"


@pytest.mark.parametrize("count", [1_000, 10_000, 100_000, 1_000_000])
@pytest.mark.parametrize("name", ["batches", "ack batches", "control batches"])
def test_very_many_records_in_a_batch_cost_no_more_for_each_byte(name: str, count: int) -> None:
    """Compressed, each takes a byte or less. Its row would take a hundred, and a Python object more."""
    (surface,) = (each for each in list_surfaces() if each.name == name)
    data = build_tiny(count)
    surface.run(data)  # the first call loads kernels
    lines = count_lines(surface.run, data) if count <= 10_000 else 0
    assert not (excess := find_slowness(surface.budget, surface.run, data)), f"{count} records cost {excess}"
    excess = surface.budget.find_excess(Cost(lines, measure_bytes(surface.run, data)), len(data))
    assert not excess, f"{count} records in {len(data)} bytes cost {excess}"


def test_the_budget_finds_what_costs_too_much() -> None:
    budget = Budget(lines=20, lines_per_byte=4, bytes=2_000, bytes_per_byte=10)

    def square(data: bytes) -> None:
        for _ in data:
            for _ in data:
                pass

    def keep(data: bytes) -> list[bytes]:
        return [bytes(1_000) for _ in data]

    def sound(data: bytes) -> bytes:
        return bytes(data)

    assert "lines, 420 are allowed" in budget.find_excess(measure(square, bytes(100)), 100)
    assert "bytes, 3000 are allowed" in budget.find_excess(measure(keep, bytes(100)), 100)
    assert budget.find_excess(measure(sound, bytes(100)), 100) == ""
    assert count_lines(square, bytes(100)) == count_lines(square, bytes(100)) > 10_000
    assert measure_bytes(keep, bytes(100)) > 100_000
    assert budget.find_excess(Cost(20, 2_000), 0) == ""


def test_the_budget_finds_kernels_that_take_too_long() -> None:
    """Code in C runs no lines, and here allocates nothing that counts."""
    budget = Budget(lines=20, lines_per_byte=4, bytes=2_000, bytes_per_byte=10, us=1_000, us_per_byte=1)

    def square(data: bytes) -> None:
        """Look for each end of the input in all of it, in C."""
        for length in range(1_000):
            data.find(data[:length] + b"\x01")

    data = bytes(20_000)
    assert "us of the processor, 21000 are allowed" in find_slowness(budget, square, data)
    assert find_slowness(budget, bytes, data) == ""
