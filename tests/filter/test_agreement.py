"""Batches answer as messages do: random filters over random typed messages, as they are read, bound and rewritten.

OVERLAY_FILTER_PAIRS=20000 sets the number of filters; each meets several messages at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from overlay.errors import FilterSyntaxError
from overlay.filter import rows
from overlay.filter.arrow import evaluate
from overlay.filter.bind import bind
from overlay.filter.nodes import Column, Name, Node, Section, walk
from overlay.filter.properties import parse_properties
from overlay.filter.rewrite import rewrite
from overlay.filter.rows import to_truth
from tests.filter import strategies as some

PAIRS = int(os.environ.get("OVERLAY_FILTER_PAIRS", "400"))
NO_PLACE = " " * 8

# 10 ms a pair on a slow machine
pytestmark = pytest.mark.timeout(120 + PAIRS // 10)

many = settings(
    max_examples=PAIRS,
    deadline=None,
    database=None,
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
few = settings(many, max_examples=max(PAIRS // 4, 50))

Messages = list[dict[str, dict[str, Any]]]


def ask_rows(node: Node, messages: Messages) -> list[bool | None]:
    return [to_truth(rows.evaluate(node, message, some.NOW)) for message in messages]


def ask_batch(node: Node, batch: pa.RecordBatch) -> list[bool | None]:
    answers: list[bool | None] = evaluate(node, batch, some.NOW).to_pylist()
    return answers


def list_forms(node: Node, schema: some.Schema) -> Iterator[Node]:
    """The filter in all the forms that must answer alike."""
    yield node
    yield rewrite(node)
    try:
        bound = bind(node, schema.types, NO_PLACE)
    except FilterSyntaxError:
        return
    assert not any(isinstance(each, Name) for each in walk(bound))
    yield bound
    yield rewrite(bound)


@many
@given(some.cases(undeclared=True))
def test_batches_and_messages_agree(case: tuple[some.Schema, Node, Messages]) -> None:
    schema, node, messages = case
    want = ask_rows(node, messages)
    batch = some.to_batch(schema, messages, undeclared=True)
    for form in list_forms(node, schema):
        assert ask_rows(form, messages) == want
        assert ask_batch(form, batch) == want


@few
@given(st.data(), some.schemas())
def test_property_filters_agree(data: st.DataObject, schema: some.Schema) -> None:
    node = parse_properties(data.draw(some.property_filters(schema)))
    messages = data.draw(st.lists(some.messages(schema), min_size=4, max_size=4))
    want = ask_rows(node, messages)
    batch = some.to_batch(schema, messages)
    for form in list_forms(node, schema):
        assert ask_rows(form, messages) == want
        assert ask_batch(form, batch) == want


def to_ticks(unit: str) -> Callable[[pa.Array], pa.Array]:
    def change(array: pa.Array) -> pa.Array:
        try:
            return array.cast(pa.timestamp(unit, "UTC"), safe=unit != "s")
        except pa.ArrowInvalid:  # nanoseconds in int64 end in 2262
            return array

    return change


def narrow(array: pa.Array) -> pa.Array:
    for type in (pa.uint8(), pa.int16(), pa.uint32(), pa.uint64()):
        try:
            return array.cast(type)
        except pa.ArrowInvalid:
            continue
    return array


def slice_off(array: pa.Array) -> pa.Array:
    return pa.concat_arrays([array[:1], pa.nulls(2, array.type), array]).slice(len(array[:1]) + 2)


def encode_oddly(array: pa.Array) -> pa.Array:
    """Codes in another order than the rows, null in the dictionary as well, and an entry without a row."""
    values = [*reversed(dict.fromkeys(array.to_pylist())), "unused"]
    codes = pa.array([values.index(value) for value in array.to_pylist()], pa.int8())
    return pa.DictionaryArray.from_arrays(codes, pa.array(values, array.type))


DISGUISES: dict[pa.DataType, tuple[Callable[[pa.Array], pa.Array], ...]] = {
    pa.string(): (
        lambda array: array.cast(pa.large_string()),
        lambda array: array.cast(pa.binary()),
        lambda array: array.cast(pa.string_view()),
        lambda array: array.dictionary_encode(),
        encode_oddly,
        slice_off,
    ),
    pa.binary(): (
        lambda array: array.cast(pa.large_binary()),
        lambda array: array.dictionary_encode(),
        slice_off,
    ),
    pa.int64(): (narrow, lambda array: array.dictionary_encode(), slice_off),
    pa.float64(): (slice_off,),
    pa.bool_(): (slice_off,),
    pa.timestamp("ms"): (to_ticks("us"), to_ticks("ns"), slice_off),
}
"""Other arrays that hold the same values."""


@few
@given(st.data(), some.cases(rows=12))
def test_the_types_of_arrow_do_not_matter(data: st.DataObject, case: tuple[some.Schema, Node, Messages]) -> None:
    schema, node, messages = case
    plain = some.to_batch(schema, messages)
    structs = {}
    for section in plain.schema.names:
        fields = dict(
            zip((field.name for field in plain.schema.field(section).type), plain[section].flatten(), strict=True)
        )
        for name, array in fields.items():
            for change in data.draw(st.lists(st.sampled_from(DISGUISES[array.type]), max_size=1), label=name):
                fields[name] = change(array)
        structs[section] = pa.StructArray.from_arrays(list(fields.values()), list(fields))
    batch = pa.RecordBatch.from_pydict(structs)
    want = ask_rows(node, messages)
    assert ask_batch(node, batch) == want
    start = data.draw(st.integers(0, len(messages)))
    assert ask_batch(node, batch.slice(start)) == want[start:]


@given(some.cases(rows=0))
@settings(max_examples=30, deadline=None)
def test_empty_batches_have_no_answers(case: tuple[some.Schema, Node, Messages]) -> None:
    schema, node, _ = case
    nothing: Messages = [{section.value: {} for section in Section}]
    batch = some.to_batch(schema, nothing)
    assert ask_batch(node, batch) == ask_rows(node, nothing)
    assert ask_batch(node, batch.slice(1)) == []


@given(some.cases(rows=1, undeclared=True))
@settings(max_examples=100, deadline=None)
def test_rewriting_twice_changes_nothing(case: tuple[some.Schema, Node, Messages]) -> None:
    schema, node, _ = case
    for form in list_forms(node, schema):
        simple = rewrite(form)
        assert rewrite(simple) == simple
        assert {each for each in walk(simple) if isinstance(each, Name | Column)} <= set(walk(form))
