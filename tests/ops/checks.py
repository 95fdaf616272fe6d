"""A query against a /metrics page: what is wrong with it, in words."""

from __future__ import annotations

from .exposition import Exposition
from .promql import read_expression
from .tree import Query

# Prometheus makes `up` itself and puts these labels on all that it scrapes.
_OF_PROMETHEUS = frozenset(["up"])
_SCRAPED = frozenset(["job", "instance"])


def find_faults(query: Query, offered: Exposition) -> list[str]:
    """Metrics and labels that `query` names and /metrics has not. A metric without a series yet is judged by name."""
    expression = read_expression(query.expression)
    if not expression.selectors:
        return [f"{query.place}: no metric in {query.expression}"]
    faults = []
    asked = expression.grouping or frozenset()
    shown = query.names if expression.grouping is None else frozenset()
    for selector in expression.selectors:
        if selector.metric not in offered.names | _OF_PROMETHEUS:
            faults.append(f"{query.place}: /metrics has no {selector.metric}")
        elif selector.metric in offered.labels or selector.metric in _OF_PROMETHEUS:
            known = offered.labels.get(selector.metric, frozenset()) | _SCRAPED
            missing = sorted((selector.labels | asked | shown) - known)
            faults += [f"{query.place}: {selector.metric} has no label {label}" for label in missing]
    if expression.grouping is not None:
        dropped = sorted(query.names - expression.grouping)
        faults += [f"{query.place}: the text shows {label}, which the query does not keep" for label in dropped]
    return faults
