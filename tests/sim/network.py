"""The network between simulated processes and the cluster: connections as aiokafka knows them, latency and faults.

`Network.create_conn` stands in for `aiokafka.client.create_conn`. Requests and responses travel as objects. Like a TCP
connection, one connection keeps their order; like a Kafka broker, the cluster handles the requests of one connection one
after the other. What happens on the broker's side belongs to no process: it happens as well when the client is frozen or
dead.
"""

from __future__ import annotations

import asyncio
import io
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context
from functools import cache
from math import inf, nextafter
from struct import Struct
from typing import Any

from aiokafka import client as aiokafka_client
from aiokafka.conn import CloseReason
from aiokafka.errors import KafkaConnectionError
from aiokafka.structs import BrokerMetadata

from overlay.kafka.fetch_response import Frames
from tests.sim.kafka.cluster import Cluster
from tests.sim.kafka.session import Answer

from .faults import Faults, Verdict
from .loop import Future, Handle, Loop
from .process import PROCESS, Process, State

WORLD = Context()
"""The context of what belongs to no process."""
CONNECT_S = 10.0
"""How long a broker that does not answer at all lets a client wait for a connection, as the operating system does."""
PRODUCE = 0
"""The API key of produce requests."""
_TIME = Struct("<d")
GIVE_UP_S = 900.0
"""How long the operating system tries to send what a peer does not take, as Linux does by default."""


class _Entry:
    """A request under way."""

    __slots__ = ("deadline", "future", "kind", "struct")

    def __init__(self, struct: Any, kind: str, future: Future, deadline: float) -> None:
        self.struct = struct
        self.kind = kind
        self.future = future
        self.deadline = deadline


class _Transport:
    """Lets overlay/kafka/fetch_response.py believe that it has taken the receiving side over: there are no bytes to receive."""

    def __init__(self) -> None:
        self.transport = self
        self._protocol = Frames.__new__(Frames)

    def get_protocol(self) -> Frames:
        return self._protocol


_TRANSPORT = _Transport()


