"""What is known of a consumer besides the cursors that it is on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from overlay.kafka.log_position import LogPosition, TopicPartition


@dataclass(slots=True)
class Standing:
    """What a session knows of one consumer besides the cursors that it is on."""

    sequence: int = 0
    """The last consumer sequence given out."""
    snapshot: Mapping[TopicPartition, int] = field(default_factory=dict)
    """For last_per_subject, the offsets below which only the last message of each subject is
    delivered."""
    floor: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The offsets below which nothing is delivered."""
    heard: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Positions in ack topics, where they differ from the stream's."""
    replay_until: int | None = None
    """For replay original, the sequence up to which the consumer replays the stream; None if
    unknown or not needed."""
    policy: str = ""
    """The ack policy with which it is delivered, empty if unknown."""
    is_careful: bool = False
    """Whether it must not be told of sequences that are not committed yet."""
    holds: Mapping[TopicPartition, int] = field(default_factory=dict)
    """For a consumer with a machine, the first undelivered offset of each partition. What was read
    from there on is offered to the machine, but not delivered."""
    left: Mapping[TopicPartition, LogPosition] = field(default_factory=dict)
    """Positions in partitions that its stream does not have now. The stream may get them back."""
    parked: Mapping[TopicPartition, LogPosition] | None = None
    """Positions at which it has left its cursors because it could not keep up; None while it is on
    cursors."""
