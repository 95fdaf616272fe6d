"""`spark.readStream.format("overlay")`: a stream or topic as it grows, in Spark's micro-batches.

Offsets are Kafka's, written as Spark's own Kafka source writes them: {"flights": {"0": 1000}} is
the next offset to read. In a stream of one partition they are sequences less one. The log's end is
its last stable offset, so records of open transactions are read once these are committed.

A position also has the ids that Kafka gave the topics, under a key that no topic can have: {"topic
ids": {"flights": "..."}}. A topic that was deleted and created again has another id, however long
its log is. Such a topic ends the query, and so does a log that ends before the position, unless
failOnDataLoss is off. Then a new topic is read from its start, and a truncated log is read from its
end on.

Spark's planner passes a limit of one kind (rows or bytes). Here both may be set, and the smaller
one counts. Rows are counted as offsets, because what a filter or compaction or transactions leave
cannot be known without reading. Bytes are those of the log, compressed, estimated from the batches
at each partition's position. As in Spark's Kafka source, a limit is shared out in proportion to
what each partition has waiting.

A start time only says where the first trigger begins. Later records pass with any time, as they do
in the service. A test of their times would lose some at each restart, because a time such as `3h`
would then mean another moment.

Spark pushes predicates only into batch readings. A stream's filter is given as options.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from overlay.client import BadQuestion
from overlay.client.read.bounds import ReadBounds
from overlay.kafka.log_position import TopicPartition
from overlay.state.partitions import find_anew

from .options import EARLIEST, IDS, LATEST, Ask, ReadBound
from .partitions import TaskPartition
from .plan import CREATED_AGAIN, Ends, Planner, check_loss, report_loss, resolve
from .scan import read

Position = dict[str, dict[str, Any]]
"""The next offset of each partition and the ids of the topics, as Spark keeps them in its checkpoint."""
Spots = dict[TopicPartition, int]
NO_IDS: Mapping[str, str] = MappingProxyType({})
LARGE_RECORD = 1 << 20
"""Bytes that an offset has at most, as a rule: for a few offsets nothing is looked up."""
JOB = "the job"
"""The key of what a Spark job adds to a position (job/ranges.py); no topic can have this name."""


def write_position(spots: Mapping[TopicPartition, int], ids: Mapping[str, str] = NO_IDS) -> Position:
    """Return a position in the order of topics and partitions, because Spark compares the text.

    `spots`: the next offset by partition. `ids`: Kafka's ids of the topics, by topic.
    """
    position: Position = {}
    for (topic, partition), offset in sorted(spots.items()):
        position.setdefault(topic, {})[str(partition)] = offset
    return position | ({IDS: dict(sorted(ids.items()))} if ids else {})


def read_position(position: Position) -> Spots:
    """Return the next offset of each partition in a position."""
    return {
        (topic, int(partition)): offset
        for topic, of in position.items()
        if topic not in (IDS, JOB)
        for partition, offset in of.items()
    }


class OverlayStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream reader that exists at the driver while the query runs. Only `read` is called elsewhere.

    Raises BadQuestion if the options have an end other than a time.
    """

    unnamed = LATEST
    """Where a query begins in a partition that the options say nothing of, as in Spark's Kafka source."""

    def __init__(self, ask: Ask, schema: StructType) -> None:
        if ask.ending != ReadBound():
            ends = "endingOffsets, endingSequence and offsetRanges"
            raise BadQuestion(f"a stream has no end. Leave out {ends}, or use spark.read")
        self._ask, self._schema = replace(ask, request=replace(ask.request, since=None)), schema
        self._since = ask.request.since
        self._target: Spots | None = None
        """Where a query with Trigger.AvailableNow ends."""

    def initialOffset(self) -> Position:
        """Return the start by the options; by default the end of the log, as in Spark's Kafka source.
        Raises DataLoss, NoSequence.
        """
        ids = Planner(self._ask).find_ids()
        bounds = Planner(self._ask).look(with_ledger=self._ask.starting.sequence is not None)
        log = {each.source: (bounds.log_starts[each.source], each.stop) for each in bounds.offset_ranges}
        if self._since is not None:
            return write_position(Planner(self._ask).find_since(self._since, log), ids)
        starts = resolve(Planner(self._ask).renew(self._ask.starting, EARLIEST), bounds, log, self.unnamed)
        ends = {source: (start, max(start, log[source][1])) for source, start in starts.items()}
        kept = check_loss(bounds, ends, self._ask.fails_on_loss)
        return write_position({source: start for source, (start, _) in kept.items()}, ids)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of a trigger by the options: rows, or bytes if only these are limited,
        or all.
        """
        pace = self._ask.pace
        if pace.records is not None:
            return ReadMaxRows(pace.records)
        return ReadAllAvailable() if pace.bytes is None else ReadMaxBytes(pace.bytes)

    def latestOffset(self, start: Position, limit: ReadLimit) -> Position:
        """Return where the trigger that begins at `start` ends: at the log's end (with Trigger.AvailableNow not after
        the end that it had when the query began), or before it by the limits of the options. `limit` only says
        whether there is one.

        Raises DataLoss if a topic was created again or a log ends before `start`, unless that is allowed.
        """
        ids = Planner(self._ask).find_ids()
        bounds = Planner(self._ask).look()
        begun, ends = self._find_begun(start, bounds, ids), self._find_ends(bounds)
        # a partition that was added since then is read from its start
        begun |= {source: bounds.log_starts[source] for source in ends if source not in begun}
        waiting = {source: (at, max(at, ends.get(source, at))) for source, at in begun.items()}
        waiting = self._skip_lost(bounds, waiting)
        if not isinstance(limit, ReadAllAvailable):
            waiting = self._limit(waiting)
        return write_position({source: end for source, (_, end) in waiting.items()}, ids)

    def _find_begun(self, start: Position, bounds: ReadBounds, ids: Mapping[str, str]) -> Spots:
        """Return the next offset to read of each partition, by a position that Spark has kept.

        Partitions of topics that were created again are left out. An offset beyond the end of its
        log becomes the end. Raises DataLoss in both cases, unless failOnDataLoss is off.
        """
        anew = find_anew(start.get(IDS, {}), ids)
        for topic in sorted(anew):
            report_loss(topic, CREATED_AGAIN, self._ask.fails_on_loss)
        begun = {source: at for source, at in read_position(start).items() if source[0] not in anew}
        ends = {each.source: each.stop for each in bounds.offset_ranges}
        behind = [source for source, at in begun.items() if at > ends.get(source, at)]
        if behind:
            # a new leader may report less than its log has: look up the ends in the way that waits
            # for the rest
            bounds = Planner(self._ask).look_anew(bounds, behind)
            begun = {
                s: at
                for s, (at, _) in check_loss(
                    bounds, {s: (at, at) for s, at in begun.items()}, self._ask.fails_on_loss
                ).items()
            }
        return begun

    def _skip_lost(self, bounds: ReadBounds, waiting: Ends) -> Ends:
        """Return the ranges that wait to be read, without the offsets below the log starts of `bounds`: retention has
        removed them, and they must not use up a limit.

        `waiting`: by partition, start and end. A range that is lost as a whole stays, empty, at its end. Raises
        nothing: `partitions` checks later whether records may be missing.
        """
        return {
            source: (min(max(at, bounds.log_starts.get(source, at)), end), end) for source, (at, end) in waiting.items()
        }

    def _find_ends(self, bounds: ReadBounds) -> Spots:
        ends = {each.source: each.stop for each in bounds.offset_ranges}
        if self._target is None:
            return ends
        return {
            source: min(end, self._target.get(source, end)) for source, end in ends.items() if source in self._target
        }

    def _limit(self, waiting: Ends) -> Ends:
        pace = self._ask.pace
        if pace.records is not None:
            waiting = share_out(waiting, pace.records, dict.fromkeys(waiting, 1.0))
        offsets = sum(end - start for start, end in waiting.values())
        if pace.bytes is not None and offsets * LARGE_RECORD > pace.bytes:
            waiting = share_out(waiting, pace.bytes, Planner(self._ask).weigh(waiting))
        return waiting

    def reportLatestOffset(self) -> Position:
        """Return the end of the log for the query's progress report, from which Spark computes the
        lag.
        """
        ids = Planner(self._ask).find_ids()
        return write_position({each.source: each.stop for each in Planner(self._ask).look().offset_ranges}, ids)

    def prepareForTriggerAvailableNow(self) -> None:
        """Remember the current end of the log, where the query will end."""
        self._target = {each.source: each.stop for each in Planner(self._ask).look().offset_ranges}

    def partitions(self, start: Position, end: Position) -> list[InputPartition]:
        """Return the tasks that read the offsets from `start` to `end`; none if both have the same offsets of the
        same topics. Raises DataLoss if the log does not have all of these offsets any more, or if a topic was created
        again since `end` was found, unless failOnDataLoss is off: then nothing of that topic is read.
        """
        ends = self.find_range(start, end)
        if not ends:
            return []
        # a batch that is run again has the offsets of the topic that there was when it was begun
        anew = find_anew(end.get(IDS, {}), Planner(self._ask).find_ids())
        for topic in sorted(anew):
            report_loss(topic, CREATED_AGAIN, self._ask.fails_on_loss)
        left = {source: span for source, span in ends.items() if source[0] not in anew}
        return list[InputPartition](Planner(self._ask).plan_between(left)) if left else []

    def find_range(self, start: Position, end: Position) -> Ends:
        """Return first and next offset of each partition between two positions; empty if these have the same offsets
        of the same topics. Partitions that `start` does not have, and those of topics that were created again since,
        begin at their log's start, or are empty if that has passed their end. Does not check that the log has these
        offsets.
        """
        anew = find_anew(start.get(IDS, {}), end.get(IDS, {}))
        begun, ends = {s: at for s, at in read_position(start).items() if s[0] not in anew}, read_position(end)
        if begun == ends:
            return {}
        added = [source for source in ends if source not in begun]
        if added:
            bounds = Planner(self._ask).look()
            begun |= {source: min(bounds.log_starts.get(source, 0), ends[source]) for source in added}
        return {source: (begun[source], at) for source, at in ends.items()}

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a task. Runs in an executor."""
        if isinstance(partition, TaskPartition):
            yield from read(self._ask, self._schema, partition)


def share_out(waiting: Ends, most: int, weights: Mapping[TopicPartition, float]) -> Ends:
    """Return the ranges, cut at their ends so that together they weigh about `most` or less.

    `waiting`: by partition, start and end. `weights`: by partition, the weight of one offset: 1 to
    count offsets, or its bytes. All ranges are cut in proportion, but keep at least one offset.
    """
    total = sum((end - start) * weights[source] for source, (start, end) in waiting.items())
    if total <= most:
        return waiting
    part = most / total
    return {
        source: (start, start + min(end - start, max(1, int((end - start) * part))) if end > start else end)
        for source, (start, end) in waiting.items()
    }
