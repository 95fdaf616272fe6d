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
kernels; sides with a process of their own start a fresh one each time and their start is left out of their time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing

from bench.dataset import CODECS, SELECTIVITIES, Dataset
from bench.errors import PeerUnavailable
from bench.figures import Case, Unit, summarise
from bench.ours import OverlayScan, UnfilteredScan
from bench.peers.confluent_scan import ConfluentScan
from bench.peers.faust_scan import FaustScan
from bench.peers.java import JavaScan
from bench.peers.nats import NatsScan
from bench.progress import Progress
from bench.rounds import take_turns
from bench.settings import Settings
from bench.sides import Side, Work

GOALS = {
    "lz4/0.1%": {"confluent": 12.0, "nats": 4.0, "java": 3.0},
    "lz4/33%": {"confluent": 10.0, "nats": 4.0, "java": 3.0},
    "lz4/100%": {"nats": 4.0, "java": 3.0, "unfiltered": 0.91},
}


def measure(dataset: Dataset, settings: Settings, progress: Progress) -> Iterator[Case]:
    """The cases of the bench, each as soon as it is measured. Raises WrongAnswer."""
    with ExitStack() as stack:
        sides = [stack.enter_context(closing(side)) for side in _make_sides(dataset, settings)]
        for codec in CODECS:
            chosen = [name for name in SELECTIVITIES if settings.wants_case(codec, name)]
            if not chosen:
                continue
            dataset.publish(codec, progress.count(f"publishing {codec}"))
            _warm_up(sides, dataset.plan_warm_up(codec), progress)
            for name in chosen:
                work = dataset.plan(codec, SELECTIVITIES[name])
                yield _measure_case(f"{codec}/{name}", sides, dataset, work, settings, progress)


def _make_sides(dataset: Dataset, settings: Settings) -> list[Side]:
    sides: list[Side] = [
        OverlayScan(),
        ConfluentScan(),
        JavaScan(),
        NatsScan(dataset),
        FaustScan(settings.faust_records),
        UnfilteredScan(),
    ]
    return [side for side in sides if settings.wants_side(side.name)]


def _warm_up(sides: Sequence[Side], work: Work, progress: Progress) -> None:
    for side in sides:
        if side.warm:
            progress.say(f"warming up {side.name}")
            try:
                side.run(work)
            except PeerUnavailable:
                continue  # the first round meets the same and says so


def _measure_case(
    case: str, sides: Sequence[Side], dataset: Dataset, work: Work, settings: Settings, progress: Progress
) -> Case:
    def measure_side(side: Side) -> float:
        progress.say(f"scan {case}: {side.name}")
        tally = side.run(work)
        dataset.check(side.name, work, tally)
        return tally.rate

    runs = take_turns(sides, settings.rounds, measure_side)
    return summarise(case, Unit.RATE, runs.figures, goal=GOALS.get(case, {}), skipped=runs.skipped)
