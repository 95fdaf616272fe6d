"""The demo's folder, with its own broker, a copy of the example's config, and the service's log.

Each demo begins with an empty Kafka, so it deletes the remains of the last one in the same folder.
It must never delete a user's own files. So only a folder with the demo's marker file is emptied,
and only of what a demo writes there. Locks tell whether a demo still runs, as for the broker
(overlay/local/broker.py): the service inherits a locked file.
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
    """The demo cannot continue. The message says why and what to do."""


@dataclass(frozen=True, slots=True)
class DemoHome:
    """The demo's folder and the paths in it."""

    root: Path

    @property
    def kafka(self) -> Path:
        """The broker's home, for `overlay local ... --home`."""
        return self.root / "kafka"

    @property
    def config(self) -> Path:
        # as deep as in the source tree: the files' first lines have relative paths to the schemas
        return self.root / "config" / EXAMPLE

    @property
    def schema(self) -> Path:
        return self.root / "docs" / "schema"

    @property
    def log(self) -> Path:
        return self.root / "service.log"

    @property
    def spark_log(self) -> Path:
        return self.root / "spark.log"

    @property
    def pid(self) -> Path:
        return self.root / "service.pid"

    @property
    def life_lock(self) -> Path:
        """The file that the service keeps locked for as long as it lives."""
        return self.root / "service.lock"

    @property
    def play_lock(self) -> Path:
        """The file that the `overlay demo` process keeps locked."""
        return self.root / "demo.lock"


@contextmanager
def open_home(root: Path | None) -> Iterator[DemoHome]:
    """Yield the demo's folder, locked for the block. What an earlier demo left in it is deleted first.

    Default: `demo` beside the local broker's home. Raises DemoError if the folder has files and no marker of a demo,
    is in use, or still runs a demo.
    """
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
        for file in (home.log, home.spark_log, home.pid):
            file.unlink(missing_ok=True)
        yield home
    finally:
        os.close(lock)


def describe_stop(home: DemoHome) -> list[str]:
    """Return the shell commands that stop the service and the broker that run in a demo's folder
    now; none if nothing runs.
    """
    commands = []
    if is_locked(home.life_lock) and home.pid.is_file():
        commands.append(f"kill {home.pid.read_text().strip()}")
    if _has_broker(home):
        commands.append(f"overlay local down --home {home.kafka}")
    return commands


def _has_broker(home: DemoHome) -> bool:
    return status(home.kafka).condition in (Condition.RUNNING, Condition.STARTING)


def _refuse_running(home: DemoHome) -> None:
    if _has_broker(home) or is_locked(home.life_lock):
        stop = " && ".join(describe_stop(home))
        raise DemoError(f"{home.root}: a demo still runs there. Stop it first ({stop}), or name another --home")


def write_config(home: DemoHome, bootstrap: str) -> str:
    """Copy the example's config into the demo's folder, with this broker and a free HTTP port in
    its overlay.yaml. Return the URL of the service's HTTP server.
    """
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
