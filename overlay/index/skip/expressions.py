"""From the tree of an SQL expression or a property filter to its probe.

A probe must be sound: NO only if no record of a chunk can pass, ALL only if every record does
(probes.py). So each rule here derives a condition that is true *exactly when* the one in the tree
is, or marks it as `implied` or `implying`. A node without a rule is Unsure: this costs a read but
never a wrong answer. The tree is the one that batches are evaluated by (overlay/filter: bound,
rewritten, NOT pushed down to where it is exact). The rules rest on these facts (docs/filters.md):

- Values have their column's type, since columns.py reads them so; a value that does not spell its
  type is NULL. Hence comparisons of unlike types are decided here: `=` and orders are true of no
  record, `<>` of each that is not NULL.
- Comparison, IN, LIKE and their negations are never true of NULL. A condition without a better rule
  still refuses chunks in which one of its columns that has a zone is always NULL.
- `x IN (a, b)` is true exactly when `x = a OR x = b` is. `x NOT IN (a, b)` is `x <> a AND x <> b`
  for constants only: if an item is NULL, `<>` is unknown, and so is NOT IN.
- Whole numbers are added exactly, so `x + 5 > 7` is `x > 2` for columns of whole numbers. Doubles
  round, and get no rule.
- LIKE over `binary` is unknown if the bytes are not UTF-8, so there it never says ALL.
- `header.priority` reads as 4 if a record has none: there NULL counts as that value.
- `UTC()` grows between now and the time when a record is tested. So fewer and fewer values satisfy
  `x > UTC() - 60000`: what it refuses now it refuses for ever, but what it passes now may fail
  later. `x < UTC()` is the opposite. So the current bound supports NO in the one case and ALL in
  the other. The caller must know if the clock is set back behind `now`.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass

from overlay.errors import SubjectError
from overlay.filter import like, rows
from overlay.filter.families import FAMILIES, Family, find_family
from overlay.filter.message import Value
from overlay.filter.nodes import (
    Affix,
    And,
    Calculation,
    Column,
    Compare,
    Comparison,
    In,
    IsNull,
    Like,
    Literal,
    Name,
    Node,
    Not,
    Now,
    Or,
    Present,
    Section,
    Sign,
    children,
    walk,
)
from overlay.filter.operators import MIRRORED
from overlay.subject import Pattern

from .algebra import find_direction, is_fixed, isolate
from .catalog import Catalog
from .intervals import EMPTY, Interval, Meant, begin_with, compare_with, is_like
from .probes import (
    Everything,
    Has,
    Nothing,
    NullIn,
    Probe,
    SubjectIs,
    Times,
    Unsure,
    ValueIn,
    Within,
    alike,
    all_of,
    any_of,
    implied,
    implying,
    leaves,
)
from .terms import null_term, property_term

MOST_TERMS = 64
"""Bloom filters are not asked about more alternatives: at 1 % each, half of all chunks would pass
by chance.
"""

Constant = bool | int | float | bytes

_GREATER = (Compare.GT, Compare.GE)
_LESS = (Compare.LT, Compare.LE)


def derive_expression(node: Node, catalog: Catalog, now: int) -> Probe:
    """Return the probe of the condition that a bound expression is true, by which a chunk header
    can tell that no record passes or that all do. `catalog`: what headers know of its columns.
    `now`: UTC() in ms since 1970, not later than when records are tested.
    """
    return _Rules(catalog, now).derive(node)


@dataclass(frozen=True, slots=True)
class _Rules:
    """The rules for one catalog and one time: a method per kind of condition, each returning its
    probe (probes.py). Unsure is the probe of a condition of which headers know nothing.
    """

    catalog: Catalog
    now: int

    def derive(self, node: Node) -> Probe:
        """Return the probe of the condition that an expression is true. It is Nothing if the
        expression is no condition, or a constant other than TRUE.
        """
        match node:
            case And(operands=operands):
                return all_of(map(self.derive, operands))
            case Or(operands=operands):
                return any_of(map(self.derive, operands))
            # single values and NULL tests
            case Literal(value=True):
                return Everything()
            case Column(type="boolean"):
                return self.have_term(node, True)
            case Not(operand=Column(type="boolean") as column):
                return self.have_term(column, False)
            case IsNull(operand=operand, negated=negated):
                return self.is_null(operand, negated)
            # predicates
            case Comparison() | In() | Like() | Affix() | Not(operand=Affix()):
                return self.fill_default(node, self.derive_predicate(node))
            # a NOT that was not pushed down: it is only known not to be true of NULL
            case Not(operand=operand) if find_family(operand) is Family.BOOLEAN:
                return self.refuse_nulls(operand)
            # A value that cannot be read is present too, and headers only know that it is NULL.
            case Name() | Present():
                return Unsure()
        # A node that is not a condition evaluates to unknown, so no record passes.
        return Nothing()

    def derive_predicate(self, node: Node) -> Probe:
        """Return the probe of the condition that a predicate (comparison, IN, LIKE, beginning or
        end of a text) is true. Defaults of fields in the header section are left to `fill_default`.
        """
        match node:
            case Comparison(operator=operator, left=left, right=right):
                found = self.derive_comparison(operator, left, right)
            case In(operand=Column() as column, items=items, negated=negated):
                found = self.exclude(column, items) if negated else self.include(column, items)
            case In(operand=operand, items=items, negated=False) if is_fixed(operand):
                found = any_of(self.derive_comparison(Compare.EQ, item, operand) for item in items)
            case Like(operand=Column() as column, pattern=pattern, escape=escape, negated=negated):
                found = self.match(column, like.compile(pattern, escape), negated)
            case Affix(operand=Column() as column):
                found = self.begin(column, node, False)
            case Not(operand=Affix(operand=Column() as column) as affix):
                found = self.begin(column, affix, True)
            case _:
                found = Unsure()
        said = {leaf.name for leaf in leaves(found) if isinstance(leaf, Within)}
        return alike((found, self.refuse_nulls(node, said)))

    def fill_default(self, node: Node, found: Probe) -> Probe:
        """Return `found`, the probe of `node`, corrected for columns of the message section `header`,
        which read as their default if a record has no value. If the node is true of the default,
        chunks with such records pass too. Without such columns, `found` is returned. With several
        of them, or with UTC() in the node, Unsure is returned.
        """
        columns = {each for each in walk(node) if isinstance(each, Column) and each.section is Section.HEADER}
        if not columns:
            return found
        if len(columns) > 1 or any(isinstance(each, Now) for each in walk(node)):
            return Unsure()
        if rows.to_truth(rows.evaluate(node, {}, self.now)) is not True:
            return found
        known = self.catalog[columns.pop()]
        is_missing: Probe = NullIn(known.name, null_term(known.name) if known.has_terms else None)
        return any_of((found, is_missing if known.name else Unsure()))

    def refuse_nulls(self, node: Node, said: Container[str] = ()) -> Probe:
        """Return a probe that refuses chunks in which a column of the node is NULL in every record,
        if that makes the node unknown. It asks only about columns with a zone, and never says ALL.
        `said`: names of properties to leave out, since another probe asks their zones about NULL.
        """
        names = {column: self.catalog[column].name for column in _find_strict(node) if self.catalog[column].has_zone}
        return implied(all_of(self.is_there(column) for column, name in names.items() if name not in said))

    def is_there(self, column: Column) -> Probe:
        """Return the probe of the condition that the column is not NULL; Everything for a column
        that is the subject. It is Unsure if headers have neither terms nor a zone of the column,
        and it is not the record's timestamp.
        """
        known = self.catalog[column]
        if known.is_subject:
            return Everything()
        found: list[Probe] = [Times(None, None)] if known.is_time else []
        if known.name:
            found.append(ValueIn(known.name, null_term(known.name) if known.has_terms else None))
        return alike(found)

    def is_null(self, operand: Node, negated: bool) -> Probe:
        """Return the probe of IS NULL, or of IS NOT NULL if `negated`. A field of the message
        section `header` and the subject are never NULL. Unsure if `operand` is no column, or if
        headers do not tell whether it is NULL.
        """
        if not isinstance(operand, Column):
            return Unsure()
        known = self.catalog[operand]
        if operand.section is Section.HEADER or known.is_subject:
            return Everything() if negated else Nothing()
        if negated:
            return self.is_there(operand)
        return NullIn(known.name, null_term(known.name) if known.has_terms else None) if known.name else Unsure()

    def derive_comparison(self, operator: Compare, left: Node, right: Node) -> Probe:
        """Return the probe of `left operator right`, if it can be rearranged to a column and a
        value; else Unsure. It is Nothing if that value is a constant NULL.
        """
        if is_fixed(left):
            left, right, operator = right, left, MIRRORED[operator]
        if not is_fixed(right):
            return Unsure()
        if isinstance(left, Sign | Calculation):
            found = isolate(operator, left, right, self.now)
            if found is None:
                return Unsure()
            operator, left, right = found
        if not isinstance(left, Column):
            return Unsure()
        value = rows.evaluate(right, {}, self.now)
        if not any(isinstance(each, Now) for each in walk(right)):
            # If the constant is NULL, the comparison is unknown.
            return Nothing() if value is None else self.compare(left, operator, value)
        return self.compare_moving(left, operator, value, find_direction(right))

    def compare_moving(self, column: Column, operator: Compare, value: Value, direction: int | None) -> Probe:
        """Return the probe of `column operator value` for a value that depends on the clock.
        `value`: what it is now. `direction`: 1 grows with time, -1 falls, 0 is constant, None is
        unknown.
        """
        if value is None or direction is None or isinstance(value, bool | bytes):
            return Unsure()
        if direction == 0:
            return self.compare(column, operator, value)
        if FAMILIES[column.type] is not Family.NUMBER:
            return Unsure() if operator is Compare.NE else Nothing()
        sinking, rising = (_GREATER, _LESS) if direction > 0 else (_LESS, _GREATER)
        if operator in sinking:
            return implied(self.compare(column, operator, value))
        if operator in rising:
            return alike((implying(self.compare(column, operator, value)), self.refuse_nulls(column)))
        if operator is Compare.EQ:
            return implied(self.compare(column, sinking[1], value))
        return Unsure()

    def compare(self, column: Column, operator: Compare, value: Constant) -> Probe:
        """Return the probe of `column operator value`, for a constant that is not NULL. If it is of
        another family (number, text, boolean) than the column, `<>` is true of each record in which
        the column is not NULL, and any other operator of none.
        """
        family = find_family(Literal(value))
        if family is not FAMILIES[column.type]:
            return self.is_there(column) if operator is Compare.NE else Nothing()
        if family is Family.BOOLEAN:
            if operator not in (Compare.EQ, Compare.NE):
                return Nothing()
            return self.have_term(column, value if operator is Compare.EQ else not value)
        negated = operator is Compare.NE
        meant = compare_with(Compare.EQ if negated else operator, value, column.type)
        found = self.lie_within(column, meant, negated)
        if operator is not Compare.EQ or found == Nothing():
            return found
        return alike((found, self.have_term(column, value), self.have_subject(column, (value,))))

    def have_term(self, column: Column, value: Constant) -> Probe:
        """Return the probe of `column = value` by Bloom filters; Unsure if they have no terms of
        the column.
        """
        known = self.catalog[column]
        return Has(property_term(known.name, value)) if known.has_terms else Unsure()

    def have_subject(self, column: Column, values: Iterable[Constant]) -> Probe:
        """Return the probe of the condition that the column equals one of the values, by the
        subjects of such records. It is Unsure if subjects do not tell the column's value, or if it
        makes a token and one of the values cannot. It is Nothing if the column is the subject and
        none of the values can be one, and without values.
        """
        known = self.catalog[column]
        if not known.is_subject and known.cover is None:
            return Unsure()
        patterns = [known.find_subjects(value) for value in values if isinstance(value, bytes)]
        found = tuple(pattern for pattern in patterns if pattern is not None)
        if len(found) < len(patterns) and not known.is_subject:
            return Unsure()
        return SubjectIs(found) if found else Nothing()

    def lie_within(self, column: Column, meant: Meant, negated: bool = False) -> Probe:
        """Return the probe of the condition that the column's value is one of those that `meant`
        describes, or is not NULL and none of them if `negated`: by zones, and by timestamps if the
        column is the record's.
        """
        if meant.possible == EMPTY:
            return self.is_there(column) if negated else Nothing()
        if meant.sure.is_full:
            return Nothing() if negated else self.is_there(column)
        known = self.catalog[column]
        found: list[Probe] = []
        if known.has_zone:
            found.append(Within(known.name, column.type, meant.possible, meant.sure, negated))
        if known.is_time:
            found.append(_find_times(meant.possible, negated))
        return alike(found)

    def include(self, column: Column, items: tuple[Node, ...]) -> Probe:
        """Return the probe of `column IN (items)`. For more than MOST_TERMS items it is Unsure
        unless all are constants; then only subjects, and the smallest and the largest item, count.
        """
        values = self.take_constants(column, items)
        others = [item for item in items if not isinstance(item, Literal)]
        # All values at once: counting subjects costs the same for one value as for all.
        found = [self.have_subject(column, values)] if not others else []
        if len(items) <= MOST_TERMS:
            each = [self.have_value(column, value) for value in values]
            found.append(any_of((*each, *(self.derive_comparison(Compare.EQ, column, item) for item in others))))
        elif values and not others and FAMILIES[column.type] is not Family.BOOLEAN:
            ends = (Compare.GE, min(values)), (Compare.LE, max(values))
            found.append(implied(all_of(self.compare(column, operator, end) for operator, end in ends)))
        return alike(found)

    def have_value(self, column: Column, value: Constant) -> Probe:
        """Return the probe of `column = value` by zones, timestamps and Bloom filters, without
        subjects. It is Unsure if headers have none of these for the column, and Nothing if no value
        of the column's type equals `value`.

        `value` must not be NULL, and must be of the column's family (number, text, boolean).
        """
        if isinstance(value, bool):
            return self.have_term(column, value)
        found = self.lie_within(column, compare_with(Compare.EQ, value, column.type))
        return found if found == Nothing() else alike((found, self.have_term(column, value)))

    def exclude(self, column: Column, items: tuple[Node, ...]) -> Probe:
        """Return the probe of `column NOT IN (items)`; Unsure for more than MOST_TERMS items."""
        if len(items) > MOST_TERMS:
            return Unsure()
        values = self.take_constants(column, items)
        found = all_of((self.is_there(column), *(self.compare(column, Compare.NE, value) for value in values)))
        return found if all(isinstance(item, Literal) for item in items) else implied(found)

    def take_constants(self, column: Column, items: tuple[Node, ...]) -> list[Constant]:
        """Return the values of those items that are constants and can equal a value of the column:
        both are numbers, texts or booleans. Other items are left out.
        """
        return [
            item.value for item in items if isinstance(item, Literal) and find_family(item) is FAMILIES[column.type]
        ]

    def match(self, column: Column, pattern: like.LikePattern, negated: bool) -> Probe:
        """Return the probe of `column LIKE pattern` (NOT LIKE if `negated`), by which a chunk's
        header tells that no record passes, that some may, or that all do. Only a pattern's
        beginning, up to its first wildcard, counts, so `%x` refuses only chunks without a value.
        For a `binary` column it never tells that all pass. For a column that is not text no record
        passes.
        """
        if FAMILIES[column.type] is not Family.TEXT:
            return Nothing()
        found = [self.lie_within(column, is_like(pattern), negated)]
        if not negated and pattern.shape is like.Shape.EXACT:
            found += [self.have_term(column, pattern.head), self.have_subject(column, (pattern.head,))]
        elif not negated:
            found.append(self.begin_subject(column, _find_head(pattern), pattern.shape is like.Shape.PREFIX))
        return implied(alike(found)) if column.type == "binary" else alike(found)

    def begin(self, column: Column, affix: Affix, negated: bool) -> Probe:
        """Return the probe of the condition that the column begins with the text of `affix`, or is
        not NULL and does not if `negated`. A column that is not text never does. For a text column,
        it is Unsure if `affix` is about the end of a text.
        """
        if FAMILIES[column.type] is not Family.TEXT:
            return self.is_there(column) if negated else Nothing()
        if affix.is_suffix:
            return Unsure()
        found = self.lie_within(column, begin_with(affix.text), negated)
        return found if negated else alike((found, self.begin_subject(column, affix.text, True)))

    def begin_subject(self, column: Column, head: bytes, is_whole: bool) -> Probe:
        """Return the probe of a condition by which the column begins with `head`, if the column is
        the subject and `head` begins with whole tokens (each with the dot after it), all legal;
        else Unsure. Only whole tokens count: if `head` ends within one, the probe never says ALL.
        `is_whole`: the condition is just this; if False, it asks for more, and the probe never says
        ALL.
        """
        if not self.catalog[column].is_subject:
            return Unsure()
        *tokens, rest = head.decode("utf-8", "surrogateescape").split(".")
        if not tokens or not all(tokens) or {"*", ">"} & set(tokens):
            return Unsure()
        try:
            found = SubjectIs((Pattern(".".join((*tokens, ">"))),))
        except SubjectError:  # a space, or not UTF-8: subjects have these escaped
            return Unsure()
        return found if is_whole and not rest else implied(found)


def _find_strict(node: Node) -> Iterator[Column]:
    """Yield the columns of a node that make its value unknown if they are NULL. Fields of the
    header section are left out, since they have defaults.
    """
    match node:
        case Column(section=section):
            if section is not Section.HEADER:
                yield node
        case Comparison() | Sign() | Calculation() | Not() | Affix():
            for child in children(node):
                yield from _find_strict(child)
        case In(operand=operand) | Like(operand=operand):
            yield from _find_strict(operand)


def _find_times(meant: Interval, negated: bool) -> Times:
    assert not isinstance(meant.low, float) and not isinstance(meant.high, float)
    return Times(meant.low, None if meant.high is None else meant.high + 1, negated)


def _find_head(pattern: like.LikePattern) -> bytes:
    """Return the bytes with which every text that matches a LIKE pattern begins: those before its
    first wildcard.
    """
    first = pattern.runs[0]
    return "".join(char or "" for char in (first[: first.index(None)] if None in first else first)).encode()
