"""Where the examples that come with the package are found. That they are sound is tested by tests/config/test_schema.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from overlay import examples
from overlay.examples import ExampleMissing, find_example


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
