"""The demo's folder: a broker of its own, a copy of the example's config, the service's log.

Each demo begins with an empty Kafka, so it throws away what the last one left in the same folder. That must never hit
somebody's own files: only a folder that carries the demo's mark is emptied, and only of what a demo puts there.
Whether a demo still runs is told by locks, as for the broker (see overlay/local/broker.py): the service inherits a
locked file.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ruamel.yaml import YAML

from overlay.config.schema import MODELS, write_schema
from overlay.errors import OverlayError
from overlay.examples import find_example
from overlay.local import Condition, status
from overlay.local.folders import find_home, make_folder
from overlay.local.locks import is_locked, take_lock
from overlay.local.ports import find_free

EXAMPLE = "flights"
_MARK = ".kafka-overlay-demo"
_HOST = "127.0.0.1"


class DemoError(OverlayError):
    """The demo cannot go on. The message says why and what to do."""


@dataclass(frozen=True, slots=True)
class DemoHome:
    """The folder and the paths in it."""

    root: Path

    @property
    def kafka(self) -> Path:
        """The broker's home, for `overlay local ... --home`."""
        return self.root / "kafka"

    @property
    def config(self) -> Path:
        # as deep as in the source tree, so that the files' first lines find the schemas
        return self.root / "config" / EXAMPLE

    @property
    def schema(self) -> Path:
        return self.root / "docs" / "schema"

    @property
    def log(self) -> Path:
        return self.root / "service.log"

    @property
    def pid(self) -> Path:
        return self.root / "service.pid"

    @property
    def life_lock(self) -> Path:
        """Held by the service for as long as it lives."""
        return self.root / "service.lock"

    @property
    def play_lock(self) -> Path:
        """Held by `overlay demo` itself."""
        return self.root / "demo.lock"


@contextmanager
def open_home(root: Path | None) -> Iterator[DemoHome]:
    """An empty demo folder, ours for the block. Default: `demo` beside the local broker's home. Raises DemoError."""
    home = DemoHome((root or find_home().parent / "demo").absolute())
    if home.root.is_dir() and any(home.root.iterdir()) and not (home.root / _MARK).is_file():
        raise DemoError(f"{home.root}: holds files that are not the demo's. Name a new or empty folder with --home")
    make_folder(home.root, "Name another folder with --home")
    (home.root / _MARK).touch()
    lock = take_lock(home.play_lock)
    if lock is None:
        raise DemoError(f"{home.root}: another `overlay demo` is at work there. Wait for it, or name another --home")
    try:
        _refuse_running(home)
        for folder in (home.kafka, home.config.parent, home.schema.parent):
            shutil.rmtree(folder, ignore_errors=True)
        for file in (home.log, home.pid):
            file.unlink(missing_ok=True)
        yield home
    finally:
        os.close(lock)


def describe_stop(home: DemoHome) -> list[str]:
    """The commands that stop what runs in a demo's folder, by what runs there now."""
    commands = []
    if is_locked(home.life_lock) and home.pid.is_file():
        commands.append(f"kill {home.pid.read_text().strip()}")
    if status(home.kafka).condition is not Condition.STOPPED and home.kafka.is_dir():
        commands.append(f"overlay local down --home {home.kafka}")
    return commands


def _refuse_running(home: DemoHome) -> None:
    running = status(home.kafka).condition in (Condition.RUNNING, Condition.STARTING)
    if running or is_locked(home.life_lock):
        stop = " && ".join(describe_stop(home))
        raise DemoError(f"{home.root}: a demo still runs there. Stop it first ({stop}), or name another --home")


def write_config(home: DemoHome, bootstrap: str) -> str:
    """Copy the example's config, set to this broker and a free HTTP port; returns the service's URL."""
    shutil.copytree(find_example(EXAMPLE), home.config)
    home.schema.mkdir(parents=True)
    for kind in MODELS:
        (home.schema / f"{kind}.json").write_text(write_schema(kind), encoding="utf-8")
    yaml = YAML()  # keeps comments
    file = home.config / "overlay.yaml"
    service = yaml.load(file)
    service["kafka"]["bootstrap.servers"] = bootstrap
    service["http"]["listen"] = f"{_HOST}:{find_free(_HOST, 1)[0]}"
    yaml.dump(service, file)
    return f"http://{service['http']['listen']}"
