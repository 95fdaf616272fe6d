"""What a Spark job keeps in its state topic: plans of batches by the driver, and commits by the writers.

Both are JSON in records without a key. The last record of a partition counts.

A plan has the position of every consumer of the job. Most read what the batch reads: they stand
where the batch ends. A consumer that has come later catches up first, at offsets of its own, and one
with a rate limit or a pause always has offsets of its own (job_pace.py). So has one with `deliver_policy:
last_per_subject` until it has come to the end of its snapshot: of the records below that it is
given only the last one of each subject. One that has left the job keeps the position at which it left,
from which the service, or another job, goes on.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeVar

from overlay.errors import OverlayError
from overlay.kafka.log_position import TopicPartition

from .job_pace import Pace, PaceState, allow, renew
from .job_reads import NO_LIMIT, Ends, catch_up, cut_at, find_snapshot, lower, read_part, read_span
from .offsets_json import spell_offsets, spell_spans

T = TypeVar("T")

WINDOW_MS = 10_000
"""A rate counts at most so much of the time in which a job waited for its next batch."""
IDLE_MS = 60_000
"""A job whose last batch ended longer ago delivers nothing now."""


class BatchUnfinished(OverlayError):
    """A consumer's position is not known, since it is in a batch of a Spark job that was begun and has not ended.
    The operator lets the job end it."""


@dataclass(frozen=True, slots=True)
class Limit:
    """What a batch that is planned now may read for consumers that have offsets of their own.

    `offsets`: about so many for each such consumer (`catch_up`, `read_part`), in addition to what the batch reads for
    all; for a consumer that is given its last messages and has no rate the driver finds a limit. `size`: and about so
    many bytes, of a consumer in `sizes`: by name, how many bytes each offset has that it reads for itself. `now`: ms
    since 1970, the time of the batch. `paces`: by name, of the consumers that have limits in their files. `log_starts`:
    the first offset that the log of each partition still has.
    """

    offsets: int
    now: int = 0
    paces: Mapping[str, Pace] = field(default_factory=dict)
    log_starts: Mapping[TopicPartition, int] = field(default_factory=dict)
    size: int = NO_LIMIT
    sizes: Mapping[str, float] = field(default_factory=dict)

    def find_most(self, consumer: str) -> int:
        """Return the most offsets that a consumer may read for itself, at least 1."""
        each = self.sizes.get(consumer, 0.0)
        return max(1, min(self.offsets, int(self.size / each))) if each else self.offsets


@dataclass(frozen=True, slots=True)
class ConsumerPlan:
    """One consumer in a batch.

    `fingerprint`: of its config. `before`, `last`: the consumer sequence before the batch, and the
    last one of it. `since`: the batch with which the consumer began. `floors`: by partition, the
    offset at which it began. `claim`: the mark under which the service's state names this job as the
    one that delivers the consumer; empty if there was no such state. `reads`: first and next offset of
    each partition that the batch reads for this consumer alone, since the consumer is below the
    batch's start or has a limit or a snapshot; empty if it reads the batch's `ends` with the others.
    `letters`: the batch's dead letters for it. `pace`: what is kept of its limits. `lost`: how many
    offsets retention had removed before this batch could read them for the consumer. `snapshot`: where
    its last messages end in each partition, while it is given these; the batch then reads nothing else
    for it. `ahead`: how many records with a wanted subject it has still to read after the batch, up to
    the plan's `log_ends`; -1 if that is not known. `skipped`: the part of `lost` that lies below the
    batch's offsets. `rate`: deliveries per second by the last batch that has ended; -1 if that is not
    known.
    """

    fingerprint: str
    before: int
    last: int
    since: int
    floors: Mapping[TopicPartition, int] = field(default_factory=dict)
    claim: str = ""
    reads: Mapping[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    letters: int = 0
    pace: PaceState = field(default_factory=PaceState)
    lost: int = 0
    snapshot: Mapping[TopicPartition, int] = field(default_factory=dict)
    ahead: int = -1
    skipped: int = 0
    rate: float = -1

    def begin_anew(self, topics: Collection[str]) -> ConsumerPlan:
        """Return the plan of a consumer that has read nothing yet of these topics, which were created again."""
        return replace(
            self,
            floors=_reset(self.floors, topics),
            reads=_leave_out(self.reads, topics),
            snapshot=_leave_out(self.snapshot, topics),
            ahead=-1,
        )

    def cut_off(self, ends: Mapping[TopicPartition, int], least: int = 0) -> ConsumerPlan:
        """Return the plan of a consumer that is not beyond these offsets, at which partitions have lost their last records.
        `least`: the offset of the first record that it is to have by its file, which may be beyond them."""
        reads = {
            s: (min(start, ends.get(s, start)), min(stop, ends.get(s, stop))) for s, (start, stop) in self.reads.items()
        }
        return replace(
            self, floors=lower(self.floors, ends, least), reads=reads, snapshot=lower(self.snapshot, ends), ahead=-1
        )

    def count_lost(self, ends: Ends, log_starts: Mapping[TopicPartition, int], scanned: int) -> ConsumerPlan:
        """Return the plan with `lost` set to how many offsets retention had removed: those in `skipped`, those that
        `find_readable` counts, and `scanned`, which the scan found to be gone. The former `lost` does not count, so a
        batch that is run again counts none twice. `ends`, `log_starts`: as in `find_readable`.
        """
        return replace(self, lost=self.skipped + self.find_readable(ends, log_starts)[1] + scanned)

    def find_readable(self, ends: Ends, log_starts: Mapping[TopicPartition, int]) -> tuple[Ends, int]:
        """Return the offsets that the batch can read for the consumer (first and next of each partition), and how many
        of those it should read, from the consumer's floors on, retention has removed. `ends`: the offsets that the batch
        reads for all. `log_starts`: the first offset that the log of each partition still has.
        """
        readable, lost = dict[TopicPartition, tuple[int, int]](), 0
        for source, (start, stop) in (self.reads or ends).items():
            first = min(max(start, log_starts.get(source, start)), stop)
            readable[source] = first, stop
            lost += max(0, first - max(start, self.floors.get(source, 0)))
        return readable, lost


@dataclass(frozen=True, slots=True)
class JobPosition:
    """Where a consumer of a job stands.

    `offsets`: by source partition, the next one to read. `sequence`: the last consumer sequence
    given out. `claim`: the mark under which the service's state names the job as its owner, empty if
    there was no such state. `snapshot`: the offset in each partition at which its last messages end
    (last_per_subject), empty once it is past them.
    """

    offsets: Mapping[TopicPartition, int]
    sequence: int
    claim: str = ""
    snapshot: Mapping[TopicPartition, int] = field(default_factory=dict)

    def begin_anew(self, topics: Collection[str]) -> JobPosition:
        """Return the position of a consumer that has read nothing yet of these topics, which were created again."""
        return replace(self, offsets=_reset(self.offsets, topics), snapshot=_leave_out(self.snapshot, topics))


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """A batch of a job. The driver writes it down before any of its deliveries is sent, and again
    when the batch has ended.

    `batch`: Spark's number. `now`: ms since 1970, the time that the batch has for filters. `name`: the stream's.
    `stream`: fingerprint of its config. `ends`: first and next offset of each source partition. `writers`: by output
    partition, the partition of the state topic. `is_complete`: whether all deliveries are committed. `left`: the
    consumers that have left the job. `log_ends`: where the log of each partition ended when the batch was begun, for
    what is ahead of the consumers. `owner`: the id of the Spark application whose driver wrote the plan. `ended`: ms
    since 1970 when the last batch that is complete ended, 0 if none has. `ids`: Kafka's id of each topic that the job
    has read, empty in a plan of an earlier version. `outputs`: the partitions that each output topic had when the batch was
    begun, by which its records are placed; empty in a plan of an earlier version. `is_merged`: whether its records are in the
    order of the ledger where the tasks find them in another one; false in a plan of an earlier version.
    """

    batch: int
    now: int
    name: str
    stream: str
    ends: Ends
    consumers: Mapping[str, ConsumerPlan]
    writers: Mapping[TopicPartition, int]
    is_complete: bool = False
    left: Mapping[str, JobPosition] = field(default_factory=dict)
    log_ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    owner: str = ""
    ended: int = 0
    ids: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, int] = field(default_factory=dict)
    is_merged: bool = False

    @property
    def fingerprint(self) -> str:
        """What has to be the same when the batch is written again: what it reads, for whom, and in which order.

        Not the sequences: a batch that finds fewer records than before, since the log was compacted,
        numbers them after those that it gave out before.
        """
        own = {
            name: [
                each.fingerprint,
                spell_spans(each.reads),
                *([spell_offsets(each.snapshot)] if each.snapshot else ()),
            ]
            for name, each in sorted(self.consumers.items())
        }
        order = ["merged"] if self.is_merged else []
        return json.dumps([self.batch, self.stream, spell_spans(self.ends), own, *order], sort_keys=True)

    def complete(self, now: int) -> BatchPlan:
        """Return a copy of this plan that is complete: all its deliveries are committed, and the batch has ended at `now`,
        ms since 1970. The copy has the consumers' rates by this batch."""
        span = now - max(self.ended, self.now - WINDOW_MS)
        consumers = {
            name: replace(each, rate=(each.last - each.before) * 1_000 / span if span > 0 else -1)
            for name, each in self.consumers.items()
        }
        return replace(self, is_complete=True, ended=now, consumers=consumers)

    def find_rate(self, consumer: str, now: int) -> float | None:
        """Return how many deliveries per second a consumer has by the last batch that has ended; 0 if that was more than
        IDLE_MS before `now` (ms since 1970) and no batch is under way, None if the rate is not known or the consumer is
        not in the plan.
        """
        if (known := self.consumers.get(consumer)) is None or known.rate < 0:
            return None
        return 0.0 if self.is_complete and now - self.ended > IDLE_MS else known.rate

    def count_behind(self) -> dict[str, int]:
        """Return, by name, how many offsets below the batch's end each consumer has still to read once the batch has
        ended, over all partitions. Consumers that reach the batch's end are left out."""
        counts = {name: self._count_left(each) for name, each in self.consumers.items()}
        return {name: count for name, count in counts.items() if count}

    def _count_left(self, consumer: ConsumerPlan) -> int:
        """Return how many offsets before the batch's end a consumer has still to read when the batch has ended."""
        reads = consumer.reads
        return sum(max(0, stop - reads.get(source, (0, stop))[1]) for source, (_, stop) in self.ends.items())

    def has_due(self, now: int) -> bool:
        """Return whether any consumer that does not reach the batch's end with this batch may get another one at `now`, ms
        since 1970, since it is neither paused nor has used up its rate."""
        return any(self._count_left(each) and each.pace.due <= now for each in self.consumers.values())

    def begin_anew(self, topics: Collection[str]) -> BatchPlan:
        """Return the plan as the next batch has to see it, if these topics were created again since: every consumer, also
        one that has left, has read nothing yet of them. Offsets of their former logs are left out.
        """
        if not topics:
            return self
        return replace(
            self,
            ends=_leave_out(self.ends, topics),
            log_ends=_leave_out(self.log_ends, topics),
            consumers={name: each.begin_anew(topics) for name, each in self.consumers.items()},
            left={name: each.begin_anew(topics) for name, each in self.left.items()},
        )

    def cut_off(
        self, ends: Mapping[TopicPartition, int], firsts: Mapping[str, int] = MappingProxyType({})
    ) -> BatchPlan:
        """Return the plan as the next batch has to see it, if these partitions have lost their last records, as by an unclean
        election: no consumer, also none that has left, is beyond the offsets `ends`, from which on they have other records.

        But a consumer still begins at its offset in `firsts` (by name, that of its start sequence), and one that has left and
        is not there still waits for an offset to which its log had not come.
        """
        if not ends:
            return self
        return replace(
            self,
            ends={
                s: (min(start, ends.get(s, start)), min(stop, ends.get(s, stop)))
                for s, (start, stop) in self.ends.items()
            },
            log_ends=lower(self.log_ends, ends),
            consumers={name: each.cut_off(ends, firsts.get(name, 0)) for name, each in self.consumers.items()},
            left={name: self._cut_left(each, ends, firsts.get(name)) for name, each in self.left.items()},
        )

    def _cut_left(self, left: JobPosition, ends: Mapping[TopicPartition, int], first: int | None) -> JobPosition:
        """Return the position of a consumer that has left, as `cut_off` says. `first`: its offset there, None if unknown."""
        if first is None:
            ends = {s: end for s, end in ends.items() if left.offsets.get(s, 0) <= self.log_ends.get(s, NO_LIMIT)}
        return replace(left, offsets=lower(left.offsets, ends, first or 0), snapshot=lower(left.snapshot, ends))

    def draft(
        self, batch: int, ends: Ends, consumers: Mapping[str, ConsumerPlan], limit: Limit
    ) -> dict[str, ConsumerPlan]:
        """Return, by name, the plans of `consumers` for the batch with number `batch`, which reads `ends`: this batch
        again if the number is the same, else the next one.

        A consumer that this plan has with the same claim (the mark of its takeover by the job) keeps its plan if the batch
        is this one, and else goes on where this batch ends for it. One that has left with the same claim goes on where it
        left. Others begin at the floors that `consumers` says. Both begin at the log's start in a partition that is not in
        their position, and count what retention has removed there as lost. All get the fingerprint in `consumers`. In a
        plan, `reads` is
        empty if the consumer reads `ends` with the others. A consumer that is below the start of `ends`, that has a rate or
        is paused by its pace in `limit`, or that is given its last messages has offsets of its own.
        """
        found = {}
        for name, new in consumers.items():
            known = self.consumers.get(name)
            if known is not None and known.claim == new.claim:
                if batch == self.batch:
                    found[name] = replace(known, fingerprint=new.fingerprint)
                    continue
                offsets = self._find_offsets(known, ends)
                next_plan = replace(known, fingerprint=new.fingerprint, before=known.last)
                found[name] = _plan_reads(next_plan, name, offsets, ends, limit)
            else:
                begun = self._go_back(name, new)
                # a partition that its position lacks was added since: it has been given nothing of it
                floors = {**dict.fromkeys(ends, 0), **begun.floors}
                begun = replace(begun, since=batch, floors=floors)
                found[name] = _plan_reads(begun, name, floors, ends, limit)
        return found

    def _go_back(self, name: str, new: ConsumerPlan) -> ConsumerPlan:
        """Return the plan of a consumer that begins with the next batch: `new`; if it has left the job with the same claim,
        with the position at which it left, since a topic may have been created again after `new` was made."""
        left = self.left.get(name)
        if left is None or left.claim != new.claim:
            return new
        return replace(new, floors=left.offsets, snapshot=left.snapshot)

    def _find_offsets(self, consumer: ConsumerPlan, ends: Ends) -> dict[TopicPartition, int]:
        """Return, by partition of `ends`, the offset at which a consumer of this batch goes on in the next one, which reads
        `ends`: where its own reads have ended if it has not reached this batch's end, else the start of `ends`; never below
        its floors."""
        reads = consumer.reads if self._count_left(consumer) else {}
        reached = {source: stop for source, (_, stop) in reads.items()}
        return {
            source: max(reached.get(source, at), consumer.floors.get(source, 0)) for source, (at, _) in ends.items()
        }

    def leave(self, staying: Collection[str]) -> dict[str, JobPosition]:
        """Return, by name, where the consumers stand that are not among `staying`: those that leave after this batch, and
        those that left before. Raises BatchUnfinished if one leaves and the batch has not ended.
        """
        names = {*self.consumers, *self.left} - set(staying)
        return {name: found for name in sorted(names) if (found := self.find_position(name)) is not None}

    def find_position(self, consumer: str) -> JobPosition | None:
        """Return where a consumer stands after the batch; for one that has left the job, where it left. None if the
        plan has neither.

        Raises BatchUnfinished if the consumer is in the batch and that has not ended.
        """
        if (known := self.consumers.get(consumer)) is None:
            return self.left.get(consumer)
        if not self.is_complete:
            raise BatchUnfinished(
                f"batch {self.batch} of the Spark job that delivers consumer {consumer!r} of stream {self.name!r} was begun"
                " and has not ended. Write `engine: spark` again, let the job end the batch (--once), and change it then"
            )
        return self._place(known, is_over=True)

    def find_delivered(self, consumer: str) -> JobPosition | None:
        """Return how far a consumer's deliveries are committed for sure: to the end of the batch if that has ended,
        else to its beginning; for one that has left the job, to where it left. None if the plan has neither.
        """
        if (known := self.consumers.get(consumer)) is None:
            return self.left.get(consumer)
        return self._place(known, is_over=self.is_complete)

    def _place(self, consumer: ConsumerPlan, *, is_over: bool) -> JobPosition:
        """Return where a consumer of the batch stands after it if `is_over`, else where it stood before it."""
        spans = consumer.reads or self.ends
        reached = {source: stop if is_over else start for source, (start, stop) in spans.items()}
        offsets = {source: max(at, consumer.floors.get(source, at)) for source, at in reached.items()}
        sequence = consumer.last if is_over else consumer.before
        at = {**consumer.floors, **offsets}
        return JobPosition(at, sequence, consumer.claim, find_snapshot(consumer.snapshot, at))