class Connection:
    """One connection, with the methods and attributes of aiokafka's that clients use."""

    def __init__(
        self,
        network: Network,
        broker: int,
        host: str,
        port: int,
        client_id: str,
        timeout_s: float,
        idle_s: float,
        on_close: Callable[[Any, Any], None] | None,
    ) -> None:
        self.host, self.port = host, port
        self._network, self._loop = network, network.loop
        self._broker = broker
        self._process = PROCESS.get()
        self._name = self._process.name if self._process is not None else ""
        self._session = network.cluster.open(broker, client_id)
        self._session.on_close.append(self._lose)
        self._versions = network.cluster.versions
        self._timeout_s, self._idle_s, self._on_close = timeout_s, idle_s, on_close
        self._requests: deque[_Entry] = deque()
        self._arrived: deque[_Entry] = deque()
        self._writer = _TRANSPORT
        self._is_open = True
        self._is_stalled = False
        self._is_busy = False
        # when the last request arrives and the last answer is delivered: the next one is later, as timers of one moment have no
        # order
        self._arrival = self._delivery = 0.0
        self._last_action = self._loop.now
        self._watch = self._loop.call_later(min(timeout_s, idle_s), self._look)
        self._closed = self._loop.create_future()
        self._closed.set_result(None)

    # the client's side

    def connected(self) -> bool:
        return self._is_open

    def send(self, request: Any, expect_response: bool = True) -> Future:
        """Return a future of the response. Raises KafkaConnectionError on a closed connection."""
        if not self._is_open:
            raise KafkaConnectionError(f"No connection to broker at {self.host}:{self.port}")
        struct = request.prepare(self._versions)
        if "encode" in struct.__dict__:  # the service writes the bytes of its produce requests itself
            struct = type(struct).decode(io.BytesIO(struct.encode()))
        loop = self._loop
        future = loop.create_future()
        entry = _Entry(struct, type(request).__name__, future, loop.now + self._timeout_s)
        if expect_response:
            self._requests.append(entry)
        else:
            future.set_result(None)
        loop.call_at(self._draw_arrival(), self._arrive, entry, context=WORLD)
        return future

    def _draw_arrival(self) -> float:
        """Return when something that is sent now arrives at the broker."""
        latency = self._network.faults.draw_latency(self._loop.chance)
        self._arrival = max(nextafter(self._arrival, inf), self._loop.now + latency)
        return self._arrival

    def close(self, reason: Any = None, exc: BaseException | None = None) -> Future:
        """Close; requests that are not answered fail. Return a future that is done once no byte is left to be sent."""
        if not self._is_open:
            return self._closed
        self._is_open = False
        self._network.connections.pop(self, None)
        self._watch.cancel()
        requests, self._requests = self._requests, deque()
        for entry in requests:
            if not entry.future.done():
                error = KafkaConnectionError(f"Connection at {self.host}:{self.port} closed")
                if exc is not None:
                    error.__cause__ = error.__context__ = exc
                entry.future.set_exception(error)
        if self._on_close is not None:
            callback, self._on_close = self._on_close, None
            callback(self, reason)
        self._arrival = max(
            nextafter(self._arrival, inf), self._loop.now + self._network.faults.draw_latency(self._loop.chance)
        )
        self._loop.call_at(self._arrival, self._hear_end, context=WORLD)
        is_full = any(entry.struct.API_KEY == PRODUCE for entry in requests)
        if is_full and (self._name, self._broker) in self._network.faults.clogged:
            self._closed = self._loop.create_future()
            self._loop.call_later(GIVE_UP_S, _finish, self._closed)
        return self._closed

    def _look(self) -> None:
        """Fail the requests that have waited too long, and close an unused connection."""
        now = self._loop.now
        for entry in self._requests:
            if entry.deadline > now:
                break
            if not entry.future.done():
                entry.future.set_exception(TimeoutError())
        waiting = next((entry.deadline for entry in self._requests if entry.deadline > now), inf)
        if not self._requests and now >= self._last_action + self._idle_s:
            self.close(CloseReason.IDLE_DROP)
            return
        idle = self._last_action + self._idle_s if not self._requests else now + self._idle_s
        self._watch = self._loop.call_at(min(waiting, idle, now + self._timeout_s), self._look)

    def _deliver(self, entry: _Entry, response: Any) -> None:
        """The response is there. Of a frozen process the kernel takes it in, and the process finds it later."""
        if not self._is_open or self._is_stalled:
            return
        if self._requests and self._requests[0] is entry:
            self._requests.popleft()
        self._last_action = self._loop.now
        if not entry.future.done():
            entry.future.set_result(response)

    def break_off(self) -> None:
        """Let the client find the connection broken."""
        self.close(CloseReason.CONNECTION_BROKEN, ConnectionResetError(104, "Connection reset by peer"))

    # the broker's side

    def _arrive(self, entry: _Entry) -> None:
        if self._is_busy:
            self._arrived.append(entry)
        else:
            self._serve(entry)

    def _serve(self, entry: _Entry) -> None:
        """Hand a request to the broker."""
        network = self._network
        if self._session.closed or self._is_stalled:
            return
        if network.faults.parted and (self._name, self._broker) in network.faults.parted:
            self._is_stalled = True
            return
        network.note(self._name, self._broker, entry)
        if network.watch is not None:
            network.watch(self._name, entry.kind)
        verdict = network.faults.judge(self._loop.chance, entry.kind)
        if verdict is not Verdict.PASSES:
            network.say(f"{self._name} {entry.kind} to broker {self._broker}: {verdict.value}")
        if verdict is Verdict.CUT_BEFORE:
            self._lose()
            return
        answer = network.cluster.ask(self._session, entry.struct, self._loop.now)
        network.plan()
        if answer.is_silent:
            return
        self._is_busy = True
        if answer.response is not None:
            self._respond(entry, answer, verdict)
        else:
            answer.done(lambda: self._respond(entry, answer, verdict))

    def _respond(self, entry: _Entry, answer: Answer, verdict: Verdict) -> None:
        """Send a response on its way, and handle the next request."""
        faults, loop = self._network.faults, self._loop
        if verdict is Verdict.CUT_AFTER:
            self._lose()
            return
        if verdict is Verdict.STALLED:
            self._is_stalled = True
        delay = faults.draw_latency(loop.chance)
        if verdict is Verdict.SLOW:
            least, most = faults.slow_s
            delay += least + (most - least) * loop.chance.random()
        self._delivery = max(nextafter(self._delivery, inf), loop.now + delay)
        loop.call_at(self._delivery, self._deliver, entry, answer.response, context=WORLD)
        self._is_busy = False
        while self._arrived and not self._is_busy and not self._session.closed:
            self._serve(self._arrived.popleft())

    def _hear_end(self) -> None:
        """The client has closed: the broker forgets the connection."""
        if not self._session.closed:
            self._network.cluster.close(self._session)
            self._network.plan()

    def _lose(self) -> None:
        """The connection breaks: the broker forgets it, and the client hears of it a little later."""
        if not self._session.closed:
            self._network.cluster.close(self._session)
            self._network.plan()
        delay = self._network.faults.draw_latency(self._loop.chance)
        # in the client's process: what it does about that waits while it is frozen
        context = WORLD if self._process is None else self._process.context
        self._loop.call_later(delay, self.break_off, context=context)

    def die(self) -> None:
        """The process is dead, and the operating system closes the connection."""
        self._is_open = False
        self._watch.cancel()
        self._arrival = max(
            nextafter(self._arrival, inf), self._loop.now + self._network.faults.draw_latency(self._loop.chance)
        )
        self._loop.call_at(self._arrival, self._hear_end, context=WORLD)


