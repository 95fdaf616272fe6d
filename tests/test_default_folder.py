"""Which config folder is meant where none is named."""

from __future__ import annotations

from pathlib import Path

import pytest

import overlay
from overlay.client import BadQuestion
from overlay.default_folder import INIT_FOLDER, SERVICE_FILE, VARIABLE, find_existing, find_folder


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(VARIABLE, raising=False)
    return tmp_path


def make_folder(folder: Path, address: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / SERVICE_FILE).write_text(f"kafka: {{bootstrap.servers: '{address}'}}\n", encoding="utf-8")
    return folder


def find_address() -> str:
    return overlay.open().kafka["bootstrap.servers"]


def test_the_folder_of_init_is_found_and_the_current_one_comes_first(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_existing() is None and find_folder() == Path()
    with pytest.raises(BadQuestion, match="Give a config folder"):
        overlay.open()
    make_folder(here / INIT_FOLDER, "of-init:1")
    assert find_address() == "of-init:1"
    make_folder(here, "of-here:1")
    assert find_address() == "of-here:1"
    monkeypatch.setenv(VARIABLE, str(make_folder(here / "named", "of-variable:1")))
    assert find_address() == "of-variable:1"


def test_an_address_asks_for_no_folder(here: Path) -> None:
    make_folder(here, "of-here:1")
    client = overlay.open(bootstrap="given:1")
    assert (client.kafka["bootstrap.servers"], dict(client.streams)) == ("given:1", {})
