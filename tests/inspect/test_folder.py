"""Writing files: never over a file of the user's."""

from __future__ import annotations

from pathlib import Path

import pytest

from overlay.inspect.folder import FolderRefused, check_files, write_files

FILES = {"overlay.yaml": "a\n", "streams/t.yaml": "b\n"}


def test_files_are_written_then_kept_then_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "config"
    assert set(write_files(folder, FILES, force=False).values()) == {"written"}
    assert set(write_files(folder, FILES, force=False).values()) == {"kept"}
    changed = {**FILES, "streams/t.yaml": "c\n"}
    outcome = write_files(folder, changed, force=True)
    assert outcome == {"overlay.yaml": "kept", "streams/t.yaml": "replaced"}
    assert (folder / "streams/t.yaml").read_text() == "c\n"


def test_another_text_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "overlay.yaml").write_text("mine\n")
    with pytest.raises(FolderRefused, match=r"overlay\.yaml: exists with another content.*--force"):
        write_files(tmp_path, FILES, force=False)
    assert [file.name for file in tmp_path.iterdir()] == ["overlay.yaml"]


def test_a_file_in_the_way_is_an_error_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "streams").write_text("")
    with pytest.raises(FolderRefused, match=r"streams/t\.yaml: Not a directory"):
        write_files(tmp_path, FILES, force=True)


def test_files_that_do_not_load_are_refused() -> None:
    service = "kafka: {bootstrap.servers: 127.0.0.1:9092}\n"
    with pytest.raises(FolderRefused, match=r"nothing is written: t\.yaml: is missing"):
        check_files({"overlay.yaml": service, "streams/t.yaml": "name: T\n"})
