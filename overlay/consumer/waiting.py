"""Waiting pull requests: which one is served next, and what ends a request (docs/jetstream.md#pull).

A request gets one message per turn, or several if it is the only one. If it has some of its batch
left, it goes to the tail. With `prioritized`, requests are ordered by priority. With `overflow`, a
request may have to wait for a backlog. With `pinned_client`, one client is served until it is
silent for priority_timeout.
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
    """A pull request that waits for messages, and how much of it is left.

    Times are ns since 1970, NEVER if not wanted. `expires_at`: when it ends. `beat_at`: when its
    next heartbeat is due. `pin`: the id that its client gets if it becomes pinned.

    `batch`: messages left. `size`: bytes left, if it has max_bytes. `served`: messages delivered to
    it so far.
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
        """Whether the request ends as soon as no more messages are ready: it has no_wait, and
        either a message was delivered to it or it has no `expires`.
        """
        return self.request.no_wait and (self.served > 0 or self.expires_at == NEVER)

    def say(self, text: StatusText) -> Status:
        """Return a status with this text, addressed to the sender of the request."""
        return Status(self.reply, text)

    def say_left(self, code: int, description: str) -> Status:
        """Return a status, addressed to the sender, whose headers say how much of the request is
        left.
        """
        return self.say(left(code, description, self.batch, self.size))


def wait_for(request: PullRequest, reply: Reply, pin: str, now: int) -> Waiter:
    """Return the queue entry of a request received at `now` (ns since 1970). `pin`: a fresh id,
    which its client gets if it becomes pinned.
    """
    expires_at = now + request.expires if request.expires > 0 else NEVER
    beat_at = now + request.idle_heartbeat if request.idle_heartbeat > 0 else NEVER
    return Waiter(request, reply, request.batch, max(request.max_bytes, 0), expires_at, beat_at, pin)


@dataclass(slots=True)
class Pin:
    """The pinned client of `pinned_client`, which alone is served, by its id, and when the pin ends
    (ns since 1970). An empty id: no client is pinned.
    """

    id: str = ""
    until: int = 0


