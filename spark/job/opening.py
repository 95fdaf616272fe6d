"""What is looked at before a job's journal is opened: that creates a missing state topic, and fences a running driver."""

from __future__ import annotations

from collections.abc import Sequence

from overlay.kafka.admin import connect
from overlay.kafka.own_topics import job_topic
from overlay.kafka.properties import Properties
from overlay.state.handover import find_consumers_of
from overlay.state.job_log import read_last
from overlay.state.job_plan_codec import decode_plan
from overlay.state.shard_state import ConsumerId

from .checkpoint import ForeignCheckpoint, check_stream


async def check_state(kafka: Properties, prefix: str, job: str, stream: str, *, has_batches: bool) -> None:
    """Raise ForeignCheckpoint if the job's state is that of another stream, or if its state topic is missing although
    the job has delivered before. Writes nothing, and fences no driver.

    `has_batches`: whether a query has begun a batch by the checkpoint. Raises OverlayError if Kafka cannot be asked.
    """
    topic = job_topic(prefix, job)
    async with connect(kafka) as (admin, client):
        if topic in await admin.find_topics([topic], with_config=False):
            found = await read_last(client, admin, topic, 0)
            check_stream(job, topic, None if found is None else decode_plan(found), stream)
        else:
            check_missing(job, topic, await find_consumers_of(client, admin, prefix, job), has_batches=has_batches)


def check_missing(job: str, topic: str, owned: Sequence[ConsumerId], *, has_batches: bool) -> None:
    """Raise ForeignCheckpoint unless a job without a state topic is a new one.

    `owned`: the consumers that the service's state says this job delivers: a job has its state topic before it claims
    any. `has_batches`: a query begins its first batch when the topic is there.
    """
    if owned:
        names = ", ".join(f"{name!r} of stream {stream!r}" for stream, name in owned)
        raise ForeignCheckpoint(
            f"the service's state says that job {job!r} delivers {names}, and topic {topic}, which has their positions, is"
            " gone. Restore the topic; or take the files of these consumers out, drop their state with `overlay consumer"
            " rm`, and let them begin anew"
        )
    if has_batches:
        raise ForeignCheckpoint(
            f"the checkpoint has batches, and job {job!r} has no state topic {topic}, which says what of them is"
            " delivered: the topic is gone, or the checkpoint is another job's. Restore the topic, use the job's own"
            " checkpoint, or begin a job of another name with a new checkpoint"
        )
