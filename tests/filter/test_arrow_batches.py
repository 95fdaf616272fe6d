"""Filters over batches: the types of Arrow, sections and slices, and what is evaluated only once."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from overlay.filter import rows
from overlay.filter.arrow import Evaluation, Program, compile, evaluate
from overlay.filter.nodes import And, Arithmetic, Calculation, Compare, Comparison, Literal, Name, Node
from overlay.filter.parse import parse
from tests.filter.batches import APPLICATION, COLUMNS, NOW, TOP, ask, make_batch, take_row


@pytest.mark.parametrize("type", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "America/New_York"])
def test_timestamps_are_whole_milliseconds(type: str, zone: str | None) -> None:
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[type]
    ticks = [0, per_second, -per_second, -1, 1, None]
    array = pa.array(ticks, pa.int64()).cast(pa.timestamp(type, zone))
    want = [None if tick is None else tick * 1000 // per_second for tick in ticks]
    for milliseconds in {value for value in want if value is not None}:
        found = ask(f"t = {milliseconds}", {"t": array})
        assert found == [None if value is None else value == milliseconds for value in want]


def test_times_beyond_int64_milliseconds_are_null() -> None:
    array = pa.array([TOP, -TOP - 1, 1], pa.int64()).cast(pa.timestamp("s"))
    assert ask("t IS NULL", {"t": array}) == [True, True, False]


OTHER_TYPES = {
    "string_view": pa.array(["a", "é", None]).cast(pa.string_view()),
    "binary_view": pa.array([b"a", b"\xff", None]).cast(pa.binary_view()),
    "large_binary": pa.array([b"a", b"\xff", None], pa.large_binary()),
    "fixed_size_binary": pa.array([b"a", b"\xff", None], pa.binary(1)),
    "float16": pa.array([0.5, 2.0, None], pa.float16()),
    "uint32": pa.array([0, 2**32 - 1, None], pa.uint32()),
    "uuid": pa.array([b"0123456789abcdef", b"\xff" * 16, None], pa.uuid()),
    "numbers by code": pa.array([5, 7, None], pa.uint16()).dictionary_encode(),
}


@pytest.mark.parametrize("name", OTHER_TYPES)
def test_other_types_of_arrow(name: str) -> None:
    column = OTHER_TYPES[name]
    texts = ["x = 'a'", "x LIKE '_'", "x > 0x61", "x = 2", "x * 2 = 1", "x IN (5, 0.5, 'a', 4294967295)", "x IS NULL"]
    texts += ["x = '0123456789abcdef'", "x < 1", "x + 1 > 0"]
    for text in texts:
        node = parse(text)
        want = [rows.evaluate(node, take_row({"x": column}, row), NOW) for row in range(3)]
        assert ask(text, {"x": column}) == want, text


FOREIGN = (
    pa.array([1, 2]).cast(pa.decimal128(21, 2)),
    pa.array([1, 2], pa.int32()).cast(pa.date32()),
    pa.array([1, 2], pa.int32()).cast(pa.time32("s")),
    pa.array([[1], [2]]),
    pa.array([{"y": 1}, {"y": 2}]),
)


@pytest.mark.parametrize("column", FOREIGN, ids=lambda array: str(array.type))
def test_types_that_the_language_does_not_have_are_null(column: pa.Array) -> None:
    assert ask("x IS NULL", {"x": column}) == [True, True]
    assert ask("x = 1 OR x <> 1", {"x": column}) == [None, None]


TEXTS = (
    "i = 5 AND s LIKE 'H%'", "b LIKE '_%' OR i + 1 > 0", "code = 'Hello'", "code = s", "code IS NULL OR code < 'a'",
    "u > 5", "t OR f > 1", "s IN ('Hello', 'x', '')", "i < d", "i % 2 = 1",
)  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_slices_answer_as_their_rows_do(text: str) -> None:
    """Offsets of arrays, of structs and of dictionaries; empty batches; nulls of a whole section."""
    columns = {name: pa.concat_arrays([array] * 5) for name, array in COLUMNS.items()}
    batch = make_batch(columns)
    whole = evaluate(parse(text), batch, NOW)
    assert whole.to_pylist() == ask(text) * 5
    for start, size in ((0, 0), (0, 1), (3, 1), (3, 9), (13, 7), (20, 0)):
        piece = batch.slice(start, size)
        assert evaluate(parse(text), piece, NOW).to_pylist() == whole.slice(start, size).to_pylist()
    chunks = pa.Table.from_batches([batch.slice(0, 7), batch.slice(7, 1), batch.slice(8)]).to_batches(max_chunksize=3)
    assert [answer for chunk in chunks for answer in evaluate(parse(text), chunk, NOW).to_pylist()] == whole.to_pylist()


def test_a_null_section_has_null_fields() -> None:
    struct = pa.StructArray.from_arrays([pa.array([1, 2, 3])], ["x"], mask=pa.array([False, True, False]))
    batch = pa.RecordBatch.from_pydict({"application_properties": struct}).slice(1)
    assert evaluate(parse("x > 0"), batch, NOW).to_pylist() == [None, True]
    assert evaluate(parse("p.subject = 'a' OR x = 3"), batch, NOW).to_pylist() == [None, True]


def test_spellings_of_the_fixed_fields() -> None:
    batch = make_batch({"a-b": pa.array([1])}, properties={"group-sequence": pa.array([7]), "subject": pa.array(["x"])})
    assert evaluate(parse("p.group_sequence = 7"), batch, NOW).to_pylist() == [True]
    assert evaluate(parse("a.a_b = 1"), batch, NOW).to_pylist() == [None]
    assert evaluate(parse("[a-b] = 1"), batch, NOW).to_pylist() == [True]
    both = make_batch({}, properties={"to": pa.array(["a"]), "group_id": pa.array([None, "b"][:1], pa.string()),
                                      "group-id": pa.array(["c"])})  # fmt: skip
    assert evaluate(parse("p.group_id = 'c'"), both, NOW).to_pylist() == [True]


def test_a_section_that_is_no_struct_is_refused() -> None:
    batch = pa.RecordBatch.from_pydict({"application_properties": pa.array([1, 2])})
    with pytest.raises(TypeError, match="application_properties is int64"):
        evaluate(parse("x = 1"), batch, NOW)
    nothing = pa.RecordBatch.from_pydict({"application_properties": pa.nulls(2)})
    assert evaluate(parse("x = 1"), nothing, NOW).to_pylist() == [None, None]


def test_a_column_of_another_length_is_refused() -> None:
    for column in (pa.array([1, 2, 3]), pa.array([1, 1, 1]).dictionary_encode()):
        with pytest.raises(ValueError, match=r"application_properties\.x has 3 values in a batch of 2 rows"):
            compile(parse("x = 1"))({(APPLICATION, "x"): column}, 2, NOW)


def test_equal_nodes_have_one_program_while_it_is_held() -> None:
    first = compile(parse("carrier = 'AA' AND dep_delay > 60"))
    assert compile(parse("carrier='AA'   AND (dep_delay) > 60")) is first
    assert compile(parse("carrier = 'AA' AND dep_delay > 60.0")) is not first
    held = weakref.ref(first)
    del first
    gc.collect()
    assert held() is None


def test_a_program_is_run_once_a_batch() -> None:
    part, runs = compile(parse("x = 1")), []

    def run(batch: Evaluation) -> Any:
        runs.append(batch)
        return part.run(batch)

    counted = Program(part.node, part.columns, run)
    batch = Evaluation({(APPLICATION, "x"): pa.array([1, 2])}, 2, NOW)
    assert [batch.answer(counted).to_pylist() for _ in range(3)] == [[True, False]] * 3
    assert len(runs) == 1


def test_one_dictionary_column_is_evaluated_on_its_dictionary() -> None:
    """The rows are dealt the answers: only as many values are looked at as the dictionary has."""
    seen = []
    part = compile(parse("carrier LIKE '_A' OR carrier IS NULL"))

    def run(batch: Evaluation) -> Any:
        seen.append(batch.rows)
        return part.run(batch)

    codes = pa.array([0, 1, None, 1] * 100, pa.int16())
    column = pa.DictionaryArray.from_arrays(codes, pa.array(["AA", "UA"]).slice(0))
    batch = Evaluation({(APPLICATION, "carrier"): column}, 400, NOW)
    assert batch.answer(Program(part.node, part.columns, run)).to_pylist() == [True] * 400
    assert seen == [3]


def test_doubt_is_dealt_out_with_the_distinct_values() -> None:
    """The sum is computed on the dictionary, and compared beyond it."""
    codes = pa.array([0, 1, None, 0, 1], pa.int8())
    columns = {"c": pa.DictionaryArray.from_arrays(codes, pa.array([TOP, 1])), "y": pa.array([TOP, TOP, 1, None, 1])}
    assert ask("c + 1 > y", columns) == [True, False, None, None, True]


@pytest.mark.parametrize(
    "text", ["x + 10000000000000000000000 > y", "x * x <> y", "x IN (y + 10000000000000000000000)"]
)
def test_rows_in_doubt_with_the_same_values_are_asked_once(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole numbers beyond 64 bits are left to the row evaluator, which is slow."""
    asked: list[dict[str, Any]] = []
    answer = rows.evaluate
    columns = {"x": pa.array([TOP - i % 7 for i in range(900)]), "y": pa.array([i % 3 for i in range(900)])}
    node = parse(text)
    want = [answer(node, take_row(columns, row), NOW) for row in range(900)]

    def note(part: Node, message: dict[str, Any], now: int) -> Any:
        asked.append(message)
        return answer(part, message, now)

    compile(node)  # what is constant is computed here
    monkeypatch.setattr("overlay.filter.arrow.evaluation.by_row", SimpleNamespace(evaluate=note))
    assert ask(text, columns) == want
    assert len(asked) == 21


def test_deep_and_wide_trees() -> None:
    node: Node = Name(APPLICATION, "x")
    for _ in range(150):
        node = Calculation(Arithmetic.ADD, node, Literal(1))
    batch = make_batch({"x": pa.array([1, 2])})
    assert evaluate(Comparison(Compare.EQ, node, Literal(151)), batch, NOW).to_pylist() == [True, False]
    every = tuple(Comparison(Compare.NE, Name(APPLICATION, "x"), Literal(i)) for i in range(2, 200))
    assert evaluate(And(every), batch, NOW).to_pylist() == [True, False]
