"""The two sides of the contract: a simulated cluster of one broker, and the embedded Kafka.

A script is a coroutine that takes a side, sends requests over its connections, and notes what it saw. The notes of both sides
have to be equal. Names are the same on both; what cannot be (producer ids, topic ids, member ids, times) is noted as a name
that a script gives it, in the order of first sight.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from aiokafka.conn import AIOKafkaConnection, create_conn
from aiokafka.protocol.admin import CreateTopicsRequest
from aiokafka.protocol.coordination import FindCoordinatorRequest

from overlay.kafka.protocol import DescribeGroupsRequest, ListOffsetsRequest, TopicsRequest
from tests.sim.kafka import Cluster, Session, Settings

CLIENT = "contract"
GROUP = 0
PASSING = (5, 14, 15, 16)
"""Codes of a coordinator or a topic that was made just now."""
CONCURRENT_TRANSACTIONS = 51
PAUSE_S = 0.05
BEAT_S = 0.01
STALL_S = 0.2
"""An answer that takes longer comes from a broker, or to a process, that stood still."""
AFTER_STALL_S = 0.5
"""How long a broker has for what it did not do while it stood still."""
WALL_0_MS = 1_700_000_000_000.0


class Connection(Protocol):
    """One connection to the broker. It answers one request after the other."""

    async def ask(self, request: Any) -> Any:
        """Send aiokafka's or the overlay's request and return the decoded response."""


class Side:
    """What a script needs. `prefix` makes the names of topics, groups and transactional ids unique."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.notes: list[tuple[str, Any]] = []
        self._aliases: dict[Any, str] = {}
        self.main: Connection

    def name(self, name: str) -> str:
        return f"{self.prefix}-{name}"

    def note(self, what: str, value: Any) -> None:
        """Keep what was seen, to be compared with what the other side saw."""
        self.notes.append((what, value))

    def alias(self, kind: str, value: Any) -> str:
        """Return a name for a value that the other side has differently."""
        seen = sum(name.startswith(f"{kind}-") for name in self._aliases.values())
        return self._aliases.setdefault((kind, value), f"{kind}-{seen}")

    async def connect(self, client_id: str = CLIENT, *, broker: int = 1) -> Connection:
        raise NotImplementedError

    async def stop(self, broker: int) -> None:
        """Kill a broker of a cluster of several."""
        raise NotImplementedError

    async def restart(self, broker: int) -> None:
        """Start a broker that was killed."""
        raise NotImplementedError

    async def sleep(self, seconds: float) -> None:
        raise NotImplementedError

    @property
    def wall_ms(self) -> int:
        raise NotImplementedError

    async def start(self, work: Awaitable[Any]) -> asyncio.Task[Any]:
        """Send a request whose answer is awaited later, and let the broker take it."""
        task = asyncio.ensure_future(work)
        await self.sleep(0.15)
        return task

    async def until(self, ask: Callable[[], Awaitable[Any]], is_good: Callable[[Any], bool], limit_s: float) -> Any:
        """Ask again and again until an answer is good, and return the last one."""
        waited = 0.0
        while True:
            found = await ask()
            if is_good(found) or waited >= limit_s:
                return found
            await self.sleep(PAUSE_S)
            waited += PAUSE_S

    async def coordinated(self, request: Any, code: Callable[[Any], int], *, also: Sequence[int] = ()) -> Any:
        """Return the answer of a coordinator, which may have to be made first; `also` are codes to try again for."""
        passing = {*PASSING, *also}
        return await self.until(lambda: self.main.ask(request), lambda found: code(found) not in passing, 20.0)

    async def make_topic(self, name: str, partitions: int = 1, **config: object) -> str:
        """Create a topic, by default without retention, and wait until the broker has it."""
        full = self.name(name)
        config = {"retention_ms": -1, **config}  # many scripts use old timestamps
        entries = [(key.replace("_", "."), str(value)) for key, value in config.items()]
        await self.main.ask(CreateTopicsRequest([(full, partitions, 1, [], entries)], 10_000, False))
        await self.await_partitions(full, partitions)
        return full

    async def await_partitions(self, topic: str, count: int) -> None:
        """Wait until a broker has its partitions.

        For a moment after they are made it may name itself their leader and yet refuse all that is
        asked of them.
        """
        numbers = list(range(count))
        await self.until(
            lambda: self.main.ask(TopicsRequest([topic])),
            lambda found: sorted(one[1] for one in found.topics[0][4] if one[2] >= 0) == numbers,
            10.0,
        )
        await self.until(
            lambda: self.main.ask(ListOffsetsRequest({topic: numbers}, -1, committed=False)),
            lambda found: all(part[1] == 0 for found_topic in found.topics for part in found_topic[1]),
            10.0,
        )
        await self.sleep(PAUSE_S)

    async def find_coordinator(self, key: str, kind: int) -> int:
        """Wait until a group (0) or a transactional id (1) has a coordinator, and return the code."""
        found = await self.coordinated(FindCoordinatorRequest(key, kind), lambda answer: int(answer.error_code))
        if kind == GROUP:
            # found is not yet loaded
            await self.coordinated(DescribeGroupsRequest([key]), lambda answer: int(answer.groups[0][0]))
        return int(found.error_code)


