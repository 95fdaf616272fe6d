"""What holds back deliveries: of push consumers rate_limit_bps and flow control, of all consumers replay original.

Each part says from when on a message may go, or that it must wait for an answer. Times are ns, sizes bytes.
"""

from __future__ import annotations

from overlay.config.consumer import ConsumerConfig, DeliverPolicy, ReplayPolicy

from .deadlines import NEVER
from .flow import Flow

SECOND = 1_000_000_000
SMALL_GAP = 1_000_000
BURST = 1 << 20
REPLAYED = (DeliverPolicy.ALL, DeliverPolicy.BY_START_SEQUENCE, DeliverPolicy.BY_START_TIME)
"""Those that begin elsewhere than at the end of the stream: replay original applies to them alone."""


def is_replayed(config: ConsumerConfig) -> bool:
    """Return whether a consumer gets what was there when it was created with the gaps that it had."""
    return config.replay_policy is ReplayPolicy.ORIGINAL and config.deliver_policy in REPLAYED


class Rate:
    """A token bucket of `burst` bytes that `rate_limit_bps` fills; a message goes once its bytes are in it."""

    def __init__(self, bits_per_second: int, burst: int) -> None:
        self._bits, self._burst = bits_per_second, burst
        self._filled_at = -NEVER  # when the bucket would have been empty; what it holds is the time since then

    def ready_at(self, now: int, size: int) -> int:
        # one message larger than the bucket takes a full one
        return max(self._filled_at, now - self._time(self._burst)) + self._time(min(size, self._burst))

    def spend(self, now: int, size: int) -> None:
        self._filled_at = max(self._filled_at, now - self._time(self._burst)) + self._time(size)

    def _time(self, size: int) -> int:
        return size * 8 * SECOND // self._bits


class Replay:
    """The gaps between the store times of delivered messages, up to the last message there was when the consumer was made."""

    def __init__(self, last_sequence: int) -> None:
        self.last_sequence = last_sequence
        self._sent_at = self._stored_at = 0

    def ready_at(self, time: int) -> int:
        gap = time - self._stored_at if self._stored_at else 0
        return self._sent_at + gap if gap > SMALL_GAP else 0

    def spend(self, now: int, time: int) -> None:
        self._sent_at, self._stored_at = now, time

    def is_over(self, delivered: int) -> bool:
        return delivered >= self.last_sequence


class Pace:
    """All three. `replay_until`: the stream's last sequence when the consumer was made. `burst`: of the rate limit.
    `incarnation`: that flow control requests name; `asked`: how many there were before."""

    def __init__(
        self, config: ConsumerConfig, replay_until: int = 0, burst: int = BURST, incarnation: str = "", asked: int = 0
    ) -> None:
        self._rate = Rate(config.rate_limit_bps, burst) if config.rate_limit_bps else None
        self._replay = Replay(replay_until) if replay_until and is_replayed(config) else None
        self.flow = Flow(config, incarnation, asked) if config.flow_control else None
        self._asked = asked

    @property
    def asked(self) -> int:
        """How many flow control requests this machine has sent."""
        return self.flow.asked if self.flow else self._asked

    @property
    def replay(self) -> Replay | None:
        """None for a consumer that has caught up, or that replays nothing."""
        return self._replay

    @property
    def is_even(self) -> bool:
        """Whether nothing is held back, so that messages may go in runs."""
        return self._rate is None and self._replay is None and self.flow is None

    @property
    def is_stalled(self) -> bool:
        return self.flow is not None and self.flow.is_stalled

    def change(self, config: ConsumerConfig, burst: int, incarnation: str) -> Pace:
        """Return the pace of a consumer that goes on with another config. A replay goes on where it is."""
        changed = Pace(config, 0, burst, incarnation, self.asked)
        changed._replay = self._replay
        return changed

    def ready_at(self, now: int, time: int | None, size: int) -> int:
        """When a message may go: `now` or before for at once. `time`: when it was stored, None for a redelivery."""
        rate = self._rate.ready_at(now, size) if self._rate else 0
        return max(rate, self._replay.ready_at(time) if self._replay and time is not None else 0)

    def spend(self, now: int, time: int | None, size: int, delivered: int) -> str:
        """Account for a delivery; returns the subject of a flow control request that is due."""
        if self._rate:
            self._rate.spend(now, size)
        if self._replay and time is not None:
            self._replay.spend(now, time)
            if self._replay.is_over(delivered):
                self._replay = None
        return self.flow.spend(size) if self.flow else ""
