"""A shorter story for a history that fails: what of its plan can be left out, and it still fails.

What is left out changes the order of what remains, so this is a search for any failure among smaller plans, not a proof.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

from .faults import Faults
from .plan import Plan

Fails = Callable[[Plan], bool]


def shrink(plan: Plan, fails: Fails, most: int) -> Plan:
    """Return a smaller plan that fails as well, found in at most `most` runs."""
    left = most
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for smaller in _list_smaller(plan):
            if not left:
                return plan
            left -= 1
            if fails(smaller):
                plan, is_smaller = smaller, True
                break
    return plan


def _list_smaller(plan: Plan) -> Iterator[Plan]:
    """Yield plans with less, the largest parts first."""
    size = len(plan.mishaps)
    while size:
        for at in range(0, len(plan.mishaps), size):
            yield replace(plan, mishaps=plan.mishaps[:at] + plan.mishaps[at + size :])
        size //= 2
    for name in {order.name for order in plan.orders}:
        yield replace(plan, orders=tuple(order for order in plan.orders if order.name != name))
    if plan.orders:
        yield replace(plan, orders=plan.orders[:-1])
    if plan.traps:
        yield replace(plan, traps=0.0)
    if plan.limits:
        yield replace(plan, limits={})
        for name in plan.limits:
            yield replace(plan, limits={each: value for each, value in plan.limits.items() if each != name})
    if plan.index:
        yield replace(plan, index={})
    if len(plan.consumers) > 1:
        for consumer in plan.consumers:
            yield replace(plan, consumers=tuple(each for each in plan.consumers if each is not consumer))
    for name in ("cut_before", "cut_after", "stalled", "slow"):
        if getattr(plan.faults, name):
            kept = {field.name: getattr(plan.faults, field.name) for field in fields(Faults)}
            yield replace(plan, faults=Faults(**{**kept, name: 0.0}))
    for name in ("brokers", "partitions", "shards", "ack_partitions"):
        if getattr(plan, name) > 1:
            smaller: dict[str, Any] = {name: 1}
            yield replace(plan, **smaller)
