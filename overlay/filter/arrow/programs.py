"""The compiler from nodes to programs, with one function for each kind of node.

Work that does not depend on the batch is done here, once. The row evaluator computes constant
parts, IN lists become Arrow arrays, and LIKE patterns are split into runs. Equal nodes get the same
program while any filter holds it, so filters share their parts without knowing of each other.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import singledispatch
from weakref import WeakValueDictionary

import pyarrow as pa
import pyarrow.compute as pc

from overlay.filter import rows as by_row
from overlay.filter.like import compile as compile_pattern
from overlay.filter.nodes import (
    Affix,
    And,
    Arithmetic,
    Calculation,
    Column,
    Comparison,
    In,
    IsNull,
    Like,
    Name,
    Node,
    Not,
    Now,
    Or,
    Present,
    Sign,
    walk,
)
from overlay.filter.operators import MIRRORED

from .comparing import compare, compare_fitted, fit, is_in, make_value_sets
from .evaluation import Answer, Evaluation, Program, collapse, find_columns, key_of, to_truth
from .numeric import calculate, is_number
from .texts import has_affix, is_present, matches
from .vectors import Kind, Value, Vector, make_unknown

_Run = Callable[[Evaluation], Value]

_programs: WeakValueDictionary[Node, Program] = WeakValueDictionary()


def compile(node: Node) -> Program:
    """Return the program of a tree, bound or not.

    The Arrow type of a column decides its type, whatever type the tree gives it.
    """
    program = _programs.get(node)
    if program is None:
        columns = find_columns(node)
        program = Program(node, columns, _compile(node) if columns else _compute(node))
        program = _programs.setdefault(node, program)
    return program


def _compute(node: Node) -> _Run:
    """Return the function that gives the value of a tree without columns for a batch: a constant
    that is computed now, or one computed for each batch if the tree reads UTC().
    """
    if any(isinstance(each, Now) for each in walk(node)):
        return lambda batch: by_row.evaluate(node, {}, batch.now)
    constant = by_row.evaluate(node, {}, 0)
    return lambda batch: constant


@singledispatch
def _compile(node: Node) -> _Run:
    raise TypeError(f"no program for {type(node).__name__}")


@_compile.register(Name)
@_compile.register(Column)
def _(node: Name | Column) -> _Run:
    key = key_of(node)
    return lambda batch: batch.load(key)


@_compile.register
def _(node: Sign) -> _Run:
    operand, negative = compile(node.operand), node.negative

    def run(batch: Evaluation) -> Value:
        value = batch.value(operand)
        if negative:
            return calculate(Arithmetic.SUB, 0, value)  # no expression can tell 0.0 from -0.0
        return value if is_number(value) else make_unknown(value)

    return run


@_compile.register
def _(node: Calculation) -> _Run:
    left, right, operator = compile(node.left), compile(node.right), node.operator
    return lambda batch: calculate(operator, batch.value(left), batch.value(right))


@_compile.register
def _(node: Comparison) -> _Run:
    left, right, operator = compile(node.left), compile(node.right), node.operator
    if _is_fixed(left):
        left, right, operator = right, left, MIRRORED[operator]
    constant = by_row.evaluate(right.node, {}, 0) if _is_fixed(right) else None
    if constant is None:
        return lambda batch: batch.settle(node, compare(operator, batch.value(left), batch.value(right)))
    fitted = {kind: fit(operator, constant, kind) for kind in Kind}

    def run(batch: Evaluation) -> Value:
        value = batch.value(left)
        if not isinstance(value, Vector):
            return compare(operator, value, constant)
        return batch.settle(node, compare_fitted(value, fitted[value.kind]))

    return run


@_compile.register
def _(node: Like) -> _Run:
    operand, pattern, negated = compile(node.operand), compile_pattern(node.pattern, node.escape), node.negated
    return lambda batch: batch.settle(node, _negate_if(negated, matches(pattern, batch.value(operand))))


@_compile.register
def _(node: In) -> _Run:
    operand, items, negated = compile(node.operand), [compile(item) for item in node.items], node.negated
    fixed = [item for item in items if _is_fixed(item)]
    sets = make_value_sets([by_row.evaluate(item.node, {}, 0) for item in fixed])
    others = [item for item in items if not _is_fixed(item)]

    def run(batch: Evaluation) -> Value:
        value = batch.value(operand)
        rest = others if isinstance(value, Vector) else items
        found = is_in(value, sets, [batch.value(item) for item in rest])
        return batch.settle(node, _negate_if(negated, found))

    return run


@_compile.register
def _(node: IsNull) -> _Run:
    operand, negated = compile(node.operand), node.negated

    def run(batch: Evaluation) -> Value:
        value = batch.value(operand)
        if not isinstance(value, Vector):
            return (value is None) is not negated
        flags = value.array.is_valid() if negated else value.array.is_null()
        return batch.settle(node, Vector(Kind.BOOLEAN, flags, value.doubt))

    return run


@_compile.register
def _(node: Affix) -> _Run:
    operand, text, is_suffix = compile(node.operand), node.text, node.is_suffix
    return lambda batch: batch.settle(node, has_affix(text, is_suffix, batch.value(operand)))


@_compile.register
def _(node: Present) -> _Run:
    key = key_of(node.operand)

    def run(batch: Evaluation) -> Value:
        flags = batch.present.get(key)
        return is_present(batch.find(key)) if flags is None else Vector(Kind.BOOLEAN, flags)

    return run


@_compile.register
def _(node: Not) -> _Run:
    operand = compile(node.operand)

    def run(batch: Evaluation) -> Value:
        answer = to_truth(batch.value(operand))
        if isinstance(answer, bool):
            return not answer
        return None if answer is None else Vector(Kind.BOOLEAN, pc.invert(answer))

    return run


@_compile.register
def _(node: And) -> _Run:
    return _join(node.operands, pc.and_kleene, False)


@_compile.register
def _(node: Or) -> _Run:
    return _join(node.operands, pc.or_kleene, True)


def _join(operands: tuple[Node, ...], kernel: Callable[..., pa.BooleanArray], absorbing: bool) -> _Run:
    """Return the function that evaluates AND or OR for a batch. `absorbing`: the answer that
    decides; if all rows have it, later operands are not evaluated.
    """
    programs = [compile(operand) for operand in operands]

    def run(batch: Evaluation) -> Value:
        found: Answer = not absorbing
        for program in programs:
            answer = to_truth(batch.value(program))
            found = _join_two(found, answer, kernel, absorbing)
            if found is absorbing:
                return absorbing
        return found if found is None or isinstance(found, bool) else Vector(Kind.BOOLEAN, found)

    return run


_UNKNOWN = pa.scalar(None, pa.bool_())


def _join_two(left: Answer, right: Answer, kernel: Callable[..., pa.BooleanArray], absorbing: bool) -> Answer:
    if isinstance(left, bool):
        return absorbing if left is absorbing else right
    if isinstance(right, bool):
        return absorbing if right is absorbing else left
    if left is None and right is None:
        return None
    return collapse(kernel(_UNKNOWN if left is None else left, _UNKNOWN if right is None else right))


def _negate_if(negated: bool, value: Value) -> Value:
    if not negated or value is None:
        return value
    return Vector(Kind.BOOLEAN, pc.invert(value.array), value.doubt) if isinstance(value, Vector) else not value


def _is_fixed(program: Program) -> bool:
    return not program.columns and not any(isinstance(each, Now) for each in walk(program.node))
