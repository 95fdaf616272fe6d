"""Filters as Columns against the two evaluators of the overlay, on random pairs and on every example of the facts' tests.

The pairs of a filter and a message share one frame: each filter meets as many messages as the frame has rows, and reads the
sections of its own schema, which are columns `s0_header`, `s1_header` and so on.
OVERLAY_FILTER_PAIRS=20000, which counts the filters of tests/filter, makes a tenth as many pairs here: each costs a plan of
Spark's.
"""

from __future__ import annotations

import os
import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from overlay.client.read.topic import describe_topic
from overlay.errors import FilterSyntaxError
from overlay.filter import compile_properties, compile_sql, like, rows
from overlay.filter.arrow import evaluate
from overlay.filter.bind import bind
from overlay.filter.message import read_field, to_value
from overlay.filter.nodes import Column as Field
from overlay.filter.nodes import Name, Node, Section, walk
from overlay.filter.parse import parse
from overlay.filter.properties import parse_properties
from overlay.filter.rewrite import rewrite
from overlay.filter.rows import to_truth
from overlay.filter.trees import map_children
from spark.columns import FindField, find_in_envelope, to_column, write
from spark.comparing import match_text
from tests.filter import messages as samples
from tests.filter import strategies as some
from tests.filter import test_rows
from tests.filter.strategies import Schema

PAIRS = int(os.environ.get("OVERLAY_FILTER_PAIRS", "2000")) // 10
ROWS = 5
CHUNK = 200
"""Filters that are asked in one select."""

