"""Pull requests that wait: who is served next, and what ends a request (facts/jetstream e).

One message a turn: a request that was served and has some of its batch left goes to the tail. With `prioritized` the
requests stand in order of priority; with `overflow` a request may have to wait for a backlog; with `pinned_client` one
client is served until it is silent for priority_timeout.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from overlay.config.consumer import ConsumerConfig, PriorityPolicy

from .deadlines import NEVER
from .events import Reply
from .pulls import MAX_WAITING, NO_MESSAGES, REQUESTS_PENDING, WRONG_PIN, PullRequest, StatusText, left

SWEEP_EVERY = 1_000_000_000


@dataclass(slots=True, eq=False)
class Waiter:
    """A request and what is left of it. Times are ns; `beat_at`: when its next heartbeat is due."""

    request: PullRequest
    reply: Reply
    batch: int
    size: int
    expires_at: int
    beat_at: int
    pin: str = ""
    served: int = 0

    @property
    def is_one_shot(self) -> bool:
        """Whether the end of the stream ends it: it takes what there is, and no_wait alone takes nothing for an answer."""
        return self.request.no_wait and (self.served > 0 or self.expires_at == NEVER)

    def left(self, code: int, description: str) -> StatusText:
        return left(code, description, self.batch, self.size)


def wait_for(request: PullRequest, reply: Reply, pin: str, now: int) -> Waiter:
    """A request from `now` on. `pin`: a fresh id for it."""
    expires_at = now + request.expires if request.expires > 0 else NEVER
    beat_at = now + request.idle_heartbeat if request.idle_heartbeat > 0 else NEVER
    return Waiter(request, reply, request.batch, max(request.max_bytes, 0), expires_at, beat_at, pin)


Say = Callable[[Waiter, StatusText], None]


@dataclass(slots=True)
class Pin:
    """Who is pinned, and when the pin lapses."""

    id: str = ""
    until: int = 0


@dataclass(slots=True)
class Waiting:
    """The queue. Statuses that end a request go through `say`."""

    config: ConsumerConfig
    say: Say
    pin: Pin = field(default_factory=Pin)
    held: tuple[str, ...] = ()
    """What the reply addresses begin with that are given nothing for now: much is on its way there already."""
    _waiters: list[Waiter] = field(default_factory=list)
    _swept_at: int = -NEVER

    def __len__(self) -> int:
        return len(self._waiters)

    @property
    def claimed(self) -> int:
        """Messages that all requests together still wait for."""
        return sum(max(waiter.batch, 0) for waiter in self._waiters)

    @property
    def next_at(self) -> int:
        """When a request expires or its heartbeat is due."""
        return min((min(waiter.expires_at, waiter.beat_at) for waiter in self._waiters), default=NEVER)

    def is_full(self, now: int) -> bool:
        """Whether max_waiting is reached; expired requests are swept for it, at most once a second."""
        if len(self) >= self.config.max_waiting > 0 and now - self._swept_at >= SWEEP_EVERY:
            self._swept_at = now
            self.expire(now)
        return len(self) >= self.config.max_waiting > 0

    def admit(self, request: PullRequest, reply: Reply, pin: str, available: int, now: int) -> StatusText | None:
        """Let a sound request wait, or say why not. `available`: messages that could be delivered. `pin`: a fresh id."""
        if (wrong_pin := self._refresh_pin(request, now)) is not None:
            return wrong_pin
        if self.is_full(now):
            # nothing is said to a client that listens for heartbeats: it will miss them
            return MAX_WAITING if request.idle_heartbeat <= 0 else None
        if request.no_wait:
            if not available and request.expires <= 0:
                return NO_MESSAGES
            self.expire(now)
            if 0 < available < self.claimed:
                return REQUESTS_PENDING
        self.add(wait_for(request, reply, pin, now))
        return None

    def add(self, waiter: Waiter) -> None:
        at = len(self._waiters)
        if self.config.priority_policy is PriorityPolicy.PRIORITIZED:
            later = (i for i, other in enumerate(self._waiters) if other.request.priority > waiter.request.priority)
            at = next(later, at)
        self._waiters.insert(at, waiter)

    def expire(self, now: int) -> bool:
        """End what has expired; whether anything has."""
        expired = [waiter for waiter in self._waiters if waiter.expires_at <= now]
        for waiter in expired:
            self._end(waiter, waiter.left(408, "Request Timeout"))
        return bool(expired)

    def run_out(self, now: int) -> None:
        """Time has passed: end what has expired. On that occasion servers end as well, even if max_ack_pending holds messages
        back, the other requests that got some and do not wait for more (seen with nats-server 2.15.1)."""
        if self.expire(now):
            for waiter in [waiter for waiter in self._waiters if waiter.request.no_wait and waiter.served > 0]:
                self._end(waiter, NO_MESSAGES)

    def end_one_shots(self) -> None:
        """The stream has no more: requests that do not wait for it end."""
        for waiter in [waiter for waiter in self._waiters if waiter.is_one_shot]:
            self._end(waiter, NO_MESSAGES)

    def drop(self, heads: Collection[str], addresses: Collection[str]) -> None:
        """Forget without a word the requests whose reply address is among `addresses` or begins with one of `heads`."""
        begins = tuple(heads)
        self._waiters = [
            waiter for waiter in self._waiters if waiter.reply not in addresses and not waiter.reply.startswith(begins)
        ]

    def hold(self, heads: Collection[str]) -> bool:
        """Give nothing to the reply addresses that begin with one of `heads`, until the next call. Returns whether a request
        may be given something that could not be before."""
        before = [waiter for waiter in self._waiters if self._is_held(waiter)]
        self.held = tuple(heads)
        return not all(map(self._is_held, before))

    def _is_held(self, waiter: Waiter) -> bool:
        return bool(self.held) and waiter.reply.startswith(self.held)

    def end_all(self, text: StatusText) -> None:
        for waiter in list(self._waiters):
            self._end(waiter, text)

    def beat(self, now: int, text: StatusText) -> None:
        """Send the heartbeats that are due."""
        for waiter in self._waiters:
            if waiter.beat_at <= now:
                self.say(waiter, text)
                waiter.beat_at = now + waiter.request.idle_heartbeat

    def has_taker(self, num_pending: int, num_ack_pending: int, now: int) -> bool:
        return any(self._may_take(waiter, num_pending, num_ack_pending, now) for waiter in self._waiters)

    def choose(self, size: int, num_pending: int, num_ack_pending: int, now: int) -> Waiter | None:
        """Who gets the next message, which has `size` bytes. Requests that it is too large for end."""
        for waiter in list(self._waiters):
            if not self._may_take(waiter, num_pending, num_ack_pending, now):
                continue
            if waiter.request.max_bytes > 0 and size > waiter.size:
                self._end(waiter, waiter.left(409, "Message Size Exceeds MaxBytes"))
                continue
            return waiter
        return None

    def run_length(self, waiter: Waiter) -> int:
        """Messages that a request may take in one turn: more than one only where nobody else waits and sizes do not count."""
        return waiter.batch if len(self._waiters) == 1 and waiter.request.max_bytes <= 0 else 1

    def serve(self, waiter: Waiter, count: int, size: int, now: int) -> None:
        """Count messages given to a request. Its end, if it has come, is told by `finish`, after them."""
        waiter.batch -= count
        waiter.served += count
        if waiter.request.max_bytes > 0:
            waiter.size -= size
            if not waiter.size:
                waiter.batch = 0
        if waiter.request.idle_heartbeat > 0:
            waiter.beat_at = now + waiter.request.idle_heartbeat
        self._waiters.remove(waiter)
        if waiter.batch > 0:
            self.add(waiter)

    def finish(self, waiter: Waiter) -> None:
        if waiter.batch <= 0 and waiter.size > 0:
            self.say(waiter, waiter.left(409, "Batch Completed"))

    def take_pin(self, waiter: Waiter, now: int) -> bool:
        """The client of this request is being served. Returns whether that pins it."""
        if self.config.priority_policy is not PriorityPolicy.PINNED_CLIENT:
            return False
        is_new = not self.pin.id
        self.pin = Pin(self.pin.id or waiter.pin, now + self.config.priority_timeout)
        return is_new

    def lapse_pin(self, now: int) -> str:
        """Let go of a pinned client that was silent too long; returns its id, empty for none."""
        if not self.pin.id or self.pin.until > now:
            return ""
        lapsed, self.pin = self.pin.id, Pin()
        return lapsed

    def _refresh_pin(self, request: PullRequest, now: int) -> StatusText | None:
        """A request of the pinned client keeps its pin; one with another id is refused."""
        if self.config.priority_policy is not PriorityPolicy.PINNED_CLIENT or not request.id:
            return None
        if request.id != self.pin.id:
            return WRONG_PIN
        self.pin.until = now + self.config.priority_timeout
        return None

    def _may_take(self, waiter: Waiter, num_pending: int, num_ack_pending: int, now: int) -> bool:
        request = waiter.request
        if waiter.batch <= 0 or waiter.expires_at <= now or self._is_held(waiter):
            return False
        if self.config.priority_policy is PriorityPolicy.PINNED_CLIENT and self.pin.id:
            return request.id == self.pin.id
        if self.config.priority_policy is not PriorityPolicy.OVERFLOW:
            return True
        if not request.min_pending and not request.min_ack_pending:
            return True
        enough = 0 < request.min_pending <= num_pending
        return enough or 0 < request.min_ack_pending <= num_ack_pending

    def _end(self, waiter: Waiter, text: StatusText) -> None:
        self._waiters.remove(waiter)
        self.say(waiter, text)
