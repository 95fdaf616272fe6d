"""How large the index is, and what a million chunks cost: to load, to hold, to plan over.

The million are the headers of METERS again and again, each time further on: made by the product from real records. They are
taken in as a fetch brings them. Planned is the clustered question.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import numpy as np

from bench.figures import OVERLAY, Case, Unit
from bench.indexed import read_values
from bench.meters import STREAMS, Meters, list_questions
from overlay.clock import now_ms
from overlay.config import Loaded
from overlay.index.skip.chunks import Chunks
from overlay.index.skip.config_fingerprint import find_config_fingerprint
from overlay.index.skip.derive import derive
from overlay.index.skip.encode import parse
from overlay.index.skip.plan import plan
from overlay.index.skip.prune import evaluate
from overlay.subject import Pattern

MILLION = 1_000_000
LIMITS = {"index-size": 0.5, "index-load": 10_000.0, "index-memory": 400.0, "plan-million": 150.0}


def measure_chunks(meters: Meters, loaded: Loaded, size: int) -> Iterator[Case]:
    """The four cases. `size`: bytes of all records before compression."""
    values = {name: read_values(loaded, name) for name in STREAMS}
    percent = max(100 * sum(map(len, found)) / size for found in values.values())
    yield _make_case("index-size", Unit.PERCENT, percent)
    chunks, seconds = _load(loaded, values["METERS"])
    yield _make_case("index-load", Unit.MILLISECONDS, 1_000 * seconds)
    yield _make_case("index-memory", Unit.MEGABYTES, chunks.nbytes / 1e6)
    yield _make_case("plan-million", Unit.MILLISECONDS, 1_000 * _plan(meters, loaded, chunks))


def _make_case(name: str, unit: Unit, figure: float) -> Case:
    return Case(name, unit, figure, limit={OVERLAY: LIMITS[name]})


def _load(loaded: Loaded, values: list[bytes]) -> tuple[Chunks, float]:
    """A million chunks, and the seconds that taking them in has taken."""
    sizes = np.array([len(value) for value in values], np.int64)
    buf, at = np.frombuffer(b"".join(values), np.uint8), np.cumsum(sizes) - sizes
    chunks, seconds = Chunks(find_config_fingerprint(loaded.streams["METERS"])), 0.0
    while len(chunks) < MILLION:
        end = int(chunks.next_offset[-1]) if len(chunks) else 0
        began = time.perf_counter()
        block = parse(buf, at, sizes)
        for name in ("first_offset", "next_offset"):
            block.heads[name] += end
        chunks.extend(block, np.flatnonzero(block.flaws == 0))
        seconds += time.perf_counter() - began
    return chunks, seconds * MILLION / len(chunks)


def _plan(meters: Meters, loaded: Loaded, chunks: Chunks) -> float:
    """Seconds from the question to the route, the median of some."""
    question, stream = list_questions(meters)["clustered"], loaded.streams["METERS"]
    taken = []
    for _ in range(5):
        began = time.perf_counter()
        conditions = derive(stream, [Pattern.parse(question.ask["subjects"])], now=now_ms())
        plan(evaluate(conditions, chunks), chunks)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)
