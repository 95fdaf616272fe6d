"""A Spark session with what the overlay's pipelines need: Java, the Kafka connector, this Python, UTC.

    spark = overlay_session("delays", config="examples/flights")
    spark.sql("SELECT carrier, count(*) FROM overlay.flights GROUP BY carrier").show()

Java is that of the embedded broker (overlay/local/java.py). The connector's jars come from its cache
and are downloaded once. A session that is running already is used as it is, except for SQL settings.

`spark-submit` starts Java before any Python code runs, so it has to get the jars as arguments. This
module, run as a program, prints them: `spark-submit $(python -m spark.session) job.py`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyspark
from pyspark import SparkContext
from pyspark.sql import SparkSession

from overlay.local.jars import fetch_jars

from .datasource import OverlaySource
from .java import find_java_home, find_log_option
from .tables import register_streams

_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # format("overlay") takes predicates, and Spark refuses such sources if this is off
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.log.level": "WARN",
    # plans show options; Spark's own pattern of secrets leaves the PEM key of a client out
    "spark.sql.redaction.options.regex": "(?i)url|jaas|keystore.key",
}
LOOPBACK = "127.0.0.1"
_LOCAL = {
    # no other machine has to reach a driver with local executors, and its host name may not resolve
    "spark.driver.host": LOOPBACK,
    "spark.driver.bindAddress": LOOPBACK,
    "spark.python.daemon.module": "spark.daemon",
}


def overlay_session(
    app_name: str = "overlay",
    master: str | None = None,
    *,
    config: str | Path | None = None,
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return a session ready for output topics, acks and `format("overlay")`; the running one if there is one.

    `master`: as for Spark, such as `local[2]`; by default spark-submit's, otherwise `local[*]`. `config`: a config
    folder, whose streams become the tables `overlay.<stream>` (tables.py). `conf`: further settings, which override
    ours, but `spark.jars` is added to ours. Raises BrokerError if Java or the connector is not available, and what
    `register_streams` raises.
    """
    settings = {**_SETTINGS, **(_LOCAL if is_local(master) else {}), **(conf or {})}
    builder = SparkSession.builder.appName(app_name)
    if master is not None:
        builder = builder.master(master)
    if not _is_submitted() and SparkContext._active_spark_context is None:
        given = settings.get("spark.jars")
        settings["spark.jars"] = ",".join([*([given] if given else []), *map(str, find_connector())])
    for name, value in settings.items():
        builder = builder.config(name, value)
    with _environment(master):
        session = builder.getOrCreate()
        session.dataSource.register(OverlaySource)
        if config is not None:
            register_streams(session, config)
        return session


def find_connector() -> list[Path]:
    """Return the jars that Spark lacks for Kafka, from the cache, downloaded first if needed.

    Raises BrokerError.
    """
    own = {jar.name for jar in Path(pyspark.__path__[0], "jars").glob("*.jar")}
    return [jar for jar in fetch_jars("spark") if jar.name not in own]


def is_local(master: str | None) -> bool:
    """Return whether the executors run on the driver's machine, as far as `master` says; False for
    None.
    """
    return master is not None and master.startswith("local")


def _is_submitted() -> bool:
    """Return whether spark-submit has started this process; it has the jars already."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


@contextmanager
def _environment(master: str | None) -> Iterator[None]:
    """Set, within the block, the environment variables that the launcher and the Python workers
    read. What the user has set of PYSPARK_PYTHON and SPARK_LOCAL_IP stays, and JAVA_HOME and SPARK_SUBMIT_OPTS are set only
    if Java is still to be started. Afterwards the former values are back.
    """
    ours = {} if "PYSPARK_PYTHON" in os.environ else {"PYSPARK_PYTHON": sys.executable}
    if not _is_submitted() and SparkContext._gateway is None:
        ours["JAVA_HOME"] = str(find_java_home())
        # before the user's options for Java, of which the last one counts
        ours["SPARK_SUBMIT_OPTS"] = f"{find_log_option()} {os.environ.get('SPARK_SUBMIT_OPTS', '')}".strip()
        if is_local(master) and "SPARK_LOCAL_IP" not in os.environ:
            # the address of Spark's web page, which has no setting of its own
            ours["SPARK_LOCAL_IP"] = LOOPBACK
    before = {name: os.environ.get(name) for name in ours}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _print_arguments() -> None:
    jars = ",".join(map(str, find_connector()))
    settings = " ".join(f"--conf {name}={value}" for name, value in _SETTINGS.items())
    sys.stdout.write(f"--jars {jars} {settings}\n")


if __name__ == "__main__":
    _print_arguments()
