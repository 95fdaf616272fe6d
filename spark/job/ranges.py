"""Which offsets a batch of a job has, asked by Spark through ranges_source.py.

Spark's engine decides when a batch begins and where it ends, and writes both down before it runs
(its offset log). A job reads the records itself, with tasks of its own, so its stream has no
records: one row has first and next offset of each partition.

Spark begins a batch only if the position has changed. A job has work without new records too: its
config folder has changed, or a consumer that has come later, or has a rate limit, is still behind the
others. So a position also has a digest of the folder's files, a mark of the last change of them that
is to be tried again, and the number of the last batch that left a consumer behind for which the next
one may read.

While a service keeps the stream's ledger, a batch ends where the ledger ends (following.py).
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from overlay.client.connection import Connection
from overlay.client.read.bounds import ReadBounds
from overlay.clock import monotonic, now_ms, now_ns
from overlay.config.loader import sign
from overlay.kafka.log_position import TopicPartition
from overlay.kafka.own_topics import job_topic
from overlay.logs import get_logger
from overlay.state.job_log import read_last
from overlay.state.job_plan import BatchPlan
from overlay.state.job_plan_codec import decode_plan
from overlay.state.job_reads import Ends
from spark.kept import keep
from spark.options import EARLIEST, IDS, Ask
from spark.stream import JOB, OverlayStreamReader, Position, Spots, read_position

from .following import FOLLOW_S

log = get_logger(__name__)

FindReach = Callable[[Spots], Mapping[TopicPartition, int]]

SETTLED_NS = 1_000_000_000
"""For how long no file may have changed before a change is taken up: an editor may still be writing."""
PAUSE_S = 0.1
"""Seconds between two looks at where the ledger ends."""
REACH_S = 10.0
"""For so long a query that ends with what there is waits for sequences of it."""


class RangesReader(OverlayStreamReader):
    """A stream reader whose batches have one row. `job`: the job's name; `folder`: its config folder. `find_reach`: lowers
    the ends of a batch to what has sequences, as StreamKeeper.find_reach does. `find_retry`: returns the mark of a change of
    the folder that could not be taken up and is to be tried again, empty if there is none.
    """

    unnamed = EARLIEST
    """A partition that was added since the job has looked where its consumers begin: they want all of it."""

    def __init__(
        self, ask: Ask, job: str, folder: Path, find_reach: FindReach = dict, find_retry: Callable[[], str] = str
    ) -> None:
        super().__init__(ask, StructType())
        self._job, self._folder = job, folder
        self._find_reach, self._find_retry = find_reach, find_retry
        self._held: tuple[Spots, float] | None = None
        """Where the ledger has come to, and since when, monotonic seconds."""

    def latestOffset(self, start: Position, limit: ReadLimit) -> Position:
        """Return where the next batch ends. It differs from `start` if there is anything to do. Raises DataLoss, and
        OverlayError if Kafka or the job's plan cannot be read.
        """
        known = start.get(JOB, {})
        files = find_digest(self._folder) or known.get("files", "")
        last = self._read_plan()
        behind = str(last.batch) if last is not None and last.has_due(now_ms()) else known.get("behind", "")
        own = {"files": files, "behind": behind}
        if retry := self._find_retry() or known.get("retry", ""):
            own["retry"] = retry
        return {**super().latestOffset(start, limit), JOB: own}

    def _find_ends(self, bounds: ReadBounds) -> Spots:
        ends = super()._find_ends(bounds)
        reach = self._find_reach(ends)
        until = monotonic() + REACH_S
        while self._target is not None and reach != ends and monotonic() < until:
            time.sleep(PAUSE_S)  # no event tells Spark's thread that the ledger goes further
            reach = self._find_reach(ends)
        self._tell(ends, dict(reach))
        return dict(reach)

    def _tell(self, ends: Spots, reach: Spots) -> None:
        """Log that records wait for their sequences: each FOLLOW_S in which the ledger has not moved, and at the end of a query
        that ends with what there is."""
        now = monotonic()
        if reach == ends or self._held is None or self._held[0] != reach:
            self._held = reach, now
        if reach != ends and (self._target is not None or now - self._held[1] >= FOLLOW_S):
            self._held = reach, now
            waiting = sum(ends.values()) - sum(reach.values())
            reason = "a service runs, which keeps the ledger of the stream and has not come to them"
            log.warning("records wait for their sequences", job=self._job, records=waiting, reason=reason)

    def _read_plan(self) -> BatchPlan | None:
        """Return the job's last plan, None for a new job."""
        found: list[bytes | None] = []
        topic = job_topic(self._ask.prefix, self._job)

        async def work(line: Connection) -> None:
            found.append(await read_last(await line.open(), line.admin, topic, 0))

        keep(self._ask).lines.run(work)
        return None if found[0] is None else decode_plan(found[0])

    def find_text(self, start: Position, end: Position) -> str:
        """Return the row of a batch (`parse_range`): if the positions have the same offsets, an empty range of each
        partition. Does not check that the log still has the offsets, or that the topics still have the ids of `end`: the
        job does, before it plans their tasks.
        """
        ends = self.find_range(start, end) or {source: (at, at) for source, at in read_position(end).items()}
        spans = [[*source, *span] for source, span in sorted(ends.items())]
        return json.dumps({"ends": spans, "ids": end.get(IDS, {})})


def find_digest(folder: Path) -> str:
    """Return a digest of the names, times and sizes of a folder's stream, consumer and schema files; empty if one of them
    was changed within the last SETTLED_NS."""
    signature = sign(folder)
    if any(changed > now_ns() - SETTLED_NS for _, changed, _ in signature):
        return ""
    return hashlib.sha256(repr(signature).encode()).hexdigest()[:16]


def parse_range(text: str) -> tuple[Ends, dict[str, str]]:
    """Return first and next offset of each partition, and Kafka's ids of the topics when the batch was begun, from the text
    of a batch's row, as `find_text` writes it. A checkpoint of an earlier version has no ids."""
    row = json.loads(text)
    return {(topic, partition): (start, stop) for topic, partition, start, stop in row["ends"]}, row["ids"]
