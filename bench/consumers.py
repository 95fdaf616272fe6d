"""`python -m bench consumers`: what thousands of consumers cost, and what the neighbours of one notice of it.

Five cases measure deliveries per second, exactly once, until the last is committed (ours_consumers.py). The peer `one` is our
own service with a single consumer that has as many deliveries, in one output topic:

- 5000: orders of 5,000 customers in turns, so that each slice of the log holds records of all. A consumer for each customer,
  with a literal subject, over 32 output topics that they share; `one` takes every order.
- 36x100: orders of 3,600 customers. 36 consumers with the literal subjects of a hundred customers each, and an output topic
  each; `one` takes every order. The peer `nats` has the same consumers (peers/nats_consumers.py).
- million-subjects: as many customers as orders, up to a million. One consumer takes every order; `one` is the same over as
  many orders of a hundred customers.
- sql-500: 500 consumers over 32 output topics, each with an SQL filter of its own that takes 0.2 % of the orders; `one` has
  a filter that takes all.
- 8-shards: orders of a hundred customers and a consumer for each, in eight shards of one worker; `one` has them in one shard.

In the others `overlay run` is a process of its own: create-5000, change-5000, restart-5000 (thousands.py), idle-memory,
idle-cpu (idle.py), far-behind (far_behind.py), page-5000, page-cpu (page.py) and two-workers (two_workers.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Protocol

from bench import far_behind, idle, page, thousands, two_workers
from bench.cases import measure_case, warm_up
from bench.crowd import ALL, list_each
from bench.dataset import Dataset
from bench.errors import WrongAnswer
from bench.figures import Case
from bench.orders import CENTS, Orders, name_customer
from bench.ours_consumers import Job, Served
from bench.outputs import delete_topic
from bench.peers.nats_consumers import NatsConsumers
from bench.progress import Progress
from bench.settings import Settings
from bench.sides import Contender, Tally

RECORDS = 200_000
"""For each point of the scale."""
CUSTOMERS = 5_000
OUTPUTS = 32
GROUPS, GROUP = 36, 100
MILLION = 1_000_000
FILTERS = 500
FEW = 100
"""Customers where their number does not matter."""
SHARDS = 8
FAR = 10_000_000
WARM_UP = 20_000
GOALS: Mapping[str, Mapping[str, float]] = {
    "5000": {"one": 0.5},
    "36x100": {"one": 0.5},
    "million-subjects": {"one": 0.5},
    "sql-500": {"one": 0.25},
    "8-shards": {"one": 0.5},
}

Contest = Mapping[str, Job]
"""What each side has to do, by its name."""


class ConsumersSide(Contender, Protocol):
    """A way to deliver what a job asks for. Raises PeerUnavailable."""

    def run(self, job: Job) -> Tally: ...


def measure(dataset: Dataset, settings: Settings, progress: Progress) -> Iterator[Case]:
    """The cases of the bench, each as soon as it is measured. Raises WrongAnswer."""
    bootstrap = dataset.bootstrap
    yield from _measure_rates(bootstrap, settings, progress)
    share = min(settings.scale, 1.0)
    count = max(round(CUSTOMERS * share), 2)
    if settings.wants(*idle.CASES):
        yield from idle.measure(bootstrap, count, settings, progress)
    if settings.wants("restart-5000"):
        yield thousands.measure_restart(bootstrap, count, settings, progress)
    if settings.wants("change-5000"):
        yield thousands.measure_change(bootstrap, count, settings, progress)
    if settings.wants(far_behind.CASE):
        yield far_behind.measure(bootstrap, round(FAR * share), settings, progress)
    if settings.wants(*page.CASES):
        yield from page.measure(bootstrap, count, settings, progress)
    if settings.wants(two_workers.CASE):
        yield two_workers.measure(bootstrap, round(RECORDS * settings.scale), settings, progress)
    if settings.wants("create-5000"):
        yield thousands.measure_create(bootstrap, count, settings, progress)


def _measure_rates(bootstrap: str, settings: Settings, progress: Progress) -> Iterator[Case]:
    """The cases in deliveries per second."""
    if not settings.wants(*GOALS):
        return
    with ExitStack() as stack:
        served: list[ConsumersSide] = [
            side for side in (Served("overlay"), Served("one")) if settings.wants_side(side.name)
        ]
        nats = stack.enter_context(closing(NatsConsumers()))
        few = Orders(bootstrap, WARM_UP, FEW)
        few.publish(progress.count("publishing"))
        few_each = Job(few, list_each(FEW), OUTPUTS, WARM_UP)
        warm_up(served, run, {"overlay": few_each, "one": Job(few, ALL, 1, WARM_UP)}, progress)
        for case, plan in PLANS.items():
            if settings.wants(case):
                contest = plan(bootstrap, settings.scale)
                topics = {job.orders.topic: job.orders for job in contest.values()}
                for orders in topics.values():
                    orders.publish(progress.count("publishing"))
                sides: list[ConsumersSide] = [
                    *served,
                    *([nats] if nats.name in contest and settings.wants_side(nats.name) else []),
                ]
                yield measure_case("consumers", case, sides, run, contest, GOALS[case], settings.rounds, progress)
                for topic in topics:
                    delete_topic(bootstrap, topic)


def run(side: ConsumersSide, contest: Contest) -> Tally:
    """Have one side do its job. Raises WrongAnswer when it has delivered more or less."""
    job = contest[side.name]
    tally = side.run(job)
    if tally.matched != job.deliveries:
        raise WrongAnswer(
            f"{side.name} on {job.orders.topic}: {tally.matched} deliveries counted of {job.deliveries}."
            " Run this side alone (--only) to look into it"
        )
    return tally


def _plan_customers(bootstrap: str, scale: float) -> Contest:
    orders = Orders(bootstrap, _round(RECORDS * scale, CUSTOMERS), CUSTOMERS)
    many = Job(orders, list_each(CUSTOMERS), OUTPUTS, orders.records)
    return {"overlay": many, "one": Job(orders, ALL, 1, orders.records)}


def _plan_groups(bootstrap: str, scale: float) -> Contest:
    customers = GROUPS * GROUP
    orders = Orders(bootstrap, _round(RECORDS * scale, customers), customers)
    subjects = [f"orders.{name_customer(number)}" for number in range(customers)]
    groups = {f"group-{at}": {"filter_subjects": subjects[at * GROUP : (at + 1) * GROUP]} for at in range(GROUPS)}
    many = Job(orders, groups, GROUPS, orders.records)
    return {"overlay": many, "one": Job(orders, ALL, 1, orders.records), "nats": many}


def _plan_subjects(bootstrap: str, scale: float) -> Contest:
    customers = min(round(MILLION * scale), MILLION)
    records = _round(MILLION * scale, customers)
    each, few = Orders(bootstrap, records, customers), Orders(bootstrap, records, FEW)
    return {"overlay": Job(each, ALL, 1, records), "one": Job(few, ALL, 1, records)}


def _plan_filters(bootstrap: str, scale: float) -> Contest:
    orders, width = Orders(bootstrap, _round(RECORDS * scale, FEW), FEW), CENTS // FILTERS
    filters = {
        f"from-{at * width}": _ask(f"cents >= {at * width} AND cents < {(at + 1) * width}") for at in range(FILTERS)
    }
    one = Job(orders, {"all": _ask("cents >= 0")}, 1, orders.records)
    return {"overlay": Job(orders, filters, OUTPUTS, orders.records), "one": one}


def _plan_shards(bootstrap: str, scale: float) -> Contest:
    orders = Orders(bootstrap, _round(RECORDS * scale, FEW), FEW)
    one = Job(orders, list_each(FEW), OUTPUTS, orders.records)
    return {"overlay": replace(one, shards=SHARDS), "one": one}


def _ask(sql: str) -> Mapping[str, object]:
    """Return what a consumer wants that has a filter for all subjects."""
    return {"filter_subject": "orders.>", "filter": {"sql": sql}}


def _round(records: float, part: int) -> int:
    """Return a number of records that is a multiple of `part`, and not 0."""
    return max(round(records) // part, 1) * part


PLANS: Mapping[str, Callable[[str, float], Contest]] = {
    "5000": _plan_customers,
    "36x100": _plan_groups,
    "million-subjects": _plan_subjects,
    "sql-500": _plan_filters,
    "8-shards": _plan_shards,
}
