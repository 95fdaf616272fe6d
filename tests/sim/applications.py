"""The programs around the service in a history: producers that write to the source, and readers that ack what they take.

A reader is a plain Kafka consumer in the consumer's reader group. It takes committed deliveries, says of each what its plan
makes it say, and commits its offsets. When the storm is over it acks everything.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError

from tests.oracle.push import parse_token

from .archive import Archive
from .files import Files
from .plan import ACKS, KEYS, REPLIES, SOURCE, Consumer, Deed, Plan
from .process import Process, State
from .world import World

TROUBLES = (KafkaError, OSError, AssertionError)
"""What clients raise if Kafka fails them; the last is aiokafka's when a producer was fenced. OSError takes in timeouts."""
STOP_TROUBLES = (*TROUBLES, asyncio.CancelledError)
"""What clients raise when they are stopped. aiokafka cancels its fetches, and may raise the CancelledError of one of them."""
CONTROL = "overlay.control"
VALID_S = 300
"""How long a request counts, in seconds."""
STOP_S = 20.0
QUIET_S = 40.0
"""After so long without a message a reader begins again: aiokafka forgets a partition that had no leader for a while, may
fetch nothing after a connection broke in a rebalance, and may ask a former leader for ever."""
FAR = 1_000_000
"""By how many consumer sequences a range goes beyond what was delivered."""
METADATA_MS = 10_000
"""Longest time, in ms, until a reader hears of added partitions and of new leaders. aiokafka looks for a new leader when a
fetch is refused, but not when the request for the offset to begin at is refused; by default it asks again after 5 minutes."""
HANG_S = 40.0
"""After so long a reader takes its clients for hung and begins again: aiokafka's commit may wait for ever after a restart."""


