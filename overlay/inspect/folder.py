"""Writing of config files, and their check by the loader. The user's own are not overwritten unless that is forced."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from overlay.config import load
from overlay.errors import OverlayError


class FolderRefused(OverlayError):
    """The files are not written: the config loader finds a problem in them, or the folder cannot take them. The user
    has to name another folder or topic, or repair what the message names.
    """


def check_files(files: Mapping[str, str]) -> None:
    """Raise FolderRefused if the config loader finds a problem in `files` (relative path to text), and ConfigError if
    it is in their overlay.yaml. They are written to a temporary folder for that, which is deleted again.
    """
    with tempfile.TemporaryDirectory(prefix="overlay-init-") as name:
        _write(Path(name), files)
        problems = load(Path(name), environment={}).problems
    if problems:
        found = "; ".join(f"{Path(problem.place.file).name}: {problem.message}" for problem in problems)
        raise FolderRefused(f"no sound config could be made for this topic, nothing is written: {found}")


def write_files(folder: Path, files: Mapping[str, str], *, force: bool) -> dict[str, str]:
    """Write `files` (relative path to text) below `folder`, and return for each path whether the file was `written`
    (it is new), `kept` or `replaced`.

    A file with the same content is kept. Raises FolderRefused if a file has other content and `force` is not set,
    before anything is written, or if the folder cannot be written.
    """
    outcome = {name: _look(folder / name, text) for name, text in files.items()}
    taken = [str(folder / name) for name, word in outcome.items() if word == "replaced"]
    if taken and not force:
        raise FolderRefused(
            f"{', '.join(taken)}: exists with another content, so nothing is written."
            " Choose another folder with --dir, or overwrite with --force"
        )
    try:
        _write(folder, {name: text for name, text in files.items() if outcome[name] != "kept"})
    except OSError as error:
        raise FolderRefused(
            f"{error.filename or folder}: {error.strerror}. Choose a folder that can be written"
        ) from error
    return outcome


def _look(file: Path, text: str) -> str:
    try:
        return "kept" if file.read_text(encoding="utf-8") == text else "replaced"
    except FileNotFoundError:
        return "written"
    except UnicodeDecodeError:
        return "replaced"
    except OSError as error:
        raise FolderRefused(f"{file}: {error.strerror}. Choose another folder with --dir") from error


def _write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
