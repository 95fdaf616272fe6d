"""Class data of Kafka for Java: what later starts of the embedded broker need not do again.

At each start Java reads some 7,000 classes out of jars, checks and links them. That is half of the processor time until the
broker answers (8 s to 5 s, on the machine where it was measured). Class data sharing keeps the result in a file that Java maps
into memory.

The first start of an installation has Java list the classes that it loads (`build_list_flags`). When the broker is ready, a
second Java makes the archive of that list, once, in about ten seconds (`make_archive`). It lies beside the jars in the cache,
under a name that stands for the Java, the jars and the flags that it was made with. Java itself compares them once more, and
starts without an archive that does not fit. A Java that cannot make one is not asked again: an empty file stands in its place.
One that took too long, or was killed, is asked again by the next start: the machine may have been busy.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from overlay.errors import BrokerError

from .java import Java
from .locks import try_lock

_MAKE_S = 120.0


def find_archive(java: Java, jars: Sequence[Path], flags: Sequence[str]) -> Path:
    """Return the path of the archive for this Java, Kafka's jars and the Java's flags, whether there is one or not.

    Raises BrokerError if Java or a jar cannot be read.
    """
    digest = hashlib.sha256("\0".join(flags).encode())
    try:
        for file in (java.program.resolve(), *jars):
            seen = file.stat()
            digest.update(f"{file} {seen.st_size} {seen.st_mtime_ns}\n".encode())
    except OSError as error:
        raise BrokerError(f"{error.filename}: this file cannot be read ({error.strerror}). Try again") from error
    return jars[0].parent / f"classes-{digest.hexdigest()[:16]}.jsa"


def build_flags(archive: Path) -> tuple[str, ...]:
    """Return Java's flags for a start with the archive; none if there is no archive."""
    with contextlib.suppress(OSError):
        if archive.stat().st_size:
            return (f"-XX:SharedArchiveFile={archive}",)
    return ()


def build_list_flags(archive: Path, class_list: Path) -> tuple[str, ...]:
    """Return Java's flags for a start that has the classes which it loads written to a file, if no archive has been tried."""
    return () if archive.exists() else (f"-XX:DumpLoadedClassList={class_list}",)


def make_archive(command: Sequence[str], environment: Mapping[str, str], class_list: Path, archive: Path) -> None:
    """Make the archive of the classes in `class_list`, unless there is one or another process makes it; the list is removed.
    What goes wrong costs later starts their time and nothing else, so no error is raised.

    command: Java and its flags, as at the start that wrote the list. environment: its variables, with the class path.
    """
    if not class_list.exists():
        return
    # the cache may be for reading only
    with contextlib.suppress(OSError):
        lock = try_lock(archive.with_suffix(".lock"))
        try:
            if lock is not None and not archive.exists():
                _make(command, environment, class_list, archive)
        finally:
            if lock is not None:
                os.close(lock)
    class_list.unlink(missing_ok=True)


def _make(command: Sequence[str], environment: Mapping[str, str], class_list: Path, archive: Path) -> None:
    made, whole = archive.with_suffix(".making"), class_list.with_suffix(".whole")
    # the broker is still writing its list: what follows the end of the last line is a part of one
    whole.write_bytes(class_list.read_bytes().rpartition(b"\n")[0] + b"\n")
    dump = [*command, "-Xshare:dump", f"-XX:SharedClassListFile={whole}", f"-XX:SharedArchiveFile={made}"]
    try:
        code = subprocess.run(
            dump, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=_MAKE_S, check=False
        ).returncode
    except subprocess.TimeoutExpired:
        code = -1
    finally:
        whole.unlink(missing_ok=True)
    if code < 0:
        made.unlink(missing_ok=True)
        return
    if code or not made.exists():
        made.write_bytes(b"")
    made.replace(archive)
