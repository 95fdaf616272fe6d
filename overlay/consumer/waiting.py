"""Waiting pull requests: which one is served next, and what ends a request (docs/jetstream.md#pull).

A request gets one message per turn. If it has some of its batch left, it goes to the tail. With
`prioritized`, requests are ordered by priority. With `overflow`, a request may have to wait for a
backlog. With `pinned_client`, one client is served until it is silent for priority_timeout.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from overlay.config.consumer import ConsumerConfig, PriorityPolicy

from .deadlines import NEVER
from .effects import Status
from .events import Reply
from .pulls import MAX_WAITING, NO_MESSAGES, REQUESTS_PENDING, WRONG_PIN, PullRequest, StatusText, left

SWEEP_EVERY = 1_000_000_000


@dataclass(slots=True, eq=False)
class Waiter:
    """A request and how much of it is left.

    Times are ns since 1970; `beat_at`: when its next heartbeat is due.

    `batch`: messages left. `size`: bytes left. `served`: messages delivered to it so far.
    """

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
        """Whether the request ends at the end of the stream.

        With no_wait it takes the messages that there are. With no_wait alone, without `expires`, it
        may end without any.
        """
        return self.request.no_wait and (self.served > 0 or self.expires_at == NEVER)

    def say(self, text: StatusText) -> Status:
        """Return this status for the sender of the request."""
        return Status(self.reply, text)

    def say_left(self, code: int, description: str) -> Status:
        """Return a status that says how much of the request is left."""
        return self.say(left(code, description, self.batch, self.size))


def wait_for(request: PullRequest, reply: Reply, pin: str, now: int) -> Waiter:
    """Return a waiter for a request received at `now`. `pin`: a fresh id for it."""
    expires_at = now + request.expires if request.expires > 0 else NEVER
    beat_at = now + request.idle_heartbeat if request.idle_heartbeat > 0 else NEVER
    return Waiter(request, reply, request.batch, max(request.max_bytes, 0), expires_at, beat_at, pin)


@dataclass(slots=True)
class Pin:
    """The pinned client, and when its pin lapses (ns since 1970). An empty id: no client is pinned."""

    id: str = ""
    until: int = 0


@dataclass(slots=True)
class Waiting:
    """The queue of requests. What ends requests returns the statuses that tell their senders, in order."""

    config: ConsumerConfig
    pin: Pin = field(default_factory=Pin)
    held: tuple[str, ...] = ()
    """Prefixes of reply addresses that get no messages for now, because many are in flight to them
    already.
    """
    _waiters: list[Waiter] = field(default_factory=list)
    _swept_at: int = -NEVER

    def __len__(self) -> int:
        return len(self._waiters)

    @property
    def claimed(self) -> int:
        """Number of messages that all requests together still ask for."""
        return sum(max(waiter.batch, 0) for waiter in self._waiters)

    @property
    def next_at(self) -> int:
        """The earliest time at which a request expires or its heartbeat is due, NEVER for none."""
        return min((min(waiter.expires_at, waiter.beat_at) for waiter in self._waiters), default=NEVER)

    @property
    def is_full(self) -> bool:
        """Whether max_waiting is reached."""
        return len(self) >= self.config.max_waiting > 0

    def admit(self, request: PullRequest, reply: Reply, pin: str, available: int, now: int) -> list[Status]:
        """Queue a valid request, or refuse it with a status.

        Return the statuses of the requests that expired, and then of the refusal.

        `available`: number of messages that could be delivered. `pin`: a fresh id. If the queue is
        full, a request with heartbeats is dropped without a status.
        """
        if (wrong_pin := self._refresh_pin(request, now)) is not None:
            return [Status(reply, wrong_pin)]
        ended: list[Status] = []
        if self.is_full and now - self._swept_at >= SWEEP_EVERY:
            self._swept_at = now
            ended += self.expire(now)
        if self.is_full:
            # no status for a client that expects heartbeats: it notices that they do not come
            return ended if request.idle_heartbeat > 0 else [*ended, Status(reply, MAX_WAITING)]
        if request.no_wait:
            if not available and request.expires <= 0:
                return [*ended, Status(reply, NO_MESSAGES)]
            ended += self.expire(now)
            if 0 < available < self.claimed:
                return [*ended, Status(reply, REQUESTS_PENDING)]
        self.add(wait_for(request, reply, pin, now))
        return ended

    def add(self, waiter: Waiter) -> None:
        """Insert a waiter at its place: the tail, or by priority."""
        at = len(self._waiters)
        if self.config.priority_policy is PriorityPolicy.PRIORITIZED:
            later = (i for i, other in enumerate(self._waiters) if other.request.priority > waiter.request.priority)
            at = next(later, at)
        self._waiters.insert(at, waiter)

    def expire(self, now: int) -> list[Status]:
        """End the requests that have expired."""
        expired = [waiter for waiter in self._waiters if waiter.expires_at <= now]
        return [self._end(waiter, waiter.say_left(408, "Request Timeout")) for waiter in expired]

    def run_out(self, now: int) -> list[Status]:
        """End the requests that have expired, and then also served requests with no_wait.

        nats-server 2.15.1 ends these on the same occasion, even if it is max_ack_pending that holds
        messages back.
        """
        expired = self.expire(now)
        served = [waiter for waiter in self._waiters if waiter.request.no_wait and waiter.served > 0] if expired else []
        return [*expired, *(self._end(waiter, waiter.say(NO_MESSAGES)) for waiter in served)]

    def end_one_shots(self) -> list[Status]:
        """End the requests that do not wait beyond the end of the stream, which has been reached."""
        one_shots = [waiter for waiter in self._waiters if waiter.is_one_shot]
        return [self._end(waiter, waiter.say(NO_MESSAGES)) for waiter in one_shots]

    def drop(self, heads: Collection[str], addresses: Collection[str]) -> None:
        """Forget requests without a status: the ones whose reply address is in `addresses` or begins
        with one of `heads`.
        """
        begins = tuple(heads)
        self._waiters = [
            waiter for waiter in self._waiters if waiter.reply not in addresses and not waiter.reply.startswith(begins)
        ]

    def hold(self, heads: Collection[str]) -> bool:
        """Hold back messages from the reply addresses that begin with one of `heads`, until the
        next call.

        Return whether a request that was held back before is not any more.
        """
        before = [waiter for waiter in self._waiters if self._is_held(waiter)]
        self.held = tuple(heads)
        return not all(map(self._is_held, before))

    def _is_held(self, waiter: Waiter) -> bool:
        return bool(self.held) and waiter.reply.startswith(self.held)

    def end_all(self, text: StatusText) -> list[Status]:
        """End all requests with this status."""
        return [self._end(waiter, waiter.say(text)) for waiter in list(self._waiters)]

    def beat(self, now: int, text: StatusText) -> list[Status]:
        """Return the heartbeats that are due, which say `text`, and start the wait for the next ones."""
        due = [waiter for waiter in self._waiters if waiter.beat_at <= now]
        for waiter in due:
            waiter.beat_at = now + waiter.request.idle_heartbeat
        return [waiter.say(text) for waiter in due]

    def has_taker(self, num_pending: int, num_ack_pending: int, now: int) -> bool:
        """Return whether any request can take a message now."""
        return any(self._may_take(waiter, num_pending, num_ack_pending, now) for waiter in self._waiters)

    def choose(self, size: int, num_pending: int, num_ack_pending: int, now: int) -> tuple[Waiter | None, list[Status]]:
        """Return the request that gets the next message, of `size` bytes; None if there is none.

        Requests whose remaining max_bytes are too few for the message end on the way, with the
        statuses that are returned.
        """
        ended: list[Status] = []
        for waiter in list(self._waiters):
            if not self._may_take(waiter, num_pending, num_ack_pending, now):
                continue
            if waiter.request.max_bytes > 0 and size > waiter.size:
                ended.append(self._end(waiter, waiter.say_left(409, "Message Size Exceeds MaxBytes")))
                continue
            return waiter, ended
        return None, ended

    def run_length(self, waiter: Waiter) -> int:
        """Return how many messages a request may take in one turn.

        More than one only if no other request waits and the request has no max_bytes.
        """
        return waiter.batch if len(self._waiters) == 1 and waiter.request.max_bytes <= 0 else 1

    def serve(self, waiter: Waiter, count: int, size: int, now: int) -> list[Status]:
        """Count messages delivered to a request and move it to the tail, or remove it if its batch
        is complete.

        If bytes of its max_bytes are left then, return the status that says so, to go out behind
        the messages.
        """
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
            return []
        return [waiter.say_left(409, "Batch Completed")] if waiter.size > 0 else []

    def take_pin(self, waiter: Waiter, now: int) -> bool:
        """Note that the client of this request is being served, and return whether that pins it."""
        if self.config.priority_policy is not PriorityPolicy.PINNED_CLIENT:
            return False
        is_new = not self.pin.id
        self.pin = Pin(self.pin.id or waiter.pin, now + self.config.priority_timeout)
        return is_new

    def lapse_pin(self, now: int) -> str:
        """Release a pinned client that was silent for too long; return its id, empty if there is none."""
        if not self.pin.id or self.pin.until > now:
            return ""
        lapsed, self.pin = self.pin.id, Pin()
        return lapsed

    def _refresh_pin(self, request: PullRequest, now: int) -> StatusText | None:
        """Extend the pin if the request is the pinned client's.

        Return the status that refuses another id, or None.
        """
        if self.config.priority_policy is not PriorityPolicy.PINNED_CLIENT or not request.id:
            return None
        if request.id != self.pin.id:
            return WRONG_PIN
        self.pin.until = now + self.config.priority_timeout
        return None

    def _may_take(self, waiter: Waiter, num_pending: int, num_ack_pending: int, now: int) -> bool:
        """Return whether a request can take a message now, by its batch, expiry, pin and overflow
        limits.
        """
        request = waiter.request
        if waiter.batch <= 0 or waiter.expires_at <= now or self._is_held(waiter):
            return False
        # a pinned client excludes all others; with overflow a request waits for its backlog
        if self.config.priority_policy is PriorityPolicy.PINNED_CLIENT and self.pin.id:
            return request.id == self.pin.id
        if self.config.priority_policy is not PriorityPolicy.OVERFLOW:
            return True
        if not request.min_pending and not request.min_ack_pending:
            return True
        enough = 0 < request.min_pending <= num_pending
        return enough or 0 < request.min_ack_pending <= num_ack_pending

    def _end(self, waiter: Waiter, status: Status) -> Status:
        """Remove a request and return the status that ends it."""
        self._waiters.remove(waiter)
        return status
