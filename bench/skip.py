"""`python -m bench skip`: how fast a question is answered by reading only what can match, in records of the topic per second.

The topic holds three million records for each point of `--scale` (9 million by default, `meters.py` says which), in one
partition. The service has made its chunk index; in each case every side answers the same question, and the number of
records that it finds must be the one that the data gives, or the bench ends with an error. The figure is records of the
topic / time, so what is never read counts: a side that reads a hundredth is a hundred times as fast.

- clustered: one of 60 subjects that come in runs of 5,000 records.
- million: the subject of one record in a million.
- window: one minute of a day.
- interleaved: one of 60 subjects that take turns; every chunk has all of them, and nothing can be skipped.
- match-all: everything.
- wildcard: a wildcard on both sides of the clustered token.
- sql-equality: equality on an indexed property of the JSON value, no subject.

The sides:

- overlay: the Python reader; the value of what matches is built (ours_skip.py).
- fullscan: the same with `index=False`.
- confluent and nats: peers/skipping.py.

Our two sides answer each question once before its first round, which loads compiled kernels. So both have their connection, and
the first has read the index; how long a million headers take to load is a case of its own.

index-size, index-load, index-memory and plan-million are figures of ours alone (chunks.py): the index in percent of the records
before compression (the larger of the two streams'), and a million chunks loaded, held, and planned over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from typing import Protocol

import overlay
from bench.cases import measure_case, warm_up
from bench.chunks import LIMITS, measure_chunks
from bench.dataset import Dataset
from bench.errors import WrongAnswer
from bench.figures import Case
from bench.indexed import index_meters
from bench.meters import Meters, Question, list_questions
from bench.ours_skip import FullScan, OverlaySkip
from bench.peers.skipping import ConfluentSkip, NatsSkip
from bench.progress import Progress
from bench.settings import Settings
from bench.sides import Contender, Tally
from overlay.config import Loaded

RECORDS = 3_000_000
"""For each point of the scale."""
GOALS: Mapping[str, Mapping[str, float]] = {
    "clustered": {"fullscan": 25.0},
    "million": {"fullscan": 200.0},
    "window": {"fullscan": 200.0},
    "interleaved": {"fullscan": 0.91},
    "match-all": {"fullscan": 0.91},
    "wildcard": {"fullscan": 15.0},
    "sql-equality": {"fullscan": 25.0},
}


class Side(Contender, Protocol):
    """A way to answer. Raises PeerUnavailable."""

    def run(self, question: Question) -> Tally: ...


def measure(dataset: Dataset, settings: Settings, progress: Progress) -> Iterator[Case]:
    """The cases of the bench, each as soon as it is measured. Raises WrongAnswer."""
    meters = Meters(dataset.bootstrap, round(RECORDS * settings.scale))
    size = meters.publish(progress.count("publishing meters"))
    progress.say("indexing meters")
    with index_meters(meters) as loaded, ExitStack() as stack:
        sides = [side for side in _make_sides(loaded) if settings.wants_side(side.name)]
        for side in sides:
            stack.enter_context(closing(side))
        for case, question in list_questions(meters).items():
            if not settings.wants(case):
                continue
            warm_up(sides, _run, question, progress)
            yield measure_case("skip", case, sides, _run, question, GOALS[case], settings.rounds, progress)
        if settings.wants(*LIMITS):
            progress.say("skip: a million chunks")
            yield from measure_chunks(meters, loaded, size)


def _make_sides(loaded: Loaded) -> list[Side]:
    return [OverlaySkip(overlay.open(loaded)), FullScan(overlay.open(loaded)), ConfluentSkip(), NatsSkip()]


def _run(side: Side, question: Question) -> Tally:
    tally, expected = side.run(question), int(question.matches.sum())
    if tally.matched != expected:
        raise WrongAnswer(
            f"{side.name} on {question.meters.topic}: {tally.matched} records are found for {question.ask},"
            f" the data says {expected}. Run this side alone (--only) to look into it"
        )
    return tally
