"""Spark's predicates: what becomes of each, the same rows with and without, and why they are used only on demand."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import datasource as ds
from pyspark.sql import functions as F

from overlay.client.read.question import make_request
from overlay.client.read.topic import describe_topic
from overlay.filter.describe import describe
from overlay.scan.decode import NO_STOP
from spark.plan import PositionWindow
from spark.pushdown import push, to_literal
from tests.client.logs import KEPT
from tests.support.kafka import SureProducer, make_topic

pytestmark = pytest.mark.timeout(300)

STREAM = describe_topic(
    "t", {"n": "long", "d": "double", "s": "string", "b": "boolean", "raw": "binary", "at": "timestamp"}
)
SECOND = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
NS = 1_700_000_000_000
A = "application_properties"


def ask(**question: Any) -> Any:
    return make_request(STREAM, is_named=True, now=0, **question)


CONDITIONS: list[tuple[ds.Filter, str | None]] = [
    (ds.EqualTo((A, "n"), 5), "n = 5"),
    (ds.EqualNullSafe((A, "n"), 5), "n = 5"),
    (ds.Not(ds.EqualTo((A, "n"), 5)), "n <> 5"),
    (ds.Not(ds.EqualNullSafe((A, "n"), 5)), None),
    (ds.EqualNullSafe((A, "n"), None), None),
    (ds.GreaterThan((A, "d"), 60.5), "d > 60.5"),
    (ds.Not(ds.GreaterThan((A, "d"), 60.5)), "d <= 60.5"),
    (ds.LessThanOrEqual((A, "d"), 60), "d <= 60"),
    (ds.GreaterThan((A, "d"), float("nan")), None),
    (ds.GreaterThan((A, "n"), 1.5), None),
    (ds.EqualTo((A, "b"), True), "b = TRUE"),
    (ds.GreaterThan((A, "b"), False), None),
    (ds.EqualTo((A, "raw"), b"\x00"), "raw = 0x00"),
    (ds.In((A, "s"), ("a", "b")), "s IN ('a', 'b')"),
    (ds.In((A, "s"), ("a", None)), None),
    (ds.Not(ds.In((A, "s"), ("a", "b"))), "s NOT IN ('a', 'b')"),
    (ds.IsNull((A, "s")), "s IS NULL"),
    (ds.Not(ds.IsNull((A, "s"))), "s IS NOT NULL"),
    (ds.IsNotNull((A, "s")), "s IS NOT NULL"),
    (ds.StringStartsWith((A, "s"), "a"), "s BEGINS WITH 'a'"),
    (ds.StringEndsWith((A, "s"), "a"), "s ENDS WITH 'a'"),
    (ds.StringContains((A, "s"), "a%_!"), "s LIKE '%a!%!_!!%' ESCAPE '!'"),
    (ds.StringContains((A, "s"), "a\n"), None),
    (ds.EqualTo((A, "at"), SECOND), f"at = {NS}"),
    (ds.EqualTo((A, "at"), SECOND + timedelta(microseconds=1)), None),
    (ds.In((A, "at"), (SECOND, SECOND + timedelta(seconds=1))), f"at IN ({NS}, {NS + 1000})"),
    (ds.IsNull((A, "at")), None),
    (ds.Not(ds.IsNotNull((A, "at"))), None),
    (ds.EqualTo(("properties", "subject"), "x"), "properties.subject = 'x'"),
    (ds.EqualTo(("header", "priority"), 4), None),
    (ds.EqualTo(("n",), 5), "n = 5"),
    (ds.EqualTo(("undeclared",), 5), None),
    (ds.EqualTo((A, "undeclared"), "x"), None),
    (ds.EqualTo(("value",), b"x"), None),
]


@pytest.mark.parametrize(("filter", "text"), CONDITIONS, ids=[str(f) for f, _ in CONDITIONS])
def test_conditions_on_properties(filter: ds.Filter, text: str | None) -> None:
    pushed = push([filter], ask())
    assert (pushed.left == ()) is (text is not None)
    assert (None if pushed.request.filter is None else describe(pushed.request.filter.bound)) == text


def test_they_join_the_users_own() -> None:
    pushed = push([ds.EqualTo((A, "n"), 5), ds.IsNull((A, "s"))], ask(sql="d > 1"))
    assert pushed.request.filter is not None
    assert describe(pushed.request.filter.bound) == "d > 1 AND n = 5 AND s IS NULL"


@pytest.mark.parametrize(
    ("filter", "text"),
    [
        (ds.GreaterThan((A, "at"), SECOND), f"at > {NS}"),
        (ds.Not(ds.GreaterThan((A, "at"), SECOND)), f"at <= {NS}"),
        (ds.Not(ds.EqualTo((A, "at"), SECOND)), f"at <> {NS}"),
        (ds.Not(ds.EqualNullSafe((A, "at"), SECOND)), None),
        (ds.IsNotNull((A, "at")), "at IS NOT NULL"),
        (ds.Not(ds.IsNull((A, "at"))), "at IS NOT NULL"),
    ],
    ids=str,
)
def test_spark_tests_times_again_that_its_columns_may_not_have(filter: ds.Filter, text: str | None) -> None:
    """A time outside the years 1 to 9999 may pass, and is null for Spark."""
    pushed = push([filter], ask())
    assert pushed.left == (filter,)
    assert (None if pushed.request.filter is None else describe(pushed.request.filter.bound)) == text


SUBJECTS: list[tuple[list[ds.Filter], dict[str, Any], list[str], bool, bool]] = [
    ([ds.EqualTo(("subject",), "a.b")], {}, ["a.b"], True, False),
    ([ds.In(("subject",), ("a.b", None, "a.c"))], {"subjects": ["a.*"]}, ["a.b", "a.c"], True, False),
    ([ds.EqualTo(("subject",), "x.b")], {"subjects": ["a.*"]}, ["a.*"], True, True),
    ([ds.EqualTo(("subject",), "a.>")], {}, [">"], True, True),
    ([ds.StringStartsWith(("subject",), "a.b.")], {}, ["a.b.>"], True, False),
    ([ds.StringStartsWith(("subject",), "a.*.")], {}, [">"], False, False),
    ([ds.StringStartsWith(("subject",), "a.b")], {}, [">"], False, False),
    ([ds.StringStartsWith(("subject",), "a.b.")], {"subjects": ["a.*"]}, ["a.*"], False, False),
    ([ds.Not(ds.EqualTo(("subject",), "a"))], {}, [">"], False, False),
    ([ds.IsNotNull(("subject",)), ds.EqualTo(("subject",), "a")], {}, ["a"], True, False),
]


@pytest.mark.parametrize(("filters", "question", "patterns", "taken", "is_empty"), SUBJECTS)
def test_subjects(
    filters: list[ds.Filter], question: dict[str, Any], patterns: list[str], taken: bool, is_empty: bool
) -> None:
    pushed = push(filters, ask(**question))
    assert [str(pattern) for pattern in pushed.request.patterns] == patterns
    assert (pushed.left == (), pushed.is_empty) == (taken, is_empty)


MICRO = timedelta(microseconds=1)
TIMES: list[tuple[ds.Filter, tuple[int | None, int | None]]] = [
    (ds.GreaterThan(("timestamp",), SECOND), (NS + 1, None)),
    (ds.GreaterThan(("timestamp",), SECOND + MICRO), (NS + 1, None)),
    (ds.GreaterThanOrEqual(("timestamp",), SECOND), (NS, None)),
    (ds.GreaterThanOrEqual(("timestamp",), SECOND + MICRO), (NS + 1, None)),
    (ds.LessThan(("timestamp",), SECOND), (None, NS)),
    (ds.LessThan(("timestamp",), SECOND + MICRO), (None, NS + 1)),
    (ds.LessThanOrEqual(("timestamp",), SECOND), (None, NS + 1)),
    (ds.EqualTo(("timestamp",), SECOND), (NS, NS + 1)),
]


@pytest.mark.parametrize(("filter", "window"), TIMES)
def test_times(filter: ds.Filter, window: tuple[int | None, int | None]) -> None:
    pushed = push([filter], ask())
    left = () if isinstance(filter, ds.EqualTo) else (filter,)
    assert (pushed.request.since, pushed.request.until, pushed.left) == (*window, left)
    narrowed = push([filter], ask(since=SECOND - timedelta(days=1), until=SECOND + timedelta(days=1))).request
    assert narrowed.since is not None and narrowed.since >= NS - 86_400_000
    assert push([ds.EqualTo(("timestamp",), SECOND + MICRO)], ask()).is_empty


def test_positions_are_bounds_that_spark_tests_again() -> None:
    filters = [
        ds.GreaterThan(("sequence",), 10),
        ds.LessThanOrEqual(("sequence",), 20),
        ds.In(("partition",), (0, 1)),
        ds.EqualTo(("partition",), 1),
        ds.EqualTo(("topic",), "t"),
        ds.GreaterThanOrEqual(("offset",), 5),
    ]
    pushed = push(filters, ask())
    assert pushed.left == tuple(filters)
    assert pushed.window == PositionWindow((11, 21), (5, NO_STOP), frozenset({"t"}), frozenset({1}))
    assert pushed.window.clip(("t", 1), 0, 100, sequenced=True) == (10, 20)
    assert pushed.window.clip(("t", 1), 0, 100, sequenced=False) == (5, 100)
    assert pushed.window.clip(("t", 0), 0, 100, sequenced=True) == (100, 100)
    assert push([ds.EqualTo(("sequence",), 7)], ask()).window.clip(("t", 0), 3, 100, sequenced=True) == (6, 7)


def test_values_of_other_types_are_left_alone() -> None:
    assert to_literal(True, "long") is None and to_literal("5", "long") is None and to_literal(5, "string") is None


@pytest.fixture(scope="module")
def topic(bootstrap: str) -> str:
    name = make_topic(bootstrap, f"pushdown-{uuid.uuid4().hex[:8]}", 1, KEPT)
    producer = SureProducer(bootstrap)
    for number in range(500):
        place = ("oslo", "rome", "bonn")[number % 3]
        headers: list[tuple[str, str | bytes | None]] = [("to", place), ("n", str(number))]
        producer.produce(name, b"%d" % number, timestamp=NS + number, headers=headers if number % 7 else headers[:1])
    producer.flush(30)
    return name


def load(spark: SparkSession, bootstrap: str, topic: str, **options: str) -> DataFrame:
    definition = f"{{name: S, topics: [{topic}], subject: {{template: 'x.{{header:to}}'}}, properties: {{n: long}}}}"
    return spark.read.format("overlay").options(bootstrap=bootstrap, definition=definition, **options).load()


TAKEN = "subject = 'x.oslo' AND application_properties.n > 250"
MIXED = "NOT application_properties.n = 5 AND subject LIKE 'x.%' AND offset < 100"
MORE = [
    "timestamp >= '2023-11-14 22:13:20.100' AND timestamp < '2023-11-14 22:13:20.2' AND partition = 0",
    "sequence BETWEEN 11 AND 20 AND application_properties.n IS NOT NULL",
    "application_properties.n IN (1, 2, 3) OR subject = 'x.bonn'",
]


@pytest.mark.parametrize("text", [TAKEN, MIXED, *(pytest.param(each, marks=pytest.mark.slow) for each in MORE)])
def test_the_same_rows_with_and_without(spark: SparkSession, bootstrap: str, topic: str, text: str) -> None:
    plain = load(spark, bootstrap, topic).where(text)
    pushed = load(spark, bootstrap, topic, pushdown="true").where(text)
    rows = [row.offset for row in plain.select("offset").orderBy("offset").collect()]
    assert rows == [row.offset for row in pushed.select("offset").orderBy("offset").collect()] and rows


def test_what_is_taken_spark_does_not_test_again(spark: SparkSession, bootstrap: str, topic: str) -> None:
    taken, left = (
        load(spark, bootstrap, topic, pushdown=on).where(TAKEN)._jdf.queryExecution().toString()
        for on in ("true", "false")
    )
    assert "Filter (" not in taken.split("== Physical Plan ==")[1]
    assert "Filter (" in left.split("== Physical Plan ==")[1]


def test_why_it_is_off_where_nothing_is_said(spark: SparkSession, bootstrap: str, topic: str) -> None:
    """Spark answers the second query of a frame with the tasks of the first. Once it does not, the default can change."""
    pushed = load(spark, bootstrap, topic, pushdown="true")
    assert pushed.where("subject = 'x.oslo'").count() == 167
    assert pushed.agg(F.count("*")).collect()[0][0] == 167  # of 500
    plain = load(spark, bootstrap, topic)
    assert (plain.where("subject = 'x.oslo'").count(), plain.count()) == (167, 500)
