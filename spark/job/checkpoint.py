"""Whether Spark's checkpoint and the state of a job belong together."""

from __future__ import annotations

from collections.abc import Mapping

from overlay.errors import OverlayError
from overlay.state.job_plan import BatchPlan
from overlay.state.job_reads import Ends
from overlay.state.partitions import find_anew


class ForeignCheckpoint(OverlayError):
    """The checkpoint and the job's state topic do not belong together, the state topic is that of a job on another stream
    or is gone, or a batch that has not ended cannot be run again, since a config has changed. The operator chooses the
    right ones.
    """


def check_stream(job: str, topic: str, last: BatchPlan | None, stream: str) -> None:
    """Raise ForeignCheckpoint if the last plan of a job is of another stream than `stream`. `topic`: the job's state
    topic. `last`: None for a new job.
    """
    if last is not None and last.name != stream:
        raise ForeignCheckpoint(
            f"topic {topic} has the state of a job {job!r} on stream {last.name!r}, and this job is on stream {stream!r}."
            " Give it a name of its own (--job) and a checkpoint of its own"
        )


def check_batch(
    job: str,
    topic: str,
    last: BatchPlan | None,
    batch: int,
    ends: Ends,
    ids: Mapping[str, str],
    *,
    may_jump: bool,
) -> None:
    """Raise ForeignCheckpoint unless a batch of the checkpoint is the last one of a job, with the same offsets, or a
    later one that begins where the last one ended, in each partition that both have; in both cases of the same topics.
    The first batch of a new job has to be batch 0.

    The last one may begin at a higher offset than before: a partition that came with it has no first offset in the
    checkpoint, but begins where its log begins now, and retention may have passed the offset of then. What the batch
    reads is said by the job's plan.

    `topic`: the job's state topic. `last`: the job's last plan, None for a new job. `batch`, `ends`, `ids`: the
    checkpoint's batch, its offsets, and Kafka's ids of its topics, as far as it has them. `may_jump`: a later batch may
    begin anywhere, and in a topic that was created again (failOnDataLoss is off).
    """
    if last is None:
        if batch > 0:
            raise ForeignCheckpoint(
                f"the checkpoint begins batch {batch}, and job {job!r} has no plan of an earlier one: its state topic"
                f" {topic} is gone or has lost its records, or the checkpoint is another job's. Restore the topic, use the"
                " job's own checkpoint, or begin a job of another name with a new checkpoint"
            )
        return
    if last.batch > batch:
        raise ForeignCheckpoint(
            f"the checkpoint begins batch {batch}, and job {job!r} has come to batch {last.batch} (topic {topic})."
            " It is the checkpoint of another job, or an old one. Use the job's own, or begin a job of another name"
        )
    if last.batch == batch and not _is_same(last.ends, ends):
        raise ForeignCheckpoint(
            f"batch {batch} of the checkpoint has other offsets than batch {batch} of job {job!r} (topic {topic}):"
            " it is the checkpoint of another job. Use the job's own, or begin a job of another name"
        )
    anew = ", ".join(sorted(find_anew(last.ids, ids)))
    if last.batch == batch and anew:
        raise ForeignCheckpoint(
            f"batch {batch} of the checkpoint is one of topics that were created again ({anew}) since batch {batch} of job"
            f" {job!r} (topic {topic}): it is a new checkpoint, or that of another job. Use the job's own, or begin a job of"
            " another name"
        )
    if last.batch < batch and anew and not may_jump:
        raise ForeignCheckpoint(
            f"batch {batch} of the checkpoint reads topics that were created again ({anew}) since batch {last.batch} of job"
            f" {job!r} (topic {topic}). --option failOnDataLoss=false goes on with them from their start; or use the job's own"
            " checkpoint, or begin a job of another name with a new one"
        )
    if last.batch < batch and not may_jump:
        _check_begin(job, topic, last, batch, ends)


def _is_same(before: Ends, ends: Ends) -> bool:
    """Return whether a batch ends at the same offsets as before, and begins at none that is lower than before."""
    if before.keys() != ends.keys():
        return False
    return all(stop == before[source][1] and start >= before[source][0] for source, (start, stop) in ends.items())


def _check_begin(job: str, topic: str, last: BatchPlan, batch: int, ends: Ends) -> None:
    """Raise ForeignCheckpoint unless a batch begins where the last one ended, in each partition that both have."""
    for source, (start, _) in sorted(ends.items()):
        _, reached = last.ends.get(source, (start, start))
        if start != reached:
            raise ForeignCheckpoint(
                f"batch {batch} of the checkpoint begins at offset {start} of {source[0]}-{source[1]}, and job {job!r} has"
                f" come to offset {reached} there (batch {last.batch}, topic {topic}): it is the checkpoint of another job,"
                f" or {topic} has lost its last records. Use the job's own checkpoint, or begin a job of another name with a"
                " new one. If it is the source that has lost records, --option failOnDataLoss=false continues"
            )
