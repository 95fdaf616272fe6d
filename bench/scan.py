"""`python -m bench scan`: how fast one subject filter goes through a topic, in records read per second.

Every side reads all records of one partition of the same topic, from its first offset to its last, and counts those
that the filter lets through; the counts must be those that the data set gives, or the bench ends with an error.

- overlay: raw fetches, decoded, addressed and matched in one thread, as the service does it.
- unfiltered: the same without a filter; what filtering costs.
- confluent: confluent-kafka in batches, headers tested in Python (peers/confluent_scan.py).
- java: Kafka's ConsumerPerformance, no filter at all (peers/java.py).
- nats: JetStream ordered consumer with a filter subject, same messages in file storage (peers/nats.py).
- faust: an agent that counts, over the first part of the topic (peers/faust_scan.py).

Sides that run in this process read a topic of 2,000 records once before the first round, which loads code and compiled
kernels, and then the whole topic twice, for the broker's sake; sides with a process of their own start a fresh one each
time and their start is left out of their time.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench.cases import measure_cases
from bench.dataset import Dataset
from bench.figures import Case
from bench.ours import OverlayScan, UnfilteredScan
from bench.peers.confluent_scan import ConfluentScan
from bench.peers.faust_scan import FaustScan
from bench.peers.java import JavaScan
from bench.peers.nats import NatsScan
from bench.progress import Progress
from bench.settings import Settings
from bench.sides import Side, Tally, Work

GOALS = {
    "lz4/0.1%": {"confluent": 12.0, "nats": 4.0, "java": 3.0},
    "lz4/33%": {"confluent": 10.0, "nats": 4.0, "java": 3.0},
    "lz4/100%": {"nats": 4.0, "java": 3.0, "unfiltered": 0.91},
}


def measure(dataset: Dataset, settings: Settings, progress: Progress) -> Iterator[Case]:
    """The cases of the bench, each as soon as it is measured. Raises WrongAnswer."""

    def scan(side: Side, work: Work) -> Tally:
        tally = side.run(work)
        dataset.check(side.name, work, tally)
        return tally

    yield from measure_cases("scan", _make_sides(dataset, settings), scan, GOALS, dataset, settings, progress)


def _make_sides(dataset: Dataset, settings: Settings) -> list[Side]:
    return [
        OverlayScan(),
        ConfluentScan(),
        JavaScan(),
        NatsScan(dataset),
        FaustScan(settings.faust_records),
        UnfilteredScan(),
    ]
