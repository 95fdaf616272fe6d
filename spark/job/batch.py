"""A batch of a job while its driver delivers it: what Spark says of it, and the plan that it follows."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from overlay.kafka.log_position import TopicPartition
from overlay.state.job_plan import BatchPlan, ConsumerPlan
from overlay.state.job_reads import Ends
from overlay.state.partitions import find_anew

from .runs import Merge

BEYOND = 1 << 62
"""More than any offset."""


@dataclass(frozen=True, slots=True)
class JobBatch:
    """A batch that is delivered now.

    `number`: Spark's. `now`: ms since 1970, the time of the batch. `ends`: first and next offset of each partition, by
    the checkpoint; `ids`: Kafka's ids of the topics when the batch was begun, empty by a checkpoint of an earlier
    version. `bounds`: of each partition's log. `gone`: the topics that were created again since the batch was begun: it
    reads nothing of them. `last`: the plan before, as `find_last` returns it.
    """

    number: int
    now: int
    ends: Ends
    ids: Mapping[str, str]
    bounds: Ends
    gone: Collection[str]
    last: BatchPlan | None

    @property
    def is_again(self) -> bool:
        """Whether the batch has a plan already, and is run again."""
        return self.last is not None and self.last.batch == self.number

    def is_merged(self, merges: Mapping[tuple[int, int], Merge]) -> bool:
        """Return whether the batch's records are put into the order of the ledger by these `merges` (`find_merges`). A batch
        that is run again keeps the order that it had: a part of it may be committed. It had another one if there was no ledger
        then, or by an earlier version.
        """
        return self.last.is_merged if self.last is not None and self.is_again else bool(merges)

    @property
    def known_ids(self) -> dict[str, str]:
        """Kafka's id of each topic that the job has read, with this batch."""
        return {**(self.last.ids if self.last is not None else {}), **self.ids}

    @property
    def readable(self) -> Ends:
        """The offsets of the batch, (0, 0) for those of a topic that is gone."""
        return pass_over(self.ends, self.gone)

    def leave_out_gone(self, plans: Mapping[str, ConsumerPlan]) -> dict[str, ConsumerPlan]:
        """Return the plans of the batch's consumers without what they would read of a topic that is gone."""
        return {
            name: replace(
                each,
                reads=pass_over(each.reads, self.gone),
                snapshot={source: end for source, end in each.snapshot.items() if source[0] not in self.gone},
            )
            for name, each in plans.items()
        }

    def find_log_starts(self) -> dict[TopicPartition, int]:
        """Return the first offset that the log of each partition still has; of a topic that is gone, the offset behind all
        that any batch could read of it."""
        starts = {source: first for source, (first, _) in self.bounds.items()}
        return starts | {source: BEYOND for source in self.ends if source[0] in self.gone}


def pass_over(ends: Mapping[TopicPartition, tuple[int, int]], topics: Collection[str]) -> Ends:
    """Return first and next offset of each partition, (0, 0) for those of these topics."""
    return {source: (0, 0) if source[0] in topics else span for source, span in ends.items()}


def find_last(
    last: BatchPlan | None,
    batch: int,
    ids: Mapping[str, str],
    ends: Ends,
    firsts: Mapping[str, int] = MappingProxyType({}),
) -> BatchPlan | None:
    """Return the plan that a batch follows: the last one of the journal, with what it says of topics that were created again
    since taken out, and of offsets that the log has lost at its end, unless the batch is run again. None for a new job.
    `ids`: Kafka's ids of the topics, by the batch; `ends`: its offsets. `firsts`: as in BatchPlan.cut_off.
    """
    if last is None or last.batch == batch:
        return last
    last = last.begin_anew(find_anew(last.ids, ids))
    # a batch begins before the end of the last one only if the log has ended before that
    cuts = {s: start for s, (start, _) in ends.items() if s in last.ends and start < last.ends[s][1]}
    return last.cut_off(cuts, firsts)
