"""A plan that fails is made smaller as long as it still fails."""

from __future__ import annotations

from .plan import Kind, Plan
from .shrink import shrink


def has_kill(plan: Plan) -> bool:
    return any(mishap.kind is Kind.KILL for mishap in plan.mishaps)


def test_what_the_failure_does_not_need_is_left_out() -> None:
    whole = next(plan for plan in map(Plan.draw, range(100)) if has_kill(plan) and len(plan.mishaps) > 8)
    smaller = shrink(whole, has_kill, 200)
    assert [mishap.kind for mishap in smaller.mishaps] == [Kind.KILL]
    assert (len(smaller.consumers), smaller.brokers, smaller.partitions, smaller.traps) == (1, 1, 1, 0.0)
    assert (smaller.orders, smaller.limits, smaller.index) == ((), {}, {})


def test_no_more_runs_are_made_than_asked_for() -> None:
    asked: list[Plan] = []

    def fails(plan: Plan) -> bool:
        asked.append(plan)
        return False

    whole = Plan.draw(0)
    assert shrink(whole, fails, 3) is whole
    assert len(asked) == 3