pytestmark = pytest.mark.timeout(300 + PAIRS // 10)

Messages = list[dict[str, dict[str, Any]]]
Case = tuple[Schema, Node, Messages]


def gather_cases(count: int) -> list[Case]:
    """Filters and messages as Hypothesis makes them: expressions as read and as rewritten, and property filters."""
    found: list[Case] = []

    @seed(7)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(some.cases(rows=ROWS), st.data())
    def gather(case: Case, data: st.DataObject) -> None:
        schema, node, messages = case
        if data.draw(st.integers(0, 7)) == 0:
            node = parse_properties(data.draw(some.property_filters(schema)))
        try:
            bound = bind(node, schema.types, " " * 8)
        except FilterSyntaxError:
            return
        found.append((schema, rewrite(bound) if data.draw(st.booleans()) else bound, messages))

    while len(found) < count:
        gather()
    return found[:count]


def find_under(prefix: str) -> FindField:
    def find(field: Field) -> Column:
        return F.col(f"{prefix}_{field.section.value}").getField(field.name)

    return find


def make_table(cases: list[Case]) -> pa.Table:
    columns: dict[str, pa.Array] = {}
    for number, (schema, _, messages) in enumerate(cases):
        batch = some.to_batch(schema, messages)
        columns |= {f"s{number}_{section}": batch[section] for section in batch.schema.names}
    return pa.table(columns | {"row": pa.array(range(ROWS))})


def test_three_evaluators_agree(spark: SparkSession) -> None:
    cases = gather_cases(PAIRS // ROWS)
    frame = spark.createDataFrame(make_table(cases))
    for at in range(0, len(cases), CHUNK):
        part = list(enumerate(cases))[at : at + CHUNK]
        answers = [write(node, find_under(f"s{i}"), some.NOW).alias(f"a{i}") for i, (_, node, _) in part]
        table = frame.select("row", *answers).toArrow().sort_by("row")
        for number, (schema, node, messages) in part:
            by_row = [to_truth(rows.evaluate(node, message, some.NOW)) for message in messages]
            by_batch = evaluate(node, some.to_batch(schema, messages), some.NOW).to_pylist()
            assert (table[f"a{number}"].to_pylist(), by_batch) == (by_row, by_row), f"{node}\n{messages}"


Asked = tuple[str, dict[str, dict[str, Any]]]
_TYPES = {bool: "boolean", int: "long", float: "double", bytes: "binary"}
UNSEEN = {"u", "huge"}
"""Numbers that no column of Spark holds."""


def gather_facts(monkeypatch: pytest.MonkeyPatch) -> list[Asked]:
    """What the tests of the row evaluator ask, one case for each rule of the facts."""
    found: list[Asked] = []

    def ask(text: str, message: dict[str, dict[str, Any]] = samples.MESSAGE, now: int = some.NOW) -> Any:
        found.append((text, message))
        return samples.ask(text, message, now)

    monkeypatch.setattr(test_rows, "ask", ask)
    monkeypatch.setattr(test_rows, "check", lambda cases: [ask(text) for text in cases])
    for name, test in vars(test_rows).items():
        if name.startswith("test_") and callable(test) and not test.__code__.co_argcount:
            test()
    return found


def find_type(name: Name, message: dict[str, dict[str, Any]]) -> str:
    value = read_field(message, name.section, name.name)
    return _TYPES.get(type(value), "double") if value is not None else "double"


def bind_to(node: Node, message: dict[str, dict[str, Any]]) -> Node:
    """Types are those of the message's values, as they are to the row evaluator."""
    if isinstance(node, Name):
        return Field(node.section, node.name, find_type(node, message))
    return map_children(node, lambda child: bind_to(child, message))


def test_every_case_of_the_facts(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [(text, message, bind_to(parse(text), message)) for text, message in gather_facts(monkeypatch)]
    asked = [each for each in asked if not UNSEEN & {f.name for f in walk(each[2]) if isinstance(f, Field)}]
    assert len(asked) > 200

    def find_in(message: dict[str, dict[str, Any]]) -> FindField:
        def find(field: Field) -> Column:
            value = (message.get(field.section.value) or {}).get(field.name)
            value = value if field.section is Section.APPLICATION else read_field(message, field.section, field.name)
            known = value if isinstance(value, float) else to_value(value)
            literal = F.lit(bytearray(known)) if isinstance(known, bytes) else F.lit(known)
            return literal.cast("timestamp" if field.type == "timestamp" else field.type.replace("long", "bigint"))

        return find

    answers = [write(node, find_in(message), some.NOW).alias(f"a{i}") for i, (_, message, node) in enumerate(asked)]
    row = spark.range(1).select(*answers).toArrow().to_pylist()[0]
    wrong = {
        text: row[f"a{i}"]
        for i, (text, message, _) in enumerate(asked)
        if row[f"a{i}"] is not to_truth(samples.ask(text, message))
    }
    assert wrong == {}


def test_what_is_said_of_the_envelope_alone(spark: SparkSession) -> None:
    """Fields out of headers, key, subject and times, for frames that have no sections."""
    stream = describe_topic(
        "t", {"delay": "double", "count": "long", "late": "boolean", "at": {"type": "timestamp", "from": "{timestamp}"}}
    )
    frame = spark.createDataFrame(
        pa.table(
            {
                "row": [0, 1, 2],
                "subject": ["t", "t", "t"],
                "topic": ["t", "t", "t"],
                "key": [b"k", None, b""],
                "timestamp": pa.array([some.NOW, some.NOW + 1, None], pa.timestamp("ms", "UTC")),
                "headers": pa.array(
                    [
                        [("delay", b"1"), ("delay", b"60.5"), ("count", b"9007199254740993")],
                        [("delay", b"x"), ("late", b"true"), ("count", b"-1")],
                        [("delay", None)],
                    ],
                    pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())])),
                ),
            }
        )
    )
    cases: dict[str, list[bool | None]] = {
        "delay > 60": [True, None, None],
        "delay IS NULL": [False, True, True],
        "count = 9007199254740993": [True, False, None],
        "count + 1 = 0": [False, True, None],
        "late": [None, True, None],
        f"at > {some.NOW}": [False, True, None],
        "p.subject LIKE 't%' AND p.to = 't'": [True, True, True],
        "p.group_id = 'k'": [True, None, False],
    }
    answers = [
        to_column(compile_sql(text, stream.properties), find_in_envelope(stream)).alias(f"a{i}")
        for i, text in enumerate(cases)
    ]
    table = frame.select("row", *answers).toArrow().sort_by("row")
    assert {text: table[f"a{i}"].to_pylist() for i, text in enumerate(cases)} == cases


