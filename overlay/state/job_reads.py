"""What a batch of a Spark job reads for one consumer: with the others, or offsets of its own. Pure arithmetic on offsets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from overlay.kafka.log_position import TopicPartition

NO_LIMIT = 1 << 62
"""As a number of offsets: all."""
Ends = dict[TopicPartition, tuple[int, int]]
"""First and next offset of each partition."""


def catch_up(offsets: Mapping[TopicPartition, int], ends: Ends, limit: int) -> Ends:
    """Return what a batch that reads `ends` for all reads for a consumer that is at these offsets: empty, for it reads
    with the others, if it is below the batch's start in no partition.

    `limit`: how many offsets below the batch's start, of all partitions together, but at least one of each in which it is
    below. They are divided evenly; what one partition does not need goes to the others. Where the consumer comes to the
    start, it reads the batch's own offsets as well, so it falls behind in no further partition.
    """
    behind = {source: start - at for source, (start, _) in ends.items() if (at := offsets.get(source, start)) < start}
    if not behind:
        return {}
    share = max(1, _find_share(list(behind.values()), limit))
    reads = {}
    for source, (start, stop) in ends.items():
        at = min(offsets.get(source, start), stop)
        reads[source] = (at, stop if at + share >= start else at + share)
    return reads


def _find_share(lefts: Sequence[int], limit: int) -> int:
    """Return the largest share with which the sum of min(left, share) over all `lefts` is `limit` at most."""
    share = 0
    for done, left in enumerate(sorted(lefts)):
        if left * (len(lefts) - done) > limit:
            return limit // (len(lefts) - done)
        share, limit = left, limit - left
    return share


def read_part(offsets: Mapping[TopicPartition, int], ends: Ends, limit: int) -> Ends:
    """Return what a batch that reads `ends` for all reads for a consumer that is at these offsets and has a limit: a span of
    each partition of `ends`, which may have no offsets.

    `limit`: how many offsets of all partitions together, divided evenly among those in which any are left and rounded up;
    0 for none.
    """
    waiting = sum(offsets.get(source, start) < stop for source, (start, stop) in ends.items())
    return read_span(offsets, ends, -(-limit // max(1, waiting)))


def read_span(offsets: Mapping[TopicPartition, int], ends: Ends, share: int) -> Ends:
    """Return the next offsets of a consumer in each partition of `ends`, at most `share` of each, up to the batch's end.
    `offsets`: where it is; in a partition that is missing there, at the start of the batch."""
    reads = {}
    for source, (start, stop) in ends.items():
        at = min(offsets.get(source, start), stop)
        reads[source] = (at, min(stop, at + share))
    return reads


def find_snapshot(
    snapshot: Mapping[TopicPartition, int], offsets: Mapping[TopicPartition, int]
) -> Mapping[TopicPartition, int]:
    """Return what is left of the `snapshot` of a consumer that is at these offsets: all of it, or an empty mapping once the
    consumer has come to the snapshot's end in every partition. A partition that is not in `offsets` counts as read."""
    return snapshot if any(offsets.get(source, end) < end for source, end in snapshot.items()) else {}


def cut_at(snapshot: Mapping[TopicPartition, int], offsets: Mapping[TopicPartition, int], ends: Ends) -> Ends:
    """Return `ends` with each stop lowered to the end of a consumer's snapshot. In a partition in which `offsets`, where
    the consumer is, have come to that end, the stop is the consumer's offset: nothing is left to read."""
    cut = {}
    for source, (start, stop) in ends.items():
        cut[source] = start, min(stop, max(snapshot.get(source, 0), offsets.get(source, start)))
    return cut


def lower(
    offsets: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], least: int = 0
) -> dict[TopicPartition, int]:
    """Return the offsets, none beyond that of its partition in `ends`, if it is there; but none is lowered to less than
    `least`."""
    return {source: max(min(at, ends.get(source, at)), min(at, least)) for source, at in offsets.items()}