class SimulatedConnection:
    """A connection to a simulated broker; the clock goes to when the answer comes."""

    def __init__(self, side: SimulatedSide, session: Session) -> None:
        self._side = side
        self._session = session

    async def ask(self, request: Any) -> Any:
        side = self._side
        prepared = request.prepare(side.cluster.versions)
        # what a broker reads are bytes
        decoded = type(prepared).decode(prepared.encode())
        answer = side.cluster.ask(self._session, decoded, side.now)
        while answer.is_held:
            await side.pass_time()
        if answer.is_silent:
            return None
        return answer.request.RESPONSE_TYPE.decode(answer.response.encode())


class SimulatedSide(Side):
    """The simulation. Time passes when every script's task waits for it."""

    def __init__(self, prefix: str, brokers: int = 1) -> None:
        super().__init__(prefix)
        self.now = 100.0
        settings = Settings(
            first_broker=1,
            wall_ms0=WALL_0_MS,
            replication_factor=brokers,
            retention_check_s=0.2,
            first_retention_check_s=0.2,
            cleaner_s=0.2,
            transaction_sweep_s=0.5,
        )
        self.cluster = Cluster(brokers, settings=settings)
        self.cluster.advance(self.now)
        self.main = SimulatedConnection(self, self.cluster.open(1, CLIENT))

    async def connect(self, client_id: str = CLIENT, *, broker: int = 1) -> Connection:
        return SimulatedConnection(self, self.cluster.open(broker, client_id))

    async def stop(self, broker: int) -> None:
        self.cluster.stop(broker)

    async def restart(self, broker: int) -> None:
        self.cluster.start(broker)

    async def pass_time(self) -> None:
        """Let other tasks run, and then a short time pass."""
        for _ in range(5):
            await asyncio.sleep(0)
        self.now += 0.001
        self.cluster.advance(self.now)

    async def sleep(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            await self.pass_time()

    @property
    def wall_ms(self) -> int:
        return int(WALL_0_MS + self.now * 1000)


class RealConnection:
    """A connection to the embedded broker."""

    def __init__(self, connection: AIOKafkaConnection) -> None:
        self.connection = connection

    async def ask(self, request: Any) -> Any:
        return await self.connection.send(request)


class RealSide(Side):
    """The embedded Kafka. `close` closes the connections.

    `bootstrap`: the address of each broker, by number from 1.
    """

    def __init__(self, prefix: str, bootstrap: str) -> None:
        super().__init__(prefix)
        self._addresses = dict(enumerate(bootstrap.split(","), 1))
        self._open: list[AIOKafkaConnection] = []

    async def begin(self) -> None:
        self.main = await self.connect()

    async def connect(self, client_id: str = CLIENT, *, broker: int = 1) -> Connection:
        host, _, port = self._addresses[broker].rpartition(":")
        connection = await create_conn(host, int(port), client_id=client_id)
        self._open.append(connection)
        return RealConnection(connection)

    async def close(self) -> None:
        for connection in self._open:
            await connection.close()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    @property
    def wall_ms(self) -> int:
        return int(time.time() * 1000)


class Pulse:
    """Questions to a broker, one after the other. They tell a time that passes from one in which this process or the broker
    stands still.

    `stalls`: how often that was. `steady_s`: the time that has passed otherwise, in seconds.
    """

    def __init__(self, connection: Connection) -> None:
        self.stalls = 0
        self.steady_s = 0.0
        self._connection = connection
        self._beat = asyncio.Event()
        """Set when the present question is answered."""
        self._is_over = False

    async def run(self) -> None:
        try:
            while True:
                await self._ask()
                self._beat.set()
                self._beat = asyncio.Event()
        finally:
            self._is_over = True
            self._beat.set()

    async def _ask(self) -> None:
        before = time.monotonic()
        await asyncio.sleep(BEAT_S)
        await self._connection.ask(TopicsRequest(()))
        took = time.monotonic() - before
        if took > STALL_S:
            self.stalls += 1
        else:
            self.steady_s += took

    async def await_beat(self) -> None:
        """Wait until the present question is answered. AssertionError if the broker answers no more."""
        await self._beat.wait()
        assert not self._is_over, "the pulse's connection is lost"


class SteadySide(RealSide):
    """The embedded Kafka. What sleeps here sleeps on if this process or the broker has stood still meanwhile: a broker has so
    much time to do something, and not only a clock."""

    async def begin(self) -> None:
        await super().begin()
        self._pulse = Pulse(await self.connect())
        self._beating = asyncio.create_task(self._pulse.run())

    async def close(self) -> None:
        self._beating.cancel()
        await super().close()

    async def sleep(self, seconds: float) -> None:
        pulse, left = self._pulse, seconds + BEAT_S
        while left > 0:
            stalls, steady_s = pulse.stalls, pulse.steady_s
            await pulse.await_beat()
            left -= pulse.steady_s - steady_s
            if pulse.stalls > stalls:
                left = max(left, min(seconds, AFTER_STALL_S))

    async def has_stalled(self) -> bool:
        """Return whether this process or the broker has stood still since the side began: groups may have lost members, and
        transactions have come to their timeouts."""
        for _ in range(2):
            await self._pulse.await_beat()
        return self._pulse.stalls > 0


Script = Callable[[Side], Awaitable[None]]
Compare = Callable[[Script], Awaitable[None]]
"""Runs a script on both sides and compares what it noted."""
