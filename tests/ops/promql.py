"""Which metrics and labels a PromQL expression names. It knows the syntax well enough to find them, not to judge it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[A-Za-z_:][\w:]*|[\d.][\w.]*|[=!]~|[!=<>]=|\S')
_NAME = re.compile(r"[A-Za-z_:][\w:]*")
_AGGREGATIONS = frozenset(
    ["sum", "min", "max", "avg", "group", "count", "stddev", "stdvar", "topk", "bottomk", "quantile", "count_values"]
)
_CLAUSES = frozenset(["by", "without", "on", "ignoring", "group_left", "group_right"])
_WORDS = frozenset(["and", "or", "unless", "bool", "offset", "inf", "nan"])


@dataclass(frozen=True, slots=True)
class Selector:
    """A metric and the labels that its matchers name."""

    metric: str
    labels: frozenset[str]


@dataclass(frozen=True, slots=True)
class Expression:
    selectors: tuple[Selector, ...]
    grouping: frozenset[str] | None
    """Labels of `by` and its like; None without any such clause."""


def read_expression(text: str) -> Expression:
    """Find the metrics of `text` and the labels it names."""
    tokens = _TOKEN.findall(text)
    selectors: list[Selector] = []
    grouping: set[str] | None = None
    at = 0
    while at < len(tokens):
        token, following = tokens[at], tokens[at + 1] if at + 1 < len(tokens) else ""
        at += 1
        if not _NAME.fullmatch(token) or token in _WORDS:
            continue
        if token in _CLAUSES:
            names, at = _read_until(tokens, at, "(", ")")
            grouping = (grouping or set()) | set(names)
        elif following == "{":
            labels, at = _read_until(tokens, at, "{", "}")
            selectors.append(Selector(token, frozenset(labels)))
        elif following != "(" and token not in _AGGREGATIONS:
            selectors.append(Selector(token, frozenset()))
    return Expression(tuple(selectors), None if grouping is None else frozenset(grouping))


def _read_until(tokens: Sequence[str], at: int, opening: str, closing: str) -> tuple[list[str], int]:
    """The names between a pair of brackets, and where what follows begins."""
    if at >= len(tokens) or tokens[at] != opening:
        return [], at
    end = tokens.index(closing, at)
    return [token for token in tokens[at:end] if _NAME.fullmatch(token)], end + 1
