"""The packages of a lock file, as `make lock` writes it, and the jars of overlay/local/jars.sha256."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
SERVICE_LOCK = ROOT / "requirements-service.lock"
JARS = ROOT / "overlay" / "local" / "jars.sha256"

_PIN = re.compile(r"(?P<name>[a-z0-9][a-z0-9.-]*)==(?P<version>[^\s\\;]+)(?: ; (?P<marker>[^\\]+?))?(?: \\)?")
_HASH = re.compile(r"    --hash=sha256:([0-9a-f]{64})(?: \\)?")
_VIA = re.compile(r"    # {1,3}(?:via ?)?(?P<name>.*)")
_JAR = re.compile(r"(?P<digest>[0-9a-f]{64})  (?P<file>(?P<name>.+?)-(?P<version>\d[\w.+-]*)\.jar)")


@dataclass(frozen=True, slots=True)
class Package:
    """A Python package. `hashes`: SHA-256 of each file that the version may be installed from, as hexadecimal digits;
    `users`: the names of the packages that need it; `marker`: where it is installed, empty for everywhere.
    """

    name: str
    version: str
    marker: str
    hashes: tuple[str, ...]
    users: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Jar:
    """A jar, by its file. `digest`: its SHA-256 as hexadecimal digits."""

    file: str
    name: str
    version: str
    digest: str


def read_lock(file: Path) -> list[Package]:
    """Return the packages of a lock file. Raises ValueError for a line that is not understood."""
    found: list[tuple[re.Match[str], list[str], list[str]]] = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        if pin := _PIN.fullmatch(line):
            found.append((pin, [], []))
        elif (digest := _HASH.fullmatch(line)) and found:
            found[-1][1].append(digest[1])
        elif (user := _VIA.fullmatch(line)) and found:
            # a line may name another lock file (-c) instead of a package, or only begin the list
            if user["name"] and not user["name"].startswith("-"):
                found[-1][2].append(user["name"].split(" ")[0])
        else:
            raise ValueError(f"{file.name}:{number}: this line is not understood. Has `make lock` changed its form?")
    return [
        Package(pin["name"], pin["version"], (pin["marker"] or "").strip(), tuple(hashes), tuple(users))
        for pin, hashes, users in found
    ]


def read_jars(file: Path = JARS) -> list[Jar]:
    """Return the jars of a file of checksums. Raises ValueError for a line that is not understood."""
    found = []
    for number, line in enumerate(file.read_text(encoding="ascii").splitlines(), 1):
        if (jar := _JAR.fullmatch(line)) is None:
            raise ValueError(f"{file.name}:{number}: this line names no jar with a version. Run `make jars`")
        found.append(Jar(jar["file"], jar["name"], jar["version"], jar["digest"]))
    return found
