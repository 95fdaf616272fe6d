"""What is recorded when a consumer is created: where its stream's logs end at that moment, and whether
its output topic is there."""

from __future__ import annotations

from overlay.config import LogEnds, StreamConfig
from overlay.errors import OverlayError
from overlay.kafka.admin import Admin, OffsetSpec
from overlay.logs import get_logger

log = get_logger(__name__)


async def is_missing(admin: Admin, topic: str, *, counts_made: bool = False) -> bool:
    """Return whether a topic does not exist. False if Kafka does not tell: with a warning after an error, without one
    if the user may not describe the topic. `counts_made`: a topic that `admin` has created counts as missing: it may
    have done so for the consumer that is looked at.
    """
    try:
        denied: dict[str, str] = {}
        found = (await admin.find_topics([topic], with_config=False, denied=denied)).get(topic)
    except OverlayError as error:
        log.warning("a temporary topic will be left: whether it exists is not known", topic=topic, reason=str(error))
        return False
    if found is None:
        return not denied
    return counts_made and admin.made.get(topic) == found.identity


async def find_log_ends(admin: Admin, stream: StreamConfig) -> LogEnds | None:
    """Return the high watermarks of all partitions of those topics of a stream that exist, with the
    topics' ids. Records of open transactions are below them.

    Returns None, and logs a warning, if Kafka does not tell. Then a new consumer begins at the ends
    that the logs have when it is first served.
    """
    try:
        denied: dict[str, str] = {}
        found = await admin.find_topics(stream.topic_names, with_config=False, denied=denied)
        if denied:
            raise OverlayError("; ".join(denied.values()))
        sources = [(name, partition) for name, facts in found.items() for partition in range(facts.partitions)]
        ends = await admin.find_offsets(sources, OffsetSpec.latest(), committed=False)
    except OverlayError as error:
        event = "where a stream ends is not known: new consumers begin when they are served"
        log.warning(event, stream=stream.name, reason=str(error))
        return None
    return LogEnds(
        {name: (facts.identity, tuple(ends[name, p] for p in range(facts.partitions))) for name, facts in found.items()}
    )
