"""The parser from the text of a SQL filter to its tree.

grammar.lark has the grammar and tokens.py the lexical rules; lark's LALR parser applies them. It
keeps its own stack, so nesting in the text costs no recursion. Tokens are fed one by one, so that
the first mistake in the text is the one reported, whether the lexer or the parser finds it. lark
and the grammar are loaded when the first filter is parsed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from . import like, unexpected
from .fields import SECTIONS
from .limits import DEFAULT, Limits
from .nodes import (
    And,
    Arithmetic,
    Calculation,
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
    Section,
    Sign,
    Span,
    children,
)
from .syntax import Slip, refuse
from .tokens import FilterToken, read_tokens

if TYPE_CHECKING:
    from lark import Lark
    from lark import Token as LarkToken

    Child = Node | LarkToken


def parse(text: str, limits: Limits = DEFAULT) -> Node:
    """Return the tree of a SQL filter expression, with Names for its fields.

    Raises FilterSyntaxError for the first mistake, and for a text or tree beyond `limits`.
    """
    try:
        node = _run(text, limits)
        _check_depth(node, limits.depth)
    except Slip as slip:
        raise refuse(text, slip.at, slip.message, slip.hint) from None
    return node


def _run(text: str, limits: Limits) -> Node:
    from lark import UnexpectedToken

    state = _load().parse_interactive()
    before: list[FilterToken] = []
    try:
        for token in read_tokens(text, limits):
            state.feed_token(_give(token))
            before.append(token)
        token = unexpected.END
        node = state.feed_eof()  # type: ignore[no-untyped-call]
    except UnexpectedToken:
        raise unexpected.explain(before, token, _find_accepted(before)) from None
    assert isinstance(node, Node)
    return node


def _give(token: FilterToken) -> LarkToken:
    from lark import Token as LarkToken

    return LarkToken(token.type, token.text, token.at[0], end_pos=token.at[1])


def _find_accepted(tokens: Iterable[FilterToken]) -> set[str]:
    """Return the terminals that may follow these tokens.

    It parses the tokens again, because the parser that failed has already left the state it failed
    in.
    """
    state = _load().parse_interactive()
    for token in tokens:
        state.feed_token(_give(token))
    accepted: set[str] = state.accepts()  # type: ignore[no-untyped-call]
    return accepted


@cache
def _load() -> Lark:
    from lark import Lark

    grammar = Path(__file__).with_name("grammar.lark").read_text(encoding="utf-8")
    # lark demands a lexer, but this one never runs: read_tokens feeds the parser
    return Lark(grammar, parser="lalr", lexer="basic", transformer=_Builder(), maybe_placeholders=False)


def _check_depth(node: Node, most: int) -> None:
    """Raise Slip if the tree has more than `most` levels.

    It uses no recursion, because the limit is there to protect the functions that do.
    """
    level = [node]
    for _ in range(most):
        level = [child for parent in level for child in children(parent)]
        if not level:
            return
    at = level[0].at
    raise Slip(at, f"the expression is nested more than {most} levels deep", "take parts of it apart with AND and OR")


class _Builder:
    """The tree builder, with one method for each rule of the grammar.

    `parts` are all child nodes and tokens of the rule, from left to right.
    """

    def start(self, parts: Sequence[Node]) -> Node:
        return parts[0]

    def disjunction(self, parts: Sequence[Child]) -> Node:
        return Or(tuple(_nodes(parts)), at=_span(parts))

    def conjunction(self, parts: Sequence[Child]) -> Node:
        return And(tuple(_nodes(parts)), at=_span(parts))

    def negation(self, parts: Sequence[Child]) -> Node:
        (operand,) = _nodes(parts)
        return Not(operand, at=_span(parts))

    def comparison(self, parts: Sequence[Child]) -> Node:
        left, right = _nodes(parts)
        symbol = "<>" if parts[1] == "!=" else str(parts[1])
        return Comparison(Compare(symbol), left, right, at=_span(parts))

    def like(self, parts: Sequence[Child]) -> Node:
        (operand,) = _nodes(parts)
        strings = [token for token in _tokens(parts) if token.type == "STRING"]
        pattern, escape = (*map(_read_string, strings), "")[:2]
        _check_pattern(pattern, escape, strings)
        return Like(operand, pattern, escape, _has_not(parts), at=_span(parts))

    def membership(self, parts: Sequence[Child]) -> Node:
        operand, *items = _nodes(parts)
        return In(operand, tuple(items), _has_not(parts), at=_span(parts))

    def is_null(self, parts: Sequence[LarkToken]) -> Node:
        return IsNull(_read_name(parts[0]), _has_not(parts), at=_span(parts))

    def calculation(self, parts: Sequence[Child]) -> Node:
        left, right = _nodes(parts)
        return Calculation(Arithmetic(str(parts[1])), left, right, at=_span(parts))

    def sign(self, parts: Sequence[Child]) -> Node:
        (operand,) = _nodes(parts)
        return Sign(operand, parts[0] == "-", at=_span(parts))

    def group(self, parts: Sequence[Child]) -> Node:
        (node,) = _nodes(parts)
        return replace(node, at=_span(parts))

    def name(self, parts: Sequence[LarkToken]) -> Node:
        return _read_name(parts[0])

    def integer(self, parts: Sequence[LarkToken]) -> Node:
        try:
            return Literal(int(parts[0]), at=_span(parts))
        except ValueError:  # Python's limit of digits, reachable only with higher limits than the default
            raise Slip(
                _span(parts), f"a number of {len(parts[0])} digits", "write it as a real number: 1.0E30"
            ) from None

    def float(self, parts: Sequence[LarkToken]) -> Node:
        value = float(parts[0])
        if math.isinf(value):
            raise Slip(_span(parts), f"{parts[0]} is out of range", "real numbers reach 1.7976931348623157E308")
        return Literal(value, at=_span(parts))

    def string(self, parts: Sequence[LarkToken]) -> Node:
        return Literal(_read_string(parts[0]).encode(), at=_span(parts))

    def binary(self, parts: Sequence[LarkToken]) -> Node:
        return Literal(bytes.fromhex(parts[0][2:]), at=_span(parts))

    def boolean(self, parts: Sequence[LarkToken]) -> Node:
        return Literal(parts[0].type == "TRUE", at=_span(parts))

    def now(self, parts: Sequence[LarkToken]) -> Node:
        return Now(at=_span(parts))


def _nodes(parts: Sequence[Child]) -> Iterator[Node]:
    return (part for part in parts if isinstance(part, Node))


def _tokens(parts: Sequence[Child]) -> Iterator[LarkToken]:
    return (part for part in parts if not isinstance(part, Node))


def _has_not(parts: Sequence[Child]) -> bool:
    return any(token.type == "NOT" for token in _tokens(parts))


def _span(parts: Sequence[Child]) -> Span:
    first, last = parts[0], parts[-1]
    start = first.at[0] if isinstance(first, Node) else first.start_pos
    end = last.at[1] if isinstance(last, Node) else last.end_pos
    return start or 0, end or 0


def _read_string(token: LarkToken) -> str:
    quoted = token[0]
    return token[1:-1].replace(quoted * 2, quoted)


def _read_name(token: LarkToken) -> Name:
    text, at = str(token), _span([token])
    if text[0] == "[":
        return Name(Section.APPLICATION, text[1:-1].replace("[[", "[").replace("]]", "]"), at=at)
    prefix, point, field = text.partition(".")
    if not point:
        return Name(Section.APPLICATION, text, at=at)
    return Name(SECTIONS[prefix], field, at=at)


def _check_pattern(pattern: str, escape: str, strings: Sequence[LarkToken]) -> None:
    """Raise Slip, with its position in the text, if a LIKE pattern or escape string is wrong."""
    try:
        if len(strings) > 1 and not escape:
            raise like.PatternError(
                0, "ESCAPE takes exactly one character", "leave ESCAPE out for none", is_escape=True
            )
        like.compile(pattern, escape)
    except like.PatternError as error:
        token = strings[1] if error.is_escape else strings[0]
        start = token.start_pos or 0
        if error.is_escape:
            raise Slip((start, start + len(token)), error.message, error.hint) from None
        quoted = token[0]
        # a quote inside the string is two characters in the text
        at = start + 1 + error.index + pattern[: error.index].count(quoted)
        raise Slip((at, at + 1), error.message, error.hint) from None