@dataclass(slots=True)
class Waiting:
    """The queue of a consumer's pull requests. Methods that end requests, except `drop`, return the
    statuses that tell their senders, in order; the caller sends them. Times are ns since 1970.
    """

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
        """Whether max_waiting is reached; False if it is 0, which is no limit."""
        return len(self) >= self.config.max_waiting > 0

    def admit(self, request: PullRequest, reply: Reply, pin: str, available: int, now: int) -> list[Status]:
        """Queue a valid request, or refuse it with a status: if its pin id is not that of the pinned
        client, or the queue is full. A request with no_wait is refused as well if nothing is
        `available` and it has no `expires`, or if messages are available, but fewer than the queued
        requests ask for. Requests that have expired may end on this occasion.

        Return the statuses of the requests that expired, and then of the refusal. If the queue is
        full, a request with heartbeats is dropped without a status.

        `available`: number of messages that could be delivered. `pin`: a fresh id, which the client
        gets if it becomes pinned.
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
        """Insert a request into the queue: at the tail, or with `prioritized` before the first
        request with a higher priority number, which is served later.
        """
        at = len(self._waiters)
        if self.config.priority_policy is PriorityPolicy.PRIORITIZED:
            later = (i for i, other in enumerate(self._waiters) if other.request.priority > waiter.request.priority)
            at = next(later, at)
        self._waiters.insert(at, waiter)

    def expire(self, now: int) -> list[Status]:
        """Remove the requests that have expired at `now`, and return a status for each (408)."""
        expired = [waiter for waiter in self._waiters if waiter.expires_at <= now]
        return [self._end(waiter, waiter.say_left(408, "Request Timeout")) for waiter in expired]

    def run_out(self, now: int) -> list[Status]:
        """Remove the requests that have expired at `now`. If there are any, also remove requests
        with no_wait that got a message. Return a status for each: 408 if it has expired, else 404.

        nats-server 2.15.1 ends these on the same occasion, even if it is max_ack_pending that holds
        messages back.
        """
        expired = self.expire(now)
        served = [waiter for waiter in self._waiters if waiter.request.no_wait and waiter.served > 0] if expired else []
        return [*expired, *(self._end(waiter, waiter.say(NO_MESSAGES)) for waiter in served)]

    def end_one_shots(self) -> list[Status]:
        """Remove the requests that do not wait for messages (`is_one_shot`), and return a status
        for each (404). Call when no message is ready: at the end of the stream, or in a pause.
        """
        one_shots = [waiter for waiter in self._waiters if waiter.is_one_shot]
        return [self._end(waiter, waiter.say(NO_MESSAGES)) for waiter in one_shots]

    def drop(self, heads: Collection[str], addresses: Collection[str]) -> None:
        """Remove requests without a status: the ones whose reply address is in `addresses` or
        begins with one of `heads`.
        """
        begins = tuple(heads)
        self._waiters = [
            waiter for waiter in self._waiters if waiter.reply not in addresses and not waiter.reply.startswith(begins)
        ]

    def hold(self, heads: Collection[str]) -> bool:
        """Serve no requests whose reply address begins with one of `heads`, until the next call.
        They stay in the queue, and expire and get heartbeats like the others.

        Return whether a request that was held back before is not any more.
        """
        before = [waiter for waiter in self._waiters if self._is_held(waiter)]
        self.held = tuple(heads)
        return not all(map(self._is_held, before))

    def _is_held(self, waiter: Waiter) -> bool:
        return bool(self.held) and waiter.reply.startswith(self.held)

    def end_all(self, text: StatusText) -> list[Status]:
        """Remove all requests, and return a status with this text for each."""
        return [self._end(waiter, waiter.say(text)) for waiter in list(self._waiters)]

    def beat(self, now: int, text: StatusText) -> list[Status]:
        """Return a heartbeat with this text for each request whose heartbeat is due at `now`, and
        set the time of its next one.
        """
        due = [waiter for waiter in self._waiters if waiter.beat_at <= now]
        for waiter in due:
            waiter.beat_at = now + waiter.request.idle_heartbeat
        return [waiter.say(text) for waiter in due]

    def has_taker(self, num_pending: int, num_ack_pending: int, now: int) -> bool:
        """Return whether any request can take a message at `now`. `num_pending`: matching messages
        not delivered yet. `num_ack_pending`: deliveries that wait for an ack.
        """
        return any(self._may_take(waiter, num_pending, num_ack_pending, now) for waiter in self._waiters)

    def choose(self, size: int, num_pending: int, num_ack_pending: int, now: int) -> tuple[Waiter | None, list[Status]]:
        """Return the request that gets the next message, of `size` bytes, None if there is none;
        and the statuses of requests that ended. The request stays in the queue (`serve`).

        A request ends here if its remaining max_bytes are too few for the message. The numbers: as
        in `has_taker`.
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
        """Return how many messages a request may take in one turn: the rest of its batch if no
        other request waits and it has no max_bytes, otherwise 1.
        """
        return waiter.batch if len(self._waiters) == 1 and waiter.request.max_bytes <= 0 else 1

    def serve(self, waiter: Waiter, count: int, size: int, now: int) -> list[Status]:
        """Record that `count` messages were delivered to a request at `now` (ns since 1970), and
        restart its heartbeat. If it has max_bytes, subtract `size`, the bytes of these messages
        together. Insert it into the queue again as `add` does, or remove it if its batch or its
        max_bytes are used up.

        Return a status (409) if it was removed with bytes of its max_bytes left, to go out behind
        the messages; otherwise an empty list.
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
        """Record that the client of this request is served at `now`: it is pinned, or stays so, for
        priority_timeout. Return whether no client was pinned before. Without `pinned_client` do
        nothing and return False.
        """
        if self.config.priority_policy is not PriorityPolicy.PINNED_CLIENT:
            return False
        is_new = not self.pin.id
        self.pin = Pin(self.pin.id or waiter.pin, now + self.config.priority_timeout)
        return is_new

    def lapse_pin(self, now: int) -> str:
        """Unpin the pinned client if it was silent for priority_timeout, and return its pin id;
        otherwise return an empty text.
        """
        if not self.pin.id or self.pin.until > now:
            return ""
        lapsed, self.pin = self.pin.id, Pin()
        return lapsed

    def _refresh_pin(self, request: PullRequest, now: int) -> StatusText | None:
        """Keep the client pinned for another priority_timeout if the request has its pin id.

        Return the status that refuses a request with another id, also if no client is pinned;
        otherwise None. Without `pinned_client`, or if the request has no id, do nothing.
        """
        if self.config.priority_policy is not PriorityPolicy.PINNED_CLIENT or not request.id:
            return None
        if request.id != self.pin.id:
            return WRONG_PIN
        self.pin.until = now + self.config.priority_timeout
        return None

    def _may_take(self, waiter: Waiter, num_pending: int, num_ack_pending: int, now: int) -> bool:
        """Return whether a request can take a message at `now`: it has some of its batch left, has
        not expired and is not held back. Only the pinned client's requests may take one while a
        client is pinned. With `overflow`, a request with min_pending or min_ack_pending may only if
        one of the two is reached.
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
        """Remove a request from the queue and return `status`, which tells its sender."""
        self._waiters.remove(waiter)
        return status
