"""The examples that come with the package are found, and sound."""

from __future__ import annotations

from pathlib import Path

import pytest

from overlay import examples
from overlay.config import load
from overlay.examples import ExampleMissing, find_example


def test_the_flights_example_is_found_and_sound() -> None:
    loaded = load(find_example("flights"))
    assert not loaded.problems
    filters = [pattern for consumer in loaded.consumers.values() for pattern in consumer.filters]
    assert len(loaded.consumers) >= 3
    assert any("*" in text for text in filters)
    assert any(text.endswith(">") for text in filters)
    assert any(not set("*>") & set(text) for text in filters)


def test_an_installed_package_has_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    inside = tmp_path / "overlay" / "_examples" / "flights"
    inside.mkdir(parents=True)
    (inside / "overlay.yaml").touch()
    monkeypatch.setattr(examples, "PLACES", (tmp_path / "overlay" / "_examples", tmp_path / "examples"))
    assert find_example("flights") == inside


def test_an_example_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(examples, "PLACES", (tmp_path,))
    with pytest.raises(ExampleMissing, match=r"example 'flights' is not in .*Install kafka-overlay again"):
        find_example("flights")