@dataclass(slots=True)
class Run:
    """What the parts of a running history share."""

    world: World
    plan: Plan
    files: Files
    is_calm: bool = False
    writing: int = 0
    """Producers that have not ended."""
    read: dict[str, list[tuple[float, int, int]]] = field(default_factory=lambda: defaultdict(list))
    """By consumer: when its readers began to commit which offset of which partition, (loop's time, partition, offset)."""
    last: set[bytes] = field(default_factory=set)
    """The values of the records that were written when all else was done."""
    archive: Archive = field(init=False)
    resets: list[float] = field(default_factory=list)
    """When operators began to reset the stream to the start of its topics, ms since 1970."""
    rewound: Counter[int] = field(default_factory=Counter)
    """How often the state of each shard has lost its end."""
    tightened: set[str] = field(default_factory=set)
    """Topics that took small batches only for a while."""
    correlations: itertools.count[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.archive = Archive(self.world.cluster)

    def draw_chance(self) -> random.Random:
        """Return the randomness of one part of the history."""
        return random.Random(self.world.loop.chance.random())


@asynccontextmanager
async def started(run: Run, client: Any) -> AsyncIterator[Any]:
    """Start a client of aiokafka, and stop it at the end of the block, which may fail."""
    try:
        async with asyncio.timeout(HANG_S):
            await client.start()
        yield client
    finally:
        try:
            async with asyncio.timeout(STOP_S):
                await client.stop()
        except STOP_TROUBLES as error:
            run.world.tell(f"a client does not stop: {error!r}")
            if isinstance(client, AIOKafkaProducer):
                # it would send what it has long after its user has given it up
                client._sender.sender_task.cancel()


async def produce(run: Run, *, is_transactional: bool) -> None:
    """Write records with values that are never used twice until the storm is over; with transactions, abort some of them."""
    plan, chance = run.plan, run.draw_chance()
    name, numbers = "t" if is_transactional else "p", itertools.count()
    bank = "bank" if is_transactional else None
    run.writing += 1
    while not run.is_calm:
        try:
            client = AIOKafkaProducer(
                bootstrap_servers=run.world.bootstrap, transactional_id=bank, enable_idempotence=True
            )
            async with started(run, client) as producer:
                while not run.is_calm:
                    if is_transactional:
                        await producer.begin_transaction()
                    for _ in range(chance.randint(1, plan.burst)):
                        value, key = b"%s%d" % (name.encode(), next(numbers)), b"k%d" % chance.randrange(KEYS)
                        partitions = sorted(await producer.partitions_for(SOURCE))
                        sent = await producer.send(SOURCE, value, key=key, partition=chance.choice(partitions))
                        sent.add_done_callback(_retrieve)
                    await producer.flush()
                    if is_transactional:
                        aborts = chance.random() < 0.3
                        await (producer.abort_transaction if aborts else producer.commit_transaction)()
                    await asyncio.sleep(plan.pause_s * 2 * chance.random())
        except TROUBLES as error:
            run.world.tell(f"producer begins again: {error!r}")
    run.writing -= 1


def _retrieve(sent: asyncio.Future[Any]) -> None:
    """Let asyncio not complain of a record that is lost: the judge goes by what is in the log."""
    if not sent.cancelled():
        sent.exception()


class Reader:
    """One member of a consumer's reader group."""

    def __init__(self, run: Run, consumer: Consumer, number: int) -> None:
        self.name = f"{consumer.name}-reader-{number}"
        self._run, self._consumer = run, consumer
        self.process: Process

    def start(self) -> None:
        """Start its process, or start it again after its end."""
        self.process = self._run.world.start(self.name, _Taking(self._run, self._consumer).live())

    @property
    def is_running(self) -> bool:
        return self.process.state is State.RUNNING


class _Taking:
    """What a reader's process does from its start to its end."""

    def __init__(self, run: Run, consumer: Consumer) -> None:
        self._run, self._consumer = run, consumer
        self._chance = run.draw_chance()
        self._late: set[asyncio.Task[None]] = set()
        self._sent: list[asyncio.Future[Any]] = []
        """Acks under way."""

    async def live(self) -> None:
        """Take and ack for ever."""
        while self._consumer.output not in self._run.world.cluster.topics:  # noqa: ASYNC110
            await asyncio.sleep(1)
        while True:
            try:
                await (self._pull() if self._consumer.is_pulled else self._take())
            except TROUBLES as error:
                self._run.world.tell(f"begins again: {error!r}")
            await asyncio.sleep(1)

    async def _take(self) -> None:
        bootstrap = self._run.world.bootstrap
        reader = AIOKafkaConsumer(
            self._consumer.output,
            bootstrap_servers=bootstrap,
            group_id=self._consumer.name,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            metadata_max_age_ms=METADATA_MS,
            session_timeout_ms=6_000,
            rebalance_timeout_ms=10_000,
            fetch_max_wait_ms=5_000,
            consumer_timeout_ms=5_000,
        )
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True)
        loop = self._run.world.loop
        heard = loop.now
        async with started(self._run, producer), started(self._run, reader):
            while loop.now < heard + QUIET_S:
                async with asyncio.timeout(HANG_S):
                    found = await reader.getmany(timeout_ms=5_000, max_records=self._chance.choice((1, 10, 100)))
                    if found:
                        heard = loop.now
                    if messages := [message for batch in found.values() for message in batch]:
                        await self._settle(producer, messages)
                        await self._commit(reader, found)
                if not self._run.is_calm:
                    await asyncio.sleep(self._chance.random())

    async def _pull(self) -> None:
        """Ask for batches on the control topic, and take what comes for them."""
        bootstrap, topic = self._run.world.bootstrap, self._consumer.output
        reader = AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            isolation_level="read_committed",
            metadata_max_age_ms=METADATA_MS,
            fetch_max_wait_ms=5_000,
            consumer_timeout_ms=5_000,
        )
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True)
        async with started(self._run, producer), started(self._run, reader):
            async with asyncio.timeout(HANG_S):
                reader.assign([TopicPartition(topic, 0)])
                await reader.seek_to_end()
            loop = self._run.world.loop
            heard = loop.now
            while loop.now < heard + QUIET_S:
                async with asyncio.timeout(HANG_S):
                    if await self._pull_batch(producer, reader):
                        heard = loop.now

    async def _pull_batch(self, producer: AIOKafkaProducer, reader: AIOKafkaConsumer) -> int:
        """Ask for a batch and settle what comes for it. Return the number of messages that came."""
        correlation = f"pull-{next(self._run.correlations)}"
        batch, loop = self._chance.choice((1, 10, 100)), self._run.world.loop
        await producer.send_and_wait(
            CONTROL,
            write_request(
                "consumer.next",
                stream=self._consumer.config["stream"],
                consumer=self._consumer.name,
                batch=batch,
                expires="3s",
            ),
            key=f"request {correlation}".encode(),
            partition=0,
            headers=[("Overlay-Reply-Topic", self._consumer.output.encode())],
        )
        until, came = loop.now + 4, 0
        while loop.now < until and came < batch:
            found = await reader.getmany(timeout_ms=1_000)
            messages = [message for each in found.values() for message in each]
            own = [message for message in messages if _is_delivery(message, correlation.encode())]
            await self._settle(producer, own)
            came += len(own)
        return came

    async def _commit(self, reader: AIOKafkaConsumer, found: dict[TopicPartition, list[Any]]) -> None:
        offsets = {partition: batch[-1].offset + 1 for partition, batch in found.items() if batch}
        notes, now = self._run.read[self._consumer.name], self._run.world.loop.now
        notes += [(now, partition.partition, offset) for partition, offset in offsets.items()]
        await reader.commit(offsets)

    async def _settle(self, producer: AIOKafkaProducer, messages: list[Any]) -> None:
        deeds, weights = zip(*self._consumer.deeds.items(), strict=True)
        ranged: dict[str, list[int]] = defaultdict(list)
        beyond: set[str] = set()
        """Incarnations of which a range is to go beyond what they have delivered."""
        for message in messages:
            token = dict(message.headers)["Nats-Reply-To"]
            deed = Deed.ACK if self._run.is_calm else self._chance.choices(deeds, weights)[0]
            if deed in (Deed.RANGE, Deed.BEYOND):
                parsed = parse_token(token)
                ranged[parsed.incarnation].append(parsed.consumer_sequence)
                if deed is Deed.BEYOND:
                    beyond.add(parsed.incarnation)
            else:
                await self._say(producer, token, deed)
        for incarnation, numbers in ranged.items():
            head = f"$JS.ACK._.{incarnation}.{self._consumer.config['stream']}.{self._consumer.name}".encode()
            if incarnation in beyond:
                numbers.append(max(numbers) + FAR)
            body = json.dumps({"consumer_seq": _join(numbers)}).encode()
            await self._send(producer, head, b"+ACK " + body, wants_answer=self._chance.random() < 0.5)
        sent, self._sent = self._sent, []
        await producer.flush()
        for ack in sent:
            await ack  # a producer whose numbers a broker does not know any more is of no use

    async def _say(self, producer: AIOKafkaProducer, token: bytes, deed: Deed) -> None:
        chance = self._chance
        match deed:
            case Deed.SILENCE:
                pass
            case Deed.NAK:
                await self._send(producer, token, b"-NAK")
            case Deed.DELAY:
                delay = chance.choice((b"500ms", b'{"delay": 3000000000}', b"8s"))
                await self._send(producer, token, b"-NAK " + delay)
            case Deed.TERM:
                await self._send(producer, token, b"+TERM enough")
            case Deed.LATE:
                task = asyncio.create_task(self._say_later(producer, token, chance.random() * 15))
                self._late.add(task)
                task.add_done_callback(self._late.discard)
            case _:
                if deed is Deed.PROGRESS:
                    await self._send(producer, token, b"+WPI")
                for _ in range(2 if deed is Deed.TWICE else 1):
                    await self._send(producer, token, b"+ACK", wants_answer=deed is Deed.SYNC)

    async def _say_later(self, producer: AIOKafkaProducer, token: bytes, seconds: float) -> None:
        await asyncio.sleep(seconds)
        try:
            await self._send(producer, token, b"+ACK")
        except TROUBLES as error:
            self._run.world.tell(f"a late ack is lost: {error!r}")

    async def _send(self, producer: AIOKafkaProducer, token: bytes, body: bytes, *, wants_answer: bool = False) -> None:
        """Write an ack, with its token as a header or as its key."""
        headers, key = [("Nats-Reply-To", token)], None
        if self._chance.random() < 0.5:
            headers, key = [], token
        if wants_answer:
            correlation = b"ack-%d" % next(self._run.correlations)
            headers += [("Overlay-Reply-Topic", REPLIES.encode()), ("Overlay-Correlation-Id", correlation)]
        partitions = sorted(await producer.partitions_for(ACKS))
        sent = await producer.send(ACKS, body, key=key, headers=headers, partition=self._chance.choice(partitions))
        sent.add_done_callback(_retrieve)
        self._sent.append(sent)


def write_request(op: str, **fields: Any) -> bytes:
    """Return a record's value for the control topic."""
    return json.dumps({"v": 1, "op": op, "timeout": f"{VALID_S}s", **fields}).encode()


def _is_delivery(message: Any, correlation: bytes) -> bool:
    headers = dict(message.headers)
    return "Nats-Reply-To" in headers and headers.get("Overlay-Correlation-Id") == correlation


def _join(numbers: list[int]) -> list[list[int]]:
    """Return rising ranges of neighbours, both ends included."""
    found: list[list[int]] = []
    for number in sorted(set(numbers)):
        if found and found[-1][1] == number - 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return found