@dataclass(frozen=True, slots=True)
class WriterCommit:
    """What a writer commits together with its deliveries. `batch`: Spark's number. `plan`: the
    fingerprint of the batch's plan. `records`: how many deliveries and dead letters the writer has
    written in the batch.
    """

    batch: int
    plan: str
    records: int


def draft_first(
    batch: int, ends: Ends, consumers: Mapping[str, ConsumerPlan], limit: Limit, *, is_start_given: bool = False
) -> dict[str, ConsumerPlan]:
    """Return, by name, the plans of `consumers` for the first batch of a job, which reads `ends`: from the first offset that
    any consumer wanted when the job was started.

    Each begins at its floors. One that was added since then may begin below `ends`, and catches up. Offsets below `ends`
    that retention has removed count as lost. `is_start_given`: `ends` begin where the caller said, and no consumer begins
    below.
    """
    found = {}
    for name, new in consumers.items():
        offsets, lost = _skip_lost(new.floors, ends, limit)
        if is_start_given:
            offsets = {source: max(start, offsets[source]) for source, (start, _) in ends.items()}
        drafted = _plan_reads(replace(new, since=batch), name, offsets, ends, limit)
        found[name] = replace(drafted, lost=lost, skipped=lost)
    return found


def _plan_reads(
    consumer: ConsumerPlan, name: str, offsets: Mapping[TopicPartition, int], ends: Ends, limit: Limit
) -> ConsumerPlan:
    """Return the plan of a consumer, which is at these offsets, with what the batch reads for it: `reads` is empty if it
    reads `ends` with the others. `name`: the consumer's, for its pace in `limit`. Also sets what depends on that: `pace`,
    `snapshot`, `lost` and `skipped`."""
    pace = limit.paces.get(name, Pace())
    state = renew(pace, consumer.pace)
    most = limit.find_most(name)
    allowed = allow(pace, state, limit.now, most)
    offsets, lost = _skip_lost(offsets, ends, limit)
    snapshot = find_snapshot(consumer.snapshot, offsets)
    if snapshot:
        # of all these offsets only those of the last messages are fetched: the driver, which knows them, limits these
        ahead = cut_at(snapshot, offsets, ends)
        reads = read_span(offsets, ahead, NO_LIMIT) if allowed is None else read_part(offsets, ahead, allowed)
    else:
        reads = catch_up(offsets, ends, most) if allowed is None else read_part(offsets, ends, allowed)
    return replace(consumer, reads=reads, pace=state, lost=lost, snapshot=snapshot, skipped=lost)


def _skip_lost(
    offsets: Mapping[TopicPartition, int], ends: Ends, limit: Limit
) -> tuple[dict[TopicPartition, int], int]:
    """Return the next offset of a consumer in each partition of `ends`, moved past those below the batch's start that
    retention has removed, and how many these are in all partitions.

    What retention has removed of the batch's own offsets is counted when the batch is read
    (ConsumerPlan.find_readable).
    """
    skipped, lost = dict[TopicPartition, int](), 0
    for source, (start, _) in ends.items():
        at = offsets.get(source, start)
        skipped[source] = max(at, min(start, limit.log_starts.get(source, 0)))
        lost += skipped[source] - at
    return skipped, lost


def _reset(offsets: Mapping[TopicPartition, int], topics: Collection[str]) -> dict[TopicPartition, int]:
    """Return the offsets with 0 for the partitions of these topics."""
    return {source: 0 if source[0] in topics else at for source, at in offsets.items()}


def _leave_out(found: Mapping[TopicPartition, T], topics: Collection[str]) -> dict[TopicPartition, T]:
    """Return what is not of a partition of these topics."""
    return {source: each for source, each in found.items() if source[0] not in topics}
