"""`python -m bench push`: how fast a filter writes what it lets through to an output topic, exactly once.

The source topic is full before the clock starts. Every side reads it from its first offset to its last and writes the
matching records, key, value and headers, to a fresh topic of one partition in transactions that hold its position as
well. The rate is records read per second until the transaction with the last matching record is committed. Each
output is then counted by a read-committed consumer, off the clock; a wrong count ends the bench.

- overlay: the service as `overlay run` runs it (ours_push.py); adds two headers to each record.
- confluent: a consume-test-produce loop in transactions (peers/confluent_push.py); adds one.

Output is LZ4 on both sides, whatever the source's codec. Both run in this process and do the work once on 2,000 records,
then twice on everything, before the first round: a broker that has just started is slow. The cases `latency/...` are
described in latency.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench import latency
from bench.cases import measure_cases
from bench.dataset import Dataset
from bench.figures import Case
from bench.ours_push import OverlayPush
from bench.outputs import check_output, make_topic
from bench.peers.confluent_push import ConfluentPush
from bench.progress import Progress
from bench.settings import Settings
from bench.sides import Delivery, Tally, Work

GOALS = {"lz4/0.1%": {"confluent": 10.0}, "lz4/33%": {"confluent": 6.0}, "lz4/100%": {"confluent": 4.0}}


def measure(dataset: Dataset, settings: Settings, progress: Progress) -> Iterator[Case]:
    """The cases of the bench, each as soon as it is measured. Raises WrongAnswer."""
    sides: list[Delivery] = [OverlayPush(), ConfluentPush()]

    def push_from(side: Delivery, work: Work) -> Tally:
        return push(side, dataset, work)

    yield from measure_cases("push", sides, push_from, GOALS, dataset, settings, progress)
    if settings.latency_s:
        yield from latency.measure(dataset, settings, progress)


def push(side: Delivery, dataset: Dataset, work: Work) -> Tally:
    """Run one side into a topic of its own and check what has come out. Raises WrongAnswer."""
    expected = dataset.count(work.pattern, work.records)
    out_topic = make_topic(work.bootstrap, f"out-{side.name}")
    tally = side.run(work, out_topic, expected)
    dataset.check(side.name, work, tally)
    check_output(side.name, work.bootstrap, out_topic, expected)
    return tally
