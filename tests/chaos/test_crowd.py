"""A short storm over a crowd (tests/chaos/crowd), in a process of its own, and its judge."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.crowd.judge import Delivery, Judge, Source
from tests.chaos.crowd.plan import KINDS, STREAMS, Consumer, Order, plan_consumers
from tests.chaos.crowd.storm import WORKERS, plan_faults

SECONDS = float(os.environ.get("OVERLAY_STORM_S", "25"))
PATIENCE_S = SECONDS + 600


@pytest.mark.timeout(PATIENCE_S + 60)
def test_storm_breaks_no_promise(tmp_path: Path) -> None:
    seed = int(os.environ.get("OVERLAY_SEED", random.SystemRandom().randrange(1 << 32)))
    command = [sys.executable, "-m", "tests.chaos.crowd", "--seed", str(seed), "--seconds", str(SECONDS), "--no-clock"]
    command += ["--consumers", "60", "--rate", "200", "--folder", str(tmp_path / "storm")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, f"OVERLAY_SEED={seed}\n{done.stdout[-8_000:]}\n{done.stderr[-4_000:]}"


def test_consumers_are_of_all_kinds() -> None:
    consumers = list(plan_consumers(300))
    assert len({each.id for each in consumers}) == 300
    assert {each.stream for each in consumers} == set(range(STREAMS))
    for has in (
        lambda each: each.is_acked,
        lambda each: not each.is_exact,
        lambda each: each.by_request,
        lambda each: not each.output,
        lambda each: "filter" in each.config,
    ):
        assert 3 < sum(map(has, consumers)) < 297


@pytest.mark.parametrize("seconds", [25.0, 900.0])
def test_all_are_killed_and_frozen(seconds: float) -> None:
    faults = plan_faults(random.Random(7), seconds)
    assert {fault.victim for fault in faults} == {*map(str, range(WORKERS)), "fleet", "faust"}
    assert {fault.is_kill for fault in faults} == {True, False}
    assert max(fault.until for fault in faults) <= seconds
    assert all(fault.at < fault.until for fault in faults)


def make(**config: Any) -> Consumer:
    return Consumer("c", 0, config, lambda order: order.kind == 1, "out")


def judge(consumer: Consumer, deliveries: list[Delivery], acked: set[int] | None = None) -> list[str]:
    """What is wrong, without the examples, if orders 1, 3 and 5 are wanted of six."""
    orders = {number: Order(0, number % 2, 0, 0) for number in range(6)}
    found = Judge(Source(orders, dict.fromkeys(orders, 9)))
    found.judge(consumer, deliveries, acked)
    return [fault.partition(": ")[2].partition(":")[0] for fault in found.faults]


def deliver(*numbers: int) -> list[Delivery]:
    counts = dict.fromkeys(numbers, 0)
    made = []
    for at, number in enumerate(numbers, start=1):
        counts[number] += 1
        made.append(Delivery(number, 9, number + 1, at, counts[number]))
    return made


def test_the_judge_finds_what_is_wrong() -> None:
    assert KINDS > 2
    assert judge(make(), deliver(1, 3, 5)) == []
    assert judge(make(), deliver(1, 5)) == ["lost"]
    assert judge(make(), deliver(1, 2, 3, 5)) == ["not wanted"]
    assert judge(make(), deliver(1, 3, 3, 5)) == ["doubled"]
    assert judge(make(), [one._replace(body=8) for one in deliver(1, 3, 5)]) == ["not as they were written"]
    assert judge(make(), [one._replace(sequence=1) for one in deliver(1, 3, 5)]) == ["sequences that name two orders"]
    assert judge(make(), [*deliver(1, 3, 5)[:2], deliver(1, 3, 5)[2]._replace(consumer_sequence=4)]) == [
        "consumer sequences are not 1 to 3"
    ]


def test_deliveries_may_come_again_with_acks_or_at_least_once() -> None:
    acks = make(ack_policy="explicit")
    assert judge(acks, deliver(1, 3, 3, 5), {2, 4, 6}) == []
    assert judge(acks, deliver(1, 3, 5), {2, 4}) == ["settled without an ack"]
    again = deliver(1, 3, 3, 5)
    assert judge(acks, [*again[:2], again[2]._replace(deliveries=3), again[3]], {2, 4, 6}) == [
        "deliveries are not counted 1, 2, 3"
    ]
    repeated = [one._replace(consumer_sequence=1) for one in deliver(1, 3, 3, 5)]
    assert judge(make(delivery="at_least_once"), repeated) == []
