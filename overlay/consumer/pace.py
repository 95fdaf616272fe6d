"""What holds back deliveries: rate_limit_bps and flow control for push consumers, replay original
for all consumers.

Each part says from what time on a message may go out, or that it has to wait for an answer. Times
are ns since 1970, sizes are bytes.
"""

from __future__ import annotations

from overlay.config.consumer import ConsumerConfig, DeliverPolicy, ReplayPolicy

from .deadlines import NEVER
from .flow import Flow

SECOND = 1_000_000_000
SMALL_GAP = 1_000_000
BURST = 1 << 20
REPLAYED = (DeliverPolicy.ALL, DeliverPolicy.BY_START_SEQUENCE, DeliverPolicy.BY_START_TIME)
"""The policies that begin elsewhere than at the end of the stream; replay original applies to these
alone.
"""


def is_replayed(config: ConsumerConfig) -> bool:
    """Return whether a consumer gets the messages that were stored before its creation with their
    original gaps in time.
    """
    return config.replay_policy is ReplayPolicy.ORIGINAL and config.deliver_policy in REPLAYED


class Rate:
    """A limit for bytes over time: a token bucket of `burst` bytes, filled at `bits_per_second`.

    A message may go out once its bytes are in the bucket, one larger than the bucket once that is
    full. The bucket is full at first.
    """

    def __init__(self, bits_per_second: int, burst: int) -> None:
        self._bits, self._burst = bits_per_second, burst
        self._filled_at = -NEVER  # when the bucket would have been empty; its content is the time since then

    def ready_at(self, now: int, size: int) -> int:
        """Return the time (ns since 1970) from which on a message of `size` bytes may go out; `now`
        or earlier means at once. Nothing is taken out of the bucket.
        """
        # a message larger than the bucket needs a full one
        return max(self._filled_at, now - self._time(self._burst)) + self._time(min(size, self._burst))

    def spend(self, now: int, size: int) -> None:
        """Take a message of `size` bytes, delivered at `now` (ns since 1970), out of the bucket."""
        self._filled_at = max(self._filled_at, now - self._time(self._burst)) + self._time(size)

    def _time(self, size: int) -> int:
        return size * 8 * SECOND // self._bits


class Replay:
    """When messages may go out if they keep the gaps in time with which they were stored.

    `last_sequence`: the stream's last message when the consumer was created. The gaps apply up to
    it: once `is_over` is true, the caller has to drop the object.
    """

    def __init__(self, last_sequence: int) -> None:
        self.last_sequence = last_sequence
        self._sent_at = self._stored_at = 0

    def ready_at(self, time: int) -> int:
        """Return the time (ns since 1970) from which on a message stored at `time` (ns since 1970)
        may go out: as long after the last delivery as it was stored after that message. The result
        may be in the past. 0, for at once, if nothing was delivered yet or the gap is 1 ms or less.
        """
        gap = time - self._stored_at if self._stored_at else 0
        return self._sent_at + gap if gap > SMALL_GAP else 0

    def spend(self, now: int, time: int) -> None:
        """Record the last delivered message: when it went out (`now`), and when it was stored
        (`time`), both in ns since 1970.
        """
        self._sent_at, self._stored_at = now, time

    def is_over(self, delivered: int) -> bool:
        """Return whether `delivered`, the highest stream sequence delivered so far, has reached
        `last_sequence`.
        """
        return delivered >= self.last_sequence


class Pace:
    """What slows down a consumer's deliveries: rate limit, replay and flow control, those of them
    that its config has.

    `replay_until`: the stream's last sequence when the consumer was created, 0 for no replay.
    `burst`: bytes of the rate limit's bucket. `incarnation`: the one in the subjects of flow
    control requests. `asked`: number of flow control requests that the machine has sent before.
    """

    def __init__(
        self, config: ConsumerConfig, replay_until: int = 0, burst: int = BURST, incarnation: str = "", asked: int = 0
    ) -> None:
        self._rate = Rate(config.rate_limit_bps, burst) if config.rate_limit_bps else None
        self._replay = Replay(replay_until) if replay_until and is_replayed(config) else None
        self.flow = Flow(config, incarnation, asked) if config.flow_control else None
        self._burst, self._incarnation, self._asked = burst, incarnation, asked

    @property
    def asked(self) -> int:
        """Number of flow control requests that this machine has sent."""
        return self.flow.asked if self.flow else self._asked

    @property
    def is_even(self) -> bool:
        """Whether neither rate limit nor replay nor flow control applies, so that many messages may
        go out at once.
        """
        return self._rate is None and self._replay is None and self.flow is None

    @property
    def is_stalled(self) -> bool:
        """Whether deliveries have to stop until a flow control request is answered."""
        return self.flow is not None and self.flow.is_stalled

    def change(self, config: ConsumerConfig) -> Pace:
        """Return the pace for another config of the same consumer. A replay under way continues;
        rate limit and flow control begin anew.
        """
        changed = Pace(config, 0, self._burst, self._incarnation, self.asked)
        changed._replay = self._replay
        return changed

    def ready_at(self, now: int, time: int | None, size: int) -> int:
        """Return the time (ns since 1970) from which on a message may go out, by rate limit and
        replay; `now` or earlier means at once. Flow control is not asked (`is_stalled`).

        `time`: ns since 1970 when it was stored, None for a redelivery. `size`: its bytes.
        """
        rate = self._rate.ready_at(now, size) if self._rate else 0
        return max(rate, self._replay.ready_at(time) if self._replay and time is not None else 0)

    def spend(self, now: int, time: int | None, size: int, delivered: int) -> str:
        """Count a message delivered at `now` in rate limit, replay and flow control.

        Return the subject of the flow control request to send now, "" if none is due.

        `time`: ns since 1970 when the message was stored, None for a redelivery. `size`: its bytes.
        `delivered`: the highest stream sequence delivered so far, including this delivery.
        """
        if self._rate:
            self._rate.spend(now, size)
        if self._replay and time is not None:
            self._replay.spend(now, time)
            if self._replay.is_over(delivered):
                self._replay = None
        return self.flow.spend(size) if self.flow else ""
