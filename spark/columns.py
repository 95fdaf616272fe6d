"""Filters as Columns of Spark, with the same three answers: true, false, and null for unknown.

    deliveries.where(to_column(compile_sql("dep_delay > 60 AND carrier IN ('AA', 'UA')", stream.properties)))

Spark's SQL differs from filters in ways that an expression does not show. In a filter, `a < b` of
unlike types is false and not an error. IN is never unknown because of a null in its list. Integers
have no limit, and an integer and a double compare exactly. NaN is null. LIKE does not match text
that is not UTF-8 (overlay/filter/rows.py has the rules). A condition that Spark can express exactly
becomes an expression of Spark, which its optimiser understands and which runs in the JVM. Any other
condition, above all arithmetic beyond the range of its types, becomes an Arrow function that calls
the overlay's own evaluator. The columns that it reads are sent to a Python worker.

Before there are rows, only the kind of a node's value is known (values.py). Numbers are LONG or
DOUBLE. Strings and bytes are TEXT, compared by bytes as Spark compares both. Times are LONG, in ms
since 1970. The filter must have been compiled with the stream's properties, for their types.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import reduce, singledispatchmethod
from operator import and_, or_

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf

from overlay.clock import now_ms
from overlay.config.stream import PropertyType, StreamConfig
from overlay.field import Field as RecordField
from overlay.field import FieldKind
from overlay.filter import Filter, like, rows
from overlay.filter.arrow import Evaluation, compile, key_of
from overlay.filter.fields import DEFAULT_PRIORITY
from overlay.filter.nodes import (
    Affix,
    And,
    Arithmetic,
    Calculation,
    Comparison,
    In,
    IsNull,
    Like,
    Literal,
    Node,
    Not,
    Now,
    Or,
    Present,
    Section,
    Sign,
    walk,
)
from overlay.filter.nodes import Column as Field
from overlay.filter.rows import to_truth
from overlay.match.properties import Given, find_sources

from .comparing import compare, find_equal, match_text, where_known
from .decoding import cast_text
from .values import (
    KINDS,
    NUMBERS,
    NotNative,
    Value,
    ValueKind,
    keep_finite,
    make_constant,
    make_null,
    to_double,
    unknown,
    write_bytes,
)

FindField = Callable[[Field], Column]
"""Returns the column of a filter's field, of the Spark type that stands for the field's type; null
where the record has no value.