@cache
def _mark(name: str, broker: int, kind: str) -> bytes:
    return f"{name} {broker} {kind}".encode()


def _finish(closed: Future) -> None:
    if not closed.done():
        closed.set_result(None)


class Network:
    """Connects processes to a cluster, and has the cluster do what is due."""

    def __init__(self, loop: Loop, cluster: Cluster, faults: Faults | None = None) -> None:
        self.loop = loop
        self.cluster = cluster
        self.faults = faults if faults is not None else Faults()
        self.connections: dict[Connection, None] = {}
        self.requests = 0
        self.counts: Counter[str] = Counter()
        """Requests by kind, as their classes are called without a version."""
        self._brokers = {cluster.address(broker): broker for broker in cluster.brokers}
        self.digest = 0
        """Of when, by whom and to which broker each request was sent: equal for histories that went the same way."""
        self.log: Callable[[str], None] | None = None
        """Takes a line for each request and fault, where a history wants a story."""
        self.watch: Callable[[str, str], None] | None = None
        """Called with a process's name and a kind of request when a broker gets one: a moment for something to happen."""
        self._due = inf
        self._timer: Handle | None = None
        self._dying: set[str] = set()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Have aiokafka's clients connect to this network in the block."""
        kept, hashed = aiokafka_client.create_conn, BrokerMetadata.__hash__
        aiokafka_client.create_conn = self.create_conn
        # clients draw from sets of these; a tuple with None in it has another hash in each Python process
        BrokerMetadata.__hash__ = lambda broker: hash(broker.nodeId)
        try:
            yield
        finally:
            aiokafka_client.create_conn = kept
            BrokerMetadata.__hash__ = hashed

    async def create_conn(
        self,
        host: str,
        port: int,
        *,
        client_id: str = "aiokafka",
        request_timeout_ms: int = 40_000,
        max_idle_ms: int | None = None,
        on_close: Callable[[Any, Any], None] | None = None,
        **_: Any,
    ) -> Connection:
        """Connect to a broker. Raises OSError if it is down, TimeoutError if nothing arrives there."""
        process = PROCESS.get()
        name = process.name if process is not None else ""
        broker = self._brokers.get((host, port))
        latency = self.faults.draw_latency(self.loop.chance) + self.faults.draw_latency(self.loop.chance)
        if broker is not None and (name, broker) in self.faults.parted:
            await asyncio.sleep(min(CONNECT_S, request_timeout_ms / 1000))
            raise TimeoutError
        await asyncio.sleep(2 * latency)  # TCP, and the question for versions
        if broker is None or broker not in self.cluster.up:
            raise ConnectionRefusedError(111, f"Connect call failed ('{host}', {port})")
        connection = Connection(
            self,
            broker,
            host,
            port,
            client_id,
            request_timeout_ms / 1000,
            inf if max_idle_ms is None else max_idle_ms / 1000,
            on_close,
        )
        self.connections[connection] = None
        if process is not None and process.state is not State.DEAD and name not in self._dying:
            self._dying.add(name)
            process.dead_callbacks.append(lambda: self._sever(process))
        return connection

    def _sever(self, process: Process) -> None:
        self._dying.discard(process.name)
        for connection in [each for each in self.connections if each._process is process]:
            del self.connections[connection]
            connection.die()

    def plan(self) -> None:
        """Have the cluster act when it next has something to do."""
        due = self.cluster.next_due()
        if due < self._due:
            if self._timer is not None:
                self._timer.cancel()
            self._due = due
            self._timer = self.loop.call_at(max(due, self.loop.now), self._advance, context=WORLD)

    def _advance(self) -> None:
        self._due, self._timer = inf, None
        self.cluster.advance(self.loop.now)
        self.plan()

    def note(self, name: str, broker: int, entry: _Entry) -> None:
        """Add a request to the digest."""
        self.requests += 1
        self.counts[entry.kind] += 1
        # called for every request: a float's bytes are there in a tenth of the time of its text
        self.digest = zlib.crc32(_TIME.pack(self.loop.now) + _mark(name, broker, entry.kind), self.digest)
        if self.log is not None:
            self.log(f"{self.loop.now:.9f} {name} {broker} {entry.kind} {entry.struct}")

    def say(self, line: str) -> None:
        """Write a line of the story."""
        if self.log is not None:
            self.log(f"{self.loop.now:.6f} {line}")
