"""`spark.sql` over a config folder: streams as tables, what is looked up anew for each query, and what the catalog holds."""

from __future__ import annotations

import re
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from overlay.client import BadQuestion
from spark.options import read_definition
from spark.session import overlay_session
from spark.tables import create_table, list_columns, name_table, register_streams
from tests.client.logs import BASE, KEPT, Log, fill, open_log
from tests.support.kafka import SureProducer, make_topic

# a planner that has just started loads the package anew
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def log(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Log]:
    topic = make_topic(bootstrap, f"tables-{uuid.uuid4().hex[:8]}", 2, KEPT)
    fill(bootstrap, topic, 2)
    opened = open_log(bootstrap, tmp_path_factory.mktemp("tables") / "config", topic)
    yield opened
    opened.client.close()


@pytest.fixture(scope="module")
def tables(spark: SparkSession, log: Log) -> SparkSession:
    """The session with the table overlay.s."""
    assert overlay_session(config=log.client.origin) is spark
    return spark


def query(spark: SparkSession, text: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in spark.sql(text).collect())


def count_by_subject(log: Log) -> Counter[str]:
    found = Counter[str]()
    for batch in log.client.read("S", columns=["subject"], index=False):
        found.update(batch["subject"].to_pylist())
    return found


def test_a_stream_is_a_table(tables: SparkSession, log: Log) -> None:
    counted = count_by_subject(log)
    assert len(counted) == 3
    assert dict(query(tables, "SELECT subject, count(*) FROM overlay.s GROUP BY subject")) == counted
    some = query(tables, "SELECT subject, count(*) AS n FROM overlay.S WHERE subject LIKE 't.o%' GROUP BY subject")
    assert some == [("t.oslo", counted["t.oslo"])]


def test_declared_properties_are_columns(tables: SparkSession, log: Log) -> None:
    assert tables.table("overlay.s").columns == list_columns(log.client.find_stream("S"))
    frame = tables.read.format("overlay").options(config=log.client.origin, stream="S").load()
    wanted = frame.selectExpr("application_properties.delay", "application_properties.raw", "application_properties.n")
    found = tables.sql("SELECT delay, raw, n FROM overlay.s")
    assert sorted(map(repr, found.collect())) == sorted(map(repr, wanted.collect()))
    late = query(tables, "SELECT partition, offset FROM overlay.s WHERE delay > 60")
    assert late == query(frame.sparkSession, "SELECT partition, offset FROM overlay.s WHERE delay = 70.5") and late


def test_two_conditions_on_one_table_in_one_query(tables: SparkSession, log: Log) -> None:
    counted = count_by_subject(log)
    text = (
        "SELECT 'a', count(*) FROM overlay.s WHERE subject = 't.rome' UNION ALL SELECT 'b', count(*) FROM overlay.s WHERE"
        " subject = 't.bonn' UNION ALL SELECT 'c', count(*) FROM overlay.s"
    )
    assert query(tables, text) == [("a", counted["t.rome"]), ("b", counted["t.bonn"]), ("c", sum(counted.values()))]


def test_each_query_reads_what_is_committed_then(tables: SparkSession, log: Log, bootstrap: str) -> None:
    text = "SELECT count(*) FROM overlay.s"
    ((before,),) = query(tables, text)
    producer = SureProducer(bootstrap)
    producer.produce(log.topic, b"new", partition=0, headers=[("to", "rome")], timestamp=BASE)
    assert producer.flush(30) == 0
    assert query(tables, text) == [(before + 1,)]


def test_a_table_of_its_own_has_options_of_its_own(tables: SparkSession, log: Log) -> None:
    wanted = count_by_subject(log)["t.oslo"]
    create_table(
        tables, "oslo", {"config": log.client.origin, "stream": "S", "subjects": "t.oslo", "columns": "offset,n"}
    )
    assert tables.table("overlay.oslo").columns == ["offset", "n"]
    text = "SELECT count(*) FROM overlay.oslo UNION ALL SELECT count(*) FROM overlay.s WHERE subject = 't.oslo'"
    assert query(tables, text) == [(wanted,), (wanted,)]
    create_table(tables, "oslo", {"config": log.client.origin, "stream": "S", "subjects": "t.nowhere"})
    assert query(tables, "SELECT count(*) FROM overlay.oslo") == [(0,)]


def test_options_behind_a_table_are_refused(tables: SparkSession) -> None:
    """Of two mentions of a table in one query Spark would use the options of one for both."""
    with pytest.raises(AnalysisException, match="a table takes no options, and subjects was given"):
        tables.sql("SELECT count(*) FROM overlay.s WITH (subjects = 't.rome')").collect()