def test_like_in_java(spark: SparkSession) -> None:
    """Against the overlay's engine. The last texts keep a regular expression that goes back busy for hours."""
    chance = random.Random(7)
    patterns = ["".join(chance.choices("ab_%%.\\😀!", k=chance.randint(1, 9))).rstrip("!") for _ in range(300)]
    asked = [like.compile(pattern, "!") for pattern in ("%a%a%a%a%b%c", "%_a%_a%_a%_a_b%", *patterns)]
    texts = ["".join(chance.choices("ab.\\\n😀%_!", k=chance.randint(0, 9))) for _ in range(300)]
    texts += ["a" * 2000, "a" * 2000 + "b"]
    frame = spark.createDataFrame(pa.table({"row": range(len(texts)), "text": texts}))
    answers = [match_text(pattern, F.col("text")).alias(f"a{i}") for i, pattern in enumerate(asked)]
    table = frame.select("row", *answers).toArrow().sort_by("row")
    for i, pattern in enumerate(asked):
        assert table[f"a{i}"].to_pylist() == [pattern.matches(text.encode()) for text in texts], pattern


def make_headers(*rows: list[tuple[str, bytes | None]]) -> pa.Table:
    kind = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))
    return pa.table({"row": range(len(rows)), "headers": pa.array(rows, kind)})


def test_bytes_that_are_no_text(spark: SparkSession) -> None:
    frame = spark.createDataFrame(make_headers([("a", b"\xff")], [("a", "ä".encode())], [("a", b"")]))
    stream = describe_topic("t", {"raw": {"type": "binary", "from": "{header:a}"}})
    cases: dict[str, list[bool | None]] = {
        "a <> 'b'": [None, True, True],
        "a LIKE '%'": [None, True, True],
        "a IS NULL": [True, False, False],
        "raw = 0xFF": [True, False, False],
    }
    filters = [compile_sql(text, stream.properties) for text in cases]
    answers = [to_column(each, find_in_envelope(stream)).alias(f"a{i}") for i, each in enumerate(filters)]
    table = frame.select("row", *answers).toArrow().sort_by("row")
    assert {text: table[f"a{i}"].to_pylist() for i, text in enumerate(cases)} == cases


def test_what_is_there_and_cannot_be_read(spark: SparkSession) -> None:
    frame = spark.createDataFrame(make_headers([("n", b"abc")], [("n", b"7")], [("n", None)], [("m", b"7")]))
    stream = describe_topic("t", {"n": "long"})
    filter = compile_properties({"application_properties": {"n": None}}, stream.properties)
    table = frame.select("row", to_column(filter, find_in_envelope(stream)).alias("a")).toArrow().sort_by("row")
    assert table["a"].to_pylist() == [True, True, False, False]


def test_types_have_to_be_known() -> None:
    with pytest.raises(ValueError, match="compiled without the stream's properties"):
        to_column(compile_sql("a = 'b'"))
    stream = describe_topic("t", {"n": {"type": "long", "from": "{value:n}"}})
    with pytest.raises(ValueError, match=r"format\(\"overlay\"\)"):
        to_column(compile_sql("n = 1", stream.properties), find_in_envelope(stream))


def test_what_spark_can_say_it_says_itself(spark: SparkSession) -> None:
    """No Python in the plan of an everyday filter."""
    types = {"delay": "double", "carrier": "string", "day": "long"}
    frame = spark.createDataFrame(pa.table({"application_properties": [{"delay": 1.0, "carrier": "AA", "day": 1}]}))
    text = "(delay > 60 OR delay * 2 < 1) AND carrier IN ('AA', 'UA') AND NOT carrier LIKE 'A_%' AND day <> 3"
    plan = frame.where(to_column(compile_sql(text, types)))._jdf.queryExecution().toString()
    assert "Arrow" not in plan.split("== Physical Plan ==")[1]
    plan = frame.where(to_column(compile_sql("day + 1 > 3", types)))._jdf.queryExecution().toString()
    assert "ArrowEvalPython" in plan
