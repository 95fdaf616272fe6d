"""The download of jars for the embedded broker and for Spark's Kafka source, once, into the cache.

pyspark ships Apache Ivy, which resolves Maven artifacts as a plain command. ivy.xml beside this
file names the artifacts. A set of jars is fetched into a temporary folder, with a marker that lists
its files, and the folder is then renamed. So the set is there completely or not at all, and a set
that lost a file is fetched again. With the set in place nothing uses the network.

jars.sha256 has the checksum of every jar. A fetched set with another file is refused, whichever server or
mirror it came from. After a change of ivy.xml, `make jars` writes jars.sha256 anew.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from overlay.errors import BrokerError

from .folders import find_cache, make_folder
from .java import Java, find_java
from .locks import hold_lock
from .progress import show_progress
from .trust import build_java_options

IVY_FILE = Path(__file__).with_name("ivy.xml")
SUMS_FILE = IVY_FILE.with_name("jars.sha256")
CONFS = ("broker", "tools", "spark")
Step = Callable[[str, int, int], None]  # (current activity, jars fetched, jars found so far)

_MARKER = ".complete"
_OTHER_FETCH_S = 900.0
_STALLED_MS = 60_000
_MISSING = re.compile(r"(?:module not found: |unresolved dependency: |download failed: |\[\s*FAILED\s*\] )([^\s(]+)")
_CAUSE = re.compile(
    r"(?:Server access error at url |Host \S+ not found|java\.\S+Exception|You probably access ).*$", re.M
)


def fetch_jars(conf: str) -> list[Path]:
    """Return the jars of one conf of ivy.xml (`broker`, `tools`, `spark`), sorted.

    They are fetched first if the cache lacks them. Raises BrokerError with what could not be
    fetched and the cache folder, and ValueError for another conf.
    """
    if conf not in CONFS:
        raise ValueError(f"conf {conf!r}: known are {', '.join(CONFS)}")
    release = find_cache() / "jars" / hashlib.sha256(IVY_FILE.read_bytes()).hexdigest()[:12]
    if (jars := _list_complete(release / conf)) is not None:
        return jars
    make_folder(release, "Name another cache folder with $OVERLAY_CACHE")
    with hold_lock(release / f"{conf}.lock", wait_s=_OTHER_FETCH_S, what="fetching jars"):
        if (jars := _list_complete(release / conf)) is None:
            _retrieve(conf, release)
            jars = _list_complete(release / conf)
    if jars is None:
        raise BrokerError(f"{release / conf}: jars vanished as soon as they were fetched. Delete the folder, try again")
    return jars


def _list_complete(folder: Path) -> list[Path] | None:
    marker = folder / _MARKER
    if not marker.is_file():
        return None
    jars = [folder / name for name in marker.read_text().split()]
    return jars if jars and all(jar.is_file() for jar in jars) else None


def _retrieve(conf: str, release: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=f"{conf}-", dir=release) as temporary:
        work = Path(temporary)
        found = work / "jars"
        run_ivy(conf, found, work)
        if strange := find_strange(found, read_sums()):
            raise BrokerError(
                f"the jars of {conf} are not those that this version was made with: {'; '.join(strange[:5])}. None of them"
                " is used. See whether a proxy or the repository of OVERLAY_IVYSETTINGS has changed them"
            )
        names = sorted(jar.name for jar in found.glob("*.jar"))
        (found / _MARKER).write_text("\n".join(names) + "\n")
        shutil.rmtree(release / conf, ignore_errors=True)
        found.rename(release / conf)


def run_ivy(conf: str, found: Path, work: Path) -> None:
    """Have Ivy fetch the jars of a conf of ivy.xml and copy them into the folder `found`. `work`: a folder for other
    files. Raises BrokerError if a jar cannot be fetched, or without Java or Ivy.
    """
    command = _build_command(conf, found, work, find_java())
    with show_progress(f"fetching the jars of {conf}") as step:
        _follow(command, conf, step)


def read_sums() -> dict[str, str]:
    """Return the SHA-256 of each jar in hexadecimal, by its file name, as jars.sha256 has them."""
    lines = SUMS_FILE.read_text(encoding="ascii").splitlines()
    return {name: digest for digest, name in (line.split("  ") for line in lines)}


def find_strange(folder: Path, sums: Mapping[str, str]) -> list[str]:
    """Return a sentence for each jar of a folder that is not in `sums` or has another SHA-256."""
    found = []
    for jar in sorted(folder.glob("*.jar")):
        digest = sum_jar(jar)
        if digest != sums.get(jar.name):
            found.append(f"{jar.name} has the SHA-256 {digest}, not {sums.get(jar.name, 'one that is known')}")
    return found


def sum_jar(jar: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with jar.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _build_command(conf: str, found: Path, work: Path, java: Java) -> list[str]:
    """Return Ivy's command line that fetches the jars of `conf` into `found`.

    Java's options are written to a private file in `work`, because the process list must not show a proxy's password.
    """
    ivy_home = find_cache() / "ivy"
    options = [
        f"-Divy.home={ivy_home}",
        f"-Divy.default.ivy.user.dir={ivy_home}",
        f"-Dsun.net.client.defaultConnectTimeout={_STALLED_MS}",
        f"-Dsun.net.client.defaultReadTimeout={_STALLED_MS}",
        *build_java_options(find_cache()),
    ]
    arguments = work / "java.args"
    with open(os.open(arguments, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        file.writelines('"' + option.replace("\\", "\\\\").replace('"', '\\"') + '"\n' for option in options)
    settings = os.environ.get("OVERLAY_IVYSETTINGS")
    return [
        str(java.program),
        f"@{arguments}",
        "-jar",
        str(_find_ivy()),
        *(["-settings", settings] if settings else []),
        *("-cache", str(ivy_home / "cache"), "-ivy", str(IVY_FILE), "-confs", conf),
        *("-types", "jar", "bundle", "-retrieve", str(found / "[artifact]-[revision].[ext]")),
    ]


def _find_ivy() -> Path:
    # find_spec locates pyspark without the cost of its import
    spec = importlib.util.find_spec("pyspark")
    folders = list(spec.submodule_search_locations or []) if spec else []
    for folder in folders:
        for jar in sorted(Path(folder, "jars").glob("ivy-*.jar")):
            return jar
    raise BrokerError("no Ivy jar found: it comes with pyspark. Run `pip install 'kafka-overlay[local]'`")


def _follow(command: list[str], conf: str, step: Step) -> None:
    wanted = fetched = 0
    output: list[str] = []
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=subprocess.STDOUT, text=True, errors="replace") as process:
        for line in process.stdout or ():
            output.append(line)
            if line.startswith("\tfound "):
                wanted += 1
            elif "[SUCCESSFUL ]" in line:
                fetched += 1
            step("looking up versions" if fetched == 0 else "downloading", fetched, wanted)
    if process.returncode != 0:
        raise BrokerError(_explain_failure("".join(output), conf))


def _explain_failure(output: str, conf: str) -> str:
    missing = list(dict.fromkeys(name.rstrip(":") for name in _MISSING.findall(output)))
    cause = _CAUSE.search(output)
    what = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
    why = cause.group(0).strip() if cause else " ".join(output.split()[-40:])
    return (
        f"could not fetch the jars of {conf}: {what or 'Ivy failed'} ({why}). The cache folder is {find_cache()}."
        " This has to run once with a network that reaches Maven Central; afterwards none is needed."
        " Behind a proxy set https_proxy; with a repository of your own set OVERLAY_IVYSETTINGS to an Ivy settings file"
    )
