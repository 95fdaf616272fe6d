"""What holds back a push consumer's deliveries: rate_limit_bps, replay original, flow control (facts/jetstream f).

Each part says from when on a message may go, or that it must wait for an answer. Times are ns, sizes bytes.
"""

from __future__ import annotations

from overlay.config.consumer import ConsumerConfig, ReplayPolicy

from .deadlines import NEVER

SECOND = 1_000_000_000
SMALL_GAP = 1_000_000
FIRST_WINDOW, LARGEST_WINDOW = 2 << 20, 32 << 20
BURST = 1 << 20
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


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
    """The gaps between the store times of delivered messages, up to the last message there was at the start."""

    def __init__(self, last_sequence: int) -> None:
        self._last_sequence = last_sequence
        self._sent_at = self._stored_at = 0

    def ready_at(self, time: int) -> int:
        gap = time - self._stored_at if self._stored_at else 0
        return self._sent_at + gap if gap > SMALL_GAP else 0

    def spend(self, now: int, time: int) -> None:
        self._sent_at, self._stored_at = now, time

    def is_over(self, delivered: int) -> bool:
        return delivered >= self._last_sequence


class Flow:
    """The flow control window. `subject`: of the request that waits for its answer, empty for none."""

    def __init__(self, stream: str, consumer: str) -> None:
        self._head = f"$JS.FC.{stream}.{consumer}."
        self._asked, self._counted = 0, 0
        self.subject = ""
        self.outstanding, self.limit = 0, FIRST_WINDOW

    @property
    def is_stalled(self) -> bool:
        return self.outstanding > self.limit

    def spend(self, size: int) -> str:
        """Count a delivery; returns the subject of a request that is to be sent now, empty for none."""
        self.outstanding += size
        return self.ask() if self.outstanding > self.limit // 2 else ""

    def ask(self) -> str:
        """The subject of a request that is to be sent now; empty while another one waits for its answer."""
        if self.subject:
            return ""
        self.subject = self._head + _write_number(self._asked)
        self._asked += 1
        self._counted = self.outstanding
        return self.subject

    def answer(self, subject: str) -> bool:
        """Take in an answer; False for a stale one."""
        if not self.subject or subject != self.subject:
            return False
        self.limit = min(2 * self.limit, LARGEST_WINDOW)
        self.outstanding = max(self.outstanding - self._counted, 0)
        self.subject = ""
        return True


class Pace:
    """All three. `replay_until`: the stream's last sequence when the consumer was made. `burst`: of the rate limit."""

    def __init__(self, config: ConsumerConfig, replay_until: int = 0, burst: int = BURST) -> None:
        self._rate = Rate(config.rate_limit_bps, burst) if config.rate_limit_bps else None
        self._replay = Replay(replay_until) if config.replay_policy is ReplayPolicy.ORIGINAL else None
        self.flow = Flow(*config.id) if config.flow_control else None

    @property
    def is_even(self) -> bool:
        """Whether nothing is held back, so that messages may go in runs."""
        return self._rate is None and self._replay is None and self.flow is None

    @property
    def is_stalled(self) -> bool:
        return self.flow is not None and self.flow.is_stalled

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


def _write_number(number: int) -> str:
    """Four characters, as servers have them."""
    text = ""
    for _ in range(4):
        number, digit = divmod(number, 36)
        text = _DIGITS[digit] + text
    return text