Whether a property exists is tested by asking for the field as binary.
"""

_DOUBLES: dict[Arithmetic, Callable[[Column, Column], Column]] = {
    Arithmetic.ADD: lambda a, b: a + b,
    Arithmetic.SUB: lambda a, b: a - b,
    Arithmetic.MUL: lambda a, b: a * b,
    Arithmetic.DIV: F.try_divide,
}


def find_in_sections(field: Field) -> Column:
    """Return the column of a filter's field: the field of this name in the struct column of its
    section, `header`, `properties` or `application_properties` (docs/spark-source.md#columns).
    """
    return F.col(field.section.value).getField(field.name)


def find_in_envelope(stream: StreamConfig) -> FindField:
    """Return a function that finds fields in the envelope's own columns: `headers`, `key`,
    `subject` and so on.

    For frames without the struct columns of sections, also those of Spark's Kafka source if they
    have the same column names; the entries of `headers` have to be (name, value). The returned
    function raises ValueError for a field of the value, because nothing here parses values as the
    overlay does.
    """

    def find(field: Field) -> Column:
        source, kind = find_sources([field], stream.properties)[field], PropertyType(field.type)
        found = [_read(_find_bytes(each), kind) for each in source.fields]
        there = [_find_bytes(each).isNotNull() for each in source.fields]
        if source.given is not None:
            found.append(_find_given(source.given, kind))
            there.append(F.lit(True))
        # the first source that the record has, readable or not
        column = found[-1]
        for value, is_there in zip(reversed(found[:-1]), reversed(there[:-1]), strict=True):
            column = F.when(is_there, value).otherwise(column)
        return column

    return find


def _read(bytes: Column, kind: PropertyType) -> Column:
    found = cast_text(bytes, kind)
    # a cast takes any bytes for a string
    return F.try_validate_utf8(found) if kind is PropertyType.STRING else found


def _find_bytes(field: RecordField) -> Column:
    if field.kind is FieldKind.HEADER:
        named = F.filter(F.col("headers"), lambda header: header["name"] == field.name)
        return F.get(named, F.size(named) - 1)["value"]  # the last of several headers counts
    if field.kind is FieldKind.KEY:
        return F.col("key")
    raise ValueError(f'{field} is a part of the value. Read it with format("overlay"), which has it as a column')


def _find_given(given: Given, kind: PropertyType) -> Column:
    if given is Given.TIMESTAMP and kind is PropertyType.TIMESTAMP:
        return F.col("timestamp")
    column = F.unix_millis("timestamp") if given is Given.TIMESTAMP else F.col(given.value)
    return cast_text(column.cast("string").cast("binary"), kind)


def to_column(filter: Filter, find: FindField = find_in_sections, *, now: int | None = None) -> Column:
    """Return the filter's answers as a boolean column; null is unknown.

    `now`: the value of UTC(), ms since 1970, by default the time of this call. Raises ValueError
    for a filter that was compiled without the stream's properties.
    """
    if not all(isinstance(column, Field) for column in filter.columns):
        raise ValueError(f"filter {filter.text!r} was compiled without the stream's properties, so its types are open")
    return write(filter.bound, find, now_ms() if now is None else now)


def write(node: Node, find: FindField = find_in_sections, now: int = 0) -> Column:
    """Return the answers of a bound tree as a boolean column, as `to_column` does. `now`: ms since
    1970, for UTC().
    """
    return _Writer(find, now).answer(node)


def ask_overlay(node: Node, find: FindField, now: int) -> Column:
    """Return the answers of a bound tree as a boolean column that the overlay's own evaluator computes in Python
    workers. A tree without fields is computed at once. `now`: ms since 1970, for UTC().
    """
    fields = tuple(dict.fromkeys(each for each in walk(node) if isinstance(each, Field)))
    if not fields:
        answer = to_truth(rows.evaluate(node, {}, now))
        return unknown() if answer is None else F.lit(answer)

    def evaluate(*arrays: pa.Array) -> pa.Array:
        columns = {key_of(field): array for field, array in zip(fields, arrays, strict=True)}
        return Evaluation(columns, len(arrays[0]), now).answer(compile(node))

    make: Callable[..., Callable[..., Column]] = arrow_udf  # its type hints do not cover functions of so many columns
    ask = make(evaluate, "boolean")
    return ask(*map(find, fields))


class _Writer:
    """A translator of the nodes of one tree.

    `answer` is for conditions, `value` for what is within a predicate.
    """

    def __init__(self, find: FindField, now: int) -> None:
        self._find, self._now = find, now

    def answer(self, node: Node) -> Column:
        """Return the answer of a node as AND, OR and NOT use it: a boolean column, null (unknown)
        where the node's value is null, and in every row if its value is of another kind. A node for
        which Spark has no exact expression is evaluated by the overlay in Python workers.
        """
        match node:
            case And(operands=operands):
                return reduce(and_, map(self.answer, operands))
            case Or(operands=operands):
                return reduce(or_, map(self.answer, operands))
            case Not(operand=operand):
                return ~self.answer(operand)
        try:
            found = self.value(node)
        except NotNative:
            return ask_overlay(node, self._find, self._now)
        return found.column if found.kind is ValueKind.BOOLEAN else unknown()

    @singledispatchmethod
    def value(self, node: Node) -> Value:
        """Return the value of a node as an expression of Spark. Raises NotNative if Spark has none
        that is exact.
        """
        raise TypeError(f"no rule for {type(node).__name__}")

    @value.register(And)
    @value.register(Or)
    @value.register(Not)
    def _(self, node: And | Or | Not) -> Value:
        return Value(ValueKind.BOOLEAN, self.answer(node))

    @value.register
    def _(self, node: Literal) -> Value:
        return make_constant(node.value)

    @value.register
    def _(self, node: Now) -> Value:
        return make_constant(self._now)

    @value.register
    def _(self, node: Field) -> Value:
        column = self._find(node)
        match node.type:
            case "timestamp":
                column = F.unix_millis(column)
            case "double":
                column = keep_finite(column)
        if node.section is Section.HEADER and node.name == "priority":
            if node.type != "long":
                raise NotNative  # an integer in a column of another type
            column = F.coalesce(column, F.lit(DEFAULT_PRIORITY).cast("long"))
        return Value(KINDS[node.type], column, is_string=node.type == "string")

    @value.register
    def _(self, node: Sign) -> Value:
        value = self.value(node.operand)
        if value.kind not in NUMBERS:
            return make_null()
        if not node.negative:
            return value
        if isinstance(value.constant, int | float):
            return make_constant(-value.constant)
        if value.kind is ValueKind.LONG:
            raise NotNative  # the least long has no negation in 64 bits
        return Value(ValueKind.DOUBLE, -value.column)

    @value.register
    def _(self, node: Calculation) -> Value:
        left, right = self.value(node.left), self.value(node.right)
        if left.kind not in NUMBERS or right.kind not in NUMBERS:
            return make_null()
        both_whole = left.kind is ValueKind.LONG and right.kind is ValueKind.LONG
        if node.operator is Arithmetic.MOD and not both_whole:
            return make_null()
        if both_whole and node.operator is not Arithmetic.DIV:
            raise NotNative  # integers are unlimited in filters, and have 64 bits here
        return Value(ValueKind.DOUBLE, keep_finite(_DOUBLES[node.operator](to_double(left), to_double(right))))

    @value.register
    def _(self, node: Comparison) -> Value:
        return compare(node.operator, self.value(node.left), self.value(node.right))

    @value.register
    def _(self, node: In) -> Value:
        operand = self.value(node.operand)
        if operand.kind is ValueKind.NULL:
            return make_null()
        # an item that is NULL equals nothing, and makes no answer unknown
        found = F.coalesce(find_equal(operand, [self.value(item) for item in node.items]), F.lit(False))
        return Value(ValueKind.BOOLEAN, where_known((operand,), ~found if node.negated else found))

    @value.register
    def _(self, node: Like) -> Value:
        operand = self.value(node.operand)
        if operand.kind is not ValueKind.TEXT:
            return make_null()
        text = operand.column if operand.is_string else F.try_validate_utf8(operand.column.cast("string"))
        found = match_text(like.compile(node.pattern, node.escape), text)
        return Value(ValueKind.BOOLEAN, ~found if node.negated else found)

    @value.register
    def _(self, node: Affix) -> Value:
        operand = self.value(node.operand)
        if operand.kind is not ValueKind.TEXT:
            return Value(ValueKind.BOOLEAN, where_known((operand,), F.lit(False)))
        has = F.endswith if node.is_suffix else F.startswith
        return Value(ValueKind.BOOLEAN, has(operand.column.cast("binary"), write_bytes(node.text)))

    @value.register
    def _(self, node: IsNull) -> Value:
        column = self.value(node.operand).column
        return Value(ValueKind.BOOLEAN, column.isNotNull() if node.negated else column.isNull())

    @value.register
    def _(self, node: Present) -> Value:
        assert isinstance(node.operand, Field)
        # every value that exists can be read as bytes
        return Value(ValueKind.BOOLEAN, self._find(replace(node.operand, type="binary")).isNotNull())
