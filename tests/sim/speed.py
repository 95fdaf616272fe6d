"""How fast histories run: virtual seconds in each second of processor time, which other processes hardly change."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from .faults import Faults
from .host import warm_up
from .plan import KEYS, STREAM, Consumer, Deed, Plan
from .storm import Storm

QUIET_S = 600.0
"""How long producers write in a quiet history, in virtual seconds."""
WARM = 1_000_000
"""The seed of a storm that is run first and not measured: it loads what histories load at their first use."""


@dataclass(frozen=True, slots=True)
class Speed:
    """What some histories took. `virtual_s` and `steps` are the same in each run, `cpu_s` is not."""

    name: str
    histories: int
    virtual_s: float
    steps: int
    requests: int
    cpu_s: float

    def __str__(self) -> str:
        """Return one line of the table."""
        return (
            f"{self.name}: {self.virtual_s / self.cpu_s:.0f} virtual seconds a second of processor time "
            f"({self.virtual_s:.0f} in {self.cpu_s:.1f} s, {self.cpu_s / self.histories:.2f} s a history; "
            f"{self.steps / self.virtual_s:.0f} steps and {self.requests / self.virtual_s:.1f} requests a virtual second)"
        )


def list_quiet(quiet_s: float = QUIET_S) -> Mapping[str, Plan]:
    """Return plans without faults, by what happens in them. Producers write for `quiet_s` virtual seconds."""
    plain, acked = _make_consumer(0, {"ack_policy": "none"}), _make_consumer(1, _ACKED)
    return {
        "two records a minute": _make_plan((plain,), quiet_s, burst=1, pause_s=60.0),
        "a record a second": _make_plan((plain,), quiet_s, burst=4, pause_s=5.0),
        "a record a second, and acks": _make_plan((plain, acked), quiet_s, burst=4, pause_s=5.0),
    }


def measure_speed(seeds: Iterable[int], quiet_s: float = QUIET_S) -> Iterator[Speed]:
    """Measure quiet histories of two workers, and then the storms of these seeds. Raises what a history raises."""
    warm_up()
    Storm(WARM).run()
    for name, plan in list_quiet(quiet_s).items():
        yield _measure(name, [Storm(0, plan=plan)])
    yield _measure("storms", map(Storm, seeds))


_ACKED = {
    "ack_policy": "explicit",
    "ack_wait": "10s",
    "interest": "group",
    "max_ack_pending": 1000,
    "max_deliver": -1,
    "dead_letter": "dead-1",
}


def _make_consumer(number: int, config: Mapping[str, object]) -> Consumer:
    """Return a consumer that wants everything. With acks it has one reader, which acks all deliveries."""
    acks = config["ack_policy"] != "none"
    names = {"stream": STREAM, "durable_name": f"c{number}", "deliver_subject": f"out-{number}"}
    return Consumer(
        f"c{number}",
        {**names, "output": {"partitions": 1}, "delivery": "exactly_once", **config},
        frozenset(b"k%d" % key for key in range(KEYS)),
        1 if acks else 0,
        {Deed.ACK: 1.0} if acks else {},
    )


def _make_plan(consumers: tuple[Consumer, ...], quiet_s: float, *, burst: int, pause_s: float) -> Plan:
    """Return a plan of two workers and two shards, in which nothing goes wrong."""
    return Plan(
        brokers=3,
        partitions=2,
        workers=2,
        shards=2,
        ack_partitions=1,
        burst=burst,
        pause_s=pause_s,
        faults=Faults(latency_s=(0.001, 0.03)),
        consumers=consumers,
        mishaps=(),
        traps=0.0,
        orders=(),
        limits={},
        index={},
        storm_s=quiet_s,
    )


def _measure(name: str, storms: Iterable[Storm]) -> Speed:
    count, virtual_s, steps, requests, cpu_s = 0, 0.0, 0, 0, 0.0
    for storm in storms:
        loop = storm.world.loop
        start_s, began = loop.now, time.process_time()
        storm.run()
        cpu_s += time.process_time() - began
        count += 1
        virtual_s += loop.now - start_s
        steps += loop.steps
        requests += storm.world.network.requests
    return Speed(name, count, virtual_s, steps, requests, cpu_s)
