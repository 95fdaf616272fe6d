"""Streams as tables of `spark.sql`: `SELECT carrier, count(*) FROM overlay.flights GROUP BY carrier`.

Python data sources have no catalog, and Spark 4.2 drops the options of a table that is made with
`CREATE TABLE ... USING` when it hands the table to a Python data source. So each table has a data
source of its own, a class that has the options in it and is registered with the session. The
catalog, which is Spark's own in memory, has the name, the columns and the name of that class. It has
no options, hence no secrets, and it ends with the session.

Spark looks a table up anew for each query, so each query reads what is committed then. Within one
query it looks up each table once, and a `WITH (...)` of the second mention would be ignored. That
would give wrong rows without a word, so options behind a table's name are refused.

A table has the columns of a record, and each property that the stream's file declares as a column of
its own.
"""

from __future__ import annotations

import atexit
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from overlay.client import BadQuestion
from overlay.client.read.typed_columns import list_fields, list_own
from overlay.config import load
from overlay.config.stream import StreamConfig
from overlay.logs import get_logger

from .datasource import NAME, OverlaySource
from .form import ENVELOPE, make_schema
from .options import Ask, read_options

log = get_logger(__name__)

DATABASE = "overlay"
_OF_DELIVERIES = ("consumer", "consumer_sequence", "num_delivered", "ack_token")
"""Columns of the envelope that are null in a stream."""
_CATALOG, _IN_MEMORY = "spark.sql.catalogImplementation", "in-memory"
_PLUGIN, _BUILT_IN = "spark.sql.catalog.spark_catalog", "builtin"


def register_streams(spark: SparkSession, config: str | Path) -> list[str]:
    """Make a table of each stream of a config folder, and return their names, such as `overlay.flights`.

    Names are in small letters, with `_` in place of other characters than letters, digits and `_`. Tables of the same
    names are replaced. A stream whose file was refused has no table; a warning is logged.

    Raises ConfigError, and BadQuestion if two streams would have the same name or if the session's catalog is not
    Spark's own in memory.
    """
    folder = str(Path(config).resolve())
    streams: dict[str, str] = {}
    loaded = load(Path(folder))
    for problem in loaded.problems:
        if Path(problem.place.file).parent.name == "streams":
            log.warning("a stream's file is refused, so it has no table", reason=str(problem))
    for stream in sorted(loaded.streams):
        name = name_table(stream)
        if name in streams:
            raise BadQuestion(
                f"streams {streams[name]} and {stream} would both be the table {DATABASE}.{name}. Make the tables with"
                " create_table, under names of your own"
            )
        streams[name] = stream
    for name, stream in streams.items():
        create_table(spark, name, {"config": folder, "stream": stream})
    return [f"{DATABASE}.{name}" for name in streams]


def create_table(spark: SparkSession, name: str, options: Mapping[str, str]) -> None:
    """Make the table `overlay.<name>` of what `format("overlay")` reads with these options, such as
    `{"config": "examples/flights", "stream": "FLIGHTS", "subjects": "flights.JFK.>"}`.

    A table of that name is replaced. `columns` and bounds of batches may be among the options.
    Raises BadQuestion and what `read_options` raises.
    """
    if not re.fullmatch(r"\w+", name, re.ASCII):
        raise BadQuestion(f"{name!r} is no name of a table. Use letters, digits and _")
    _check_catalog(spark)
    # the process that plans may run in another folder
    fixed = {key: str(Path(value).resolve()) if key.lower() == "config" else value for key, value in options.items()}
    ask = read_options(fixed)
    source = make_source(f"{NAME}_{name.lower()}", fixed)
    _make_database(spark)
    spark.sql(f"DROP TABLE IF EXISTS {DATABASE}.`{name}`")
    spark.dataSource.register(source)
    spark.catalog.createTable(f"{DATABASE}.`{name}`", source=source.name(), schema=make_table_schema(ask))


def name_table(stream: str) -> str:
    """Return the name of a stream's table, without the database: in small letters, as Spark keeps it, with
    `_` in place of all but letters, digits and `_`.
    """
    return re.sub(r"\W", "_", stream, flags=re.ASCII).lower()


def make_table_schema(ask: Ask) -> StructType:
    """Return the columns of a table: those that the options name, else those of `list_columns`."""
    stream = ask.request.stream
    return make_schema(stream, list_columns(stream) if ask.columns is None else ask.columns)


def list_columns(stream: StreamConfig) -> list[str]:
    """Return all columns of a stream's table, by the names that make_schema takes.

    Spark's names are case-insensitive. A property whose name another column has already is in the
    struct `application_properties`.
    """
    columns = [name for name in ENVELOPE if name not in _OF_DELIVERIES]
    own, taken = list_own(stream), set(columns)
    for section, name in list_fields(stream):
        if section != "application_properties":
            continue
        if name in own and name.lower() not in taken:
            taken.add(name.lower())
            columns.append(name)
        else:
            columns.append(f"{section}.{name}")
    return columns


def make_source(name: str, options: Mapping[str, str]) -> type[OverlaySource]:
    """Return a data source of this name that reads with these options. Options that a query gives it raise
    BadQuestion.
    """

    class TableSource(OverlaySource):
        """The data source of one table."""

        @classmethod
        def name(cls) -> str:
            return name

        def _ask(self) -> Ask:
            if self.options:
                raise BadQuestion(
                    f"a table takes no options, and {', '.join(self.options)} was given. Make a table of its own with"
                    " spark.tables.create_table, or use spark.read.format('overlay')"
                )
            return read_options(options)

    return TableSource


def _check_catalog(spark: SparkSession) -> None:
    """Raise BadQuestion if tables would outlive the session, in which alone their sources are, or
    if another catalog looks them up, since Spark then knows no tables of Python data sources.
    """
    kind, plugin = str(spark.conf.get(_CATALOG, _IN_MEMORY)), str(spark.conf.get(_PLUGIN, _BUILT_IN))
    if kind != _IN_MEMORY or plugin != _BUILT_IN:
        raise BadQuestion(
            f"the session's catalog is {kind if plugin == _BUILT_IN else plugin}, and tables of the overlay need Spark's own"
            " in memory. Use spark.read.format('overlay').load().createOrReplaceTempView(...)"
        )


def _make_database(spark: SparkSession) -> None:
    if not spark.catalog.databaseExists(DATABASE):
        # Spark makes an empty folder for each table, by default where the program runs
        folder = Path(tempfile.mkdtemp(prefix="overlay-tables-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        spark.sql(f"CREATE DATABASE {DATABASE} LOCATION '{folder.as_uri()}'")
