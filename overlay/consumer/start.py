"""Where a new consumer starts: deliver policies as stream sequences (facts/jetstream f)."""

from __future__ import annotations

from dataclasses import dataclass

from overlay.config.consumer import ConsumerConfig, DeliverPolicy


@dataclass(frozen=True, slots=True)
class Ends:
    """What the shell has found in the stream, all of it stream sequences.

    `first` and `last` of the stream (last = first - 1 when it is empty). `last_match`: the last message that the filters
    match, 0 for none. `at_time`: the first message at or after opt_start_time, None for none. `per_subject`: the first of the
    last messages of each matching subject, None without any.
    """

    first: int
    last: int
    last_match: int = 0
    at_time: int | None = None
    per_subject: int | None = None


def find_start(config: ConsumerConfig, ends: Ends) -> int:
    """The first stream sequence that the consumer may deliver; the closest one forward of what was asked for.

    For last_per_subject the shell offers only the last message of each subject up to `ends.last`, and everything after.
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
            # beyond the end it waits for just that sequence
            return max(config.opt_start_seq, ends.first)
        case DeliverPolicy.BY_START_TIME:
            return beyond if ends.at_time is None else ends.at_time
        case DeliverPolicy.LAST_PER_SUBJECT:
            return beyond if ends.per_subject is None else ends.per_subject
