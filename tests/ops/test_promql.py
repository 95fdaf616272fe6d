from __future__ import annotations

import pytest

from .promql import Expression, Selector, read_expression


def _selector(metric: str, *labels: str) -> Selector:
    return Selector(metric, frozenset(labels))


@pytest.mark.parametrize(
    ("text", "selectors", "grouping"),
    [
        ("up", [_selector("up")], None),
        ('min(up{job="overlay"})', [_selector("up", "job")], None),
        ('sum by (a, b) (rate(x_total{a=~"p|q",c!="}"}[5m])) > 0', [_selector("x_total", "a", "c")], {"a", "b"}),
        ("sum(rate(x[1m])) by (le)", [_selector("x")], {"le"}),
        ("histogram_quantile(0.99, sum by (le) (rate(x_bucket[1m])))", [_selector("x_bucket")], {"le"}),
        ("a / on(k) group_left(m) b offset 5m", [_selector("a"), _selector("b")], {"k", "m"}),
        ("a > bool 1 and deriv(b[10m]) > 0", [_selector("a"), _selector("b")], None),
        ("sum by () (a)", [_selector("a")], set()),
    ],
)
def test_it_finds_metrics_and_labels(text: str, selectors: list[Selector], grouping: set[str] | None) -> None:
    expected = Expression(tuple(selectors), None if grouping is None else frozenset(grouping))
    assert read_expression(text) == expected