def test_the_catalog_holds_no_option(tables: SparkSession, log: Log, bootstrap: str) -> None:
    secret = "a-word-that-stays-secret"
    options = {"bootstrap": bootstrap, "topic": log.topic, "kafka.client.id": secret, "columns": "offset"}
    create_table(tables, "bare", options)
    assert query(tables, "SELECT count(*) > 0 FROM overlay.bare") == [(True,)]
    texts = [
        str(tables.sql(f"{command} overlay.bare").collect()) for command in ("DESCRIBE EXTENDED", "SHOW CREATE TABLE")
    ]
    texts += [
        str(tables.sql("DESCRIBE DATABASE EXTENDED overlay").collect()),
        str(tables.catalog.listTables("overlay")),
    ]
    plan = tables.sql("SELECT * FROM overlay.bare")
    texts.append(str(plan._jdf.queryExecution().toString()))
    assert not [text for text in texts if secret in text or bootstrap in text]


def test_a_stream_that_is_gone_is_told_at_the_query(tables: SparkSession, log: Log, tmp_path: Path) -> None:
    folder = tmp_path / "config"
    (folder / "streams").mkdir(parents=True)
    text = Path(log.client.origin, "overlay.yaml").read_text(encoding="utf-8")
    (folder / "overlay.yaml").write_text(text, encoding="utf-8")
    file = folder / "streams" / "gone.yaml"
    file.write_text(f"name: GONE-1\ntopics: [{log.topic}]\n", encoding="utf-8")
    assert register_streams(tables, folder) == ["overlay.gone_1"]
    assert query(tables, "SELECT count(*) > 0 FROM overlay.gone_1") == [(True,)]
    file.unlink()
    with pytest.raises(AnalysisException, match="there is no stream 'GONE-1'"):
        tables.sql("SELECT * FROM overlay.gone_1").collect()
    for name in ("a-b", "a_b"):
        (folder / "streams" / f"{name}.yaml").write_text(f"name: {name}\ntopics: [{log.topic}]\n", encoding="utf-8")
    with pytest.raises(BadQuestion, match=r"streams a-b and a_b would both be the table overlay\.a_b"):
        register_streams(tables, folder)


def test_names_that_are_none(tables: SparkSession) -> None:
    assert name_table("FLIGHTS-2") == "flights_2"
    with pytest.raises(BadQuestion, match="'late flights' is no name of a table"):
        create_table(tables, "late flights", {})


@pytest.mark.parametrize(
    ("setting", "value"),
    [("spark.sql.catalogImplementation", "hive"), ("spark.sql.catalog.spark_catalog", "org.example.DeltaCatalog")],
)
def test_another_catalog_is_refused(setting: str, value: str) -> None:
    """One that outlives the session, or one that does not look up Python data sources."""
    session: Any = SimpleNamespace(conf={setting: value})
    with pytest.raises(
        BadQuestion, match=f"the session's catalog is {re.escape(value)}, and tables of the overlay need"
    ):
        create_table(session, "s", {"topic": "t", "bootstrap": "h:1"})


def test_what_spark_hands_to_a_python_source() -> None:
    """Predicates, and neither columns nor limits nor aggregates: docs/spark-source.md says so of tables."""
    asked = {name for name, each in vars(DataSourceReader).items() if callable(each) and not name.startswith("_")}
    assert asked == {"partitions", "read", "pushFilters"}


def test_spark_refuses_columns_that_are_dictionary_encoded(spark: SparkSession) -> None:
    """So format("overlay") hands on plain ones. Once Spark takes them, texts that repeat need not be written out."""
    is_encoded = False

    class Encoded(DataSource):
        @classmethod
        def name(cls) -> str:
            return "encoded"

        def schema(self) -> str:
            return "text string"

        def reader(self, schema: StructType) -> DataSourceReader:
            return Reader()

    class Reader(DataSourceReader):
        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            texts = pa.array(["a", "b", "a"])
            yield pa.RecordBatch.from_arrays([texts.dictionary_encode() if is_encoded else texts], ["text"])

    for is_encoded in (False, True):
        spark.dataSource.register(Encoded)
        rows = spark.read.format("encoded").load()
        if not is_encoded:
            assert [row.text for row in rows.collect()] == ["a", "b", "a"]
            continue
        with pytest.raises(PySparkException):
            rows.collect()


def test_columns_whose_names_meet() -> None:
    """Spark's names are case-insensitive, and a record has columns already."""
    stream = read_definition(
        "{name: S, topics: [t], properties: {Delay: double, delay: double, key: string, header: long, from: string}}"
    )
    assert list_columns(stream)[10:] == [
        "Delay",
        "application_properties.delay",
        "application_properties.key",
        "application_properties.header",
        "from",
    ]


def test_a_table_as_a_stream(tables: SparkSession, log: Log, tmp_path: Path) -> None:
    options = {"config": log.client.origin, "stream": "S", "startingOffsets": "earliest", "subjects": "t.rome"}
    create_table(tables, "rome", options)
    found: list[str] = []
    query = (
        tables.readStream.table("overlay.rome")
        .writeStream.foreachBatch(lambda batch, _: found.extend(row.subject for row in batch.collect()))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert found == ["t.rome"] * count_by_subject(log)["t.rome"]
