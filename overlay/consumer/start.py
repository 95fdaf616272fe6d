"""The first stream sequence of a new consumer, by its deliver policy
(docs/jetstream.md#consumer-config).
"""

from __future__ import annotations

from dataclasses import dataclass

from overlay.config.consumer import ConsumerConfig, DeliverPolicy


@dataclass(frozen=True, slots=True)
class Ends:
    """What the caller has found in the stream, as stream sequences.

    `first` and `last`: of the stream; last = first - 1 if it is empty. `last_match`: the last
    message that the filters match, 0 for none. `at_time`: the first message at or after
    opt_start_time, None for none. `per_subject`: the lowest among the last messages of all matching
    subjects, None if there are none.
    """

    first: int
    last: int
    last_match: int = 0
    at_time: int | None = None
    per_subject: int | None = None


def find_start(config: ConsumerConfig, ends: Ends) -> int:
    """Return the first stream sequence that the consumer may deliver.

    If the message asked for does not exist, this is the next one after it. For last_per_subject the
    caller offers only the last message of each subject up to `ends.last`, and then everything
    after.
    """
    beyond = ends.last + 1
    match config.deliver_policy:
        case DeliverPolicy.ALL:
            return ends.first
        case DeliverPolicy.NEW:
            return beyond
        case DeliverPolicy.LAST:
            return ends.last_match or beyond
        case DeliverPolicy.BY_START_SEQUENCE:
            # a sequence beyond the end is allowed: the consumer waits for it
            return max(config.opt_start_seq, ends.first)
        case DeliverPolicy.BY_START_TIME:
            return beyond if ends.at_time is None else ends.at_time
        case DeliverPolicy.LAST_PER_SUBJECT:
            return beyond if ends.per_subject is None else ends.per_subject
