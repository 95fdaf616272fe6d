"""What a seed stands for: the consumers and readers of a history, its rates of failing requests, and a timetable of mishaps."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Any

from .faults import Faults
from .kafka.settings import Settings
from .limits import draw_index, draw_limits

STREAM = "S"
SOURCE = "source"
ACKS = f"overlay.{STREAM}.acks"
REPLIES = "overlay.replies"
SHARDS = "overlay.shard."
"""How the transactional ids of shards begin, before their numbers."""
STATE = "overlay.state"
INDEX = f"overlay.{STREAM}.index"
KEYS = 5
"""Different keys of source records: `k0`, `k1`, ... A record's subject is `s.` and its key."""
STORM_S = 60.0


class Kind(Enum):
    """What a mishap does."""

    KILL = "kill a worker"
    FREEZE = "freeze a worker"
    STOP = "stop workers"
    RESTART = "restart a broker"
    LAPSE = "let the controller miss a broker's heartbeats"
    MOVE = "move a leader"
    PART = "part a worker from brokers"
    JUMP = "set a worker's clock"
    LEAVE = "kill a reader"
    STALL = "freeze a reader"
    SLEEP = "freeze a worker for minutes or hours"
    REFUSE = "refuse records for a topic"
    NO_LEADER = "take the leader away from a partition"
    TIGHTEN = "let an output take small batches only"
    GROW = "add partitions to a topic"
    EXPIRE = "delete the oldest records of the source"
    FORGET = "delete the oldest acks"
    COMPACT = "compact the service's own topics"
    RECREATE = "delete a topic, and perhaps create it again"
    CUT = "lose the end of the source"
    CUT_ACKS = "lose the end of the ack topic"
    CUT_OUTPUT = "lose the end of an output"
    CUT_CONTROL = "lose the end of the control topic"
    CUT_STATE = "lose the end of a shard's state"
    CUT_INDEX = "lose the end of the index"
    CUT_LETTERS = "lose the end of a dead-letter topic"
    BLINK = "end a transaction while partitions of it have no leader"
    RENEW = "delete the source and create it again"
    EDIT = "change a consumer's file"
    REPOLICY = "change the ack policy in a consumer's file"
    REMOVE = "remove a consumer's file for a while"
    ADD = "add a consumer's file"
    PAUSE = "pause a consumer"
    UPDATE = "update a consumer by request"


@dataclass(frozen=True, slots=True)
class Mishap:
    """Something that goes wrong `at` seconds after the storm began. `seed`: of what is drawn when it happens."""

    at: float
    kind: Kind
    seed: int

    def __str__(self) -> str:
        return f"{self.at:5.1f} s: {self.kind.value}"


@dataclass(frozen=True, slots=True)
class Order:
    """A request to create a consumer, or to delete it, sent `at` seconds after the storm began."""

    at: float
    name: str
    creates: bool


class Deed(Enum):
    """What a reader does about a delivery."""

    ACK = "ack"
    TWICE = "ack twice"
    LATE = "ack late"
    SYNC = "ack and want an answer"
    RANGE = "ack in a range"
    BEYOND = "ack in a range that goes beyond what was delivered"
    SILENCE = "say nothing"
    NAK = "nak"
    DELAY = "nak with a delay"
    PROGRESS = "say that it is in progress, then ack"
    TERM = "term"


_EXPLICIT_DEEDS = tuple(deed for deed in Deed if deed is not Deed.BEYOND)
_ALL_DEEDS = (Deed.ACK, Deed.TWICE, Deed.LATE, Deed.SYNC, Deed.SILENCE)
"""What readers of consumers with `ack_policy: all` do."""
SHARING = 0.3
"""Share of histories in which consumers without acks share an output topic."""
LOST_ANSWERS = 0.03
"""Share of answers that get lost in histories where that happens most: enough for one batch to lose several."""


@dataclass(frozen=True, slots=True)
class Consumer:
    """A consumer. `config`: its file. `readers`: processes that ack its deliveries, 0 where none are wanted."""

    name: str
    config: Mapping[str, Any]
    keys: frozenset[bytes]
    readers: int = 0
    deeds: Mapping[Deed, float] = field(default_factory=dict)
    """How often readers do what."""

    def __str__(self) -> str:
        deeds = ", ".join(f"{deed.value}: {share:.2f}" for deed, share in self.deeds.items() if share)
        return f"{dict(self.config)}" + (f"; {self.readers} readers ({deeds})" if self.readers else "")

    @property
    def output(self) -> str:
        """The topic where its deliveries are; of a consumer that is pulled from, where they are asked to."""
        return str(self.config.get("deliver_subject", f"{REPLIES}.{self.name}"))

    @property
    def is_pulled(self) -> bool:
        return "deliver_subject" not in self.config

    @property
    def letters(self) -> str:
        """The topic of its dead letters, empty if it has none."""
        return str(self.config.get("dead_letter", ""))

    @property
    def buries(self) -> bool:
        """Whether what its output can never take gets a dead letter."""
        return "on_undeliverable" in self.config

    @property
    def acks(self) -> bool:
        return self.readers > 0

    @property
    def is_exact(self) -> bool:
        return bool(self.config["delivery"] == "exactly_once")

    @property
    def policy(self) -> str:
        return str(self.config["ack_policy"])


def select(consumer: Consumer, numbers: Sequence[int]) -> Consumer:
    """Return a consumer that wants the keys of these numbers instead of its own."""
    config = {name: value for name, value in consumer.config.items() if name != "filter_subjects"}
    if len(numbers) < KEYS:
        config["filter_subjects"] = [f"s.k{number}" for number in sorted(numbers)]
    return replace(consumer, config=config, keys=frozenset(b"k%d" % number for number in numbers))


@dataclass(frozen=True, slots=True)
class Plan:
    """What a seed stands for."""

    brokers: int
    partitions: int
    workers: int
    shards: int
    ack_partitions: int
    burst: int
    pause_s: float
    faults: Faults
    consumers: tuple[Consumer, ...]
    mishaps: tuple[Mishap, ...]
    traps: float
    """How often a worker is killed or frozen while a request that matters is under way."""
    orders: tuple[Order, ...]
    """What an operator asks for. A consumer that is created takes everything, without acks."""
    limits: Mapping[str, int]
    """Constants of the product that are smaller, by full name (limits.py)."""
    index: Mapping[str, Any]
    """The section `index` of the stream's file."""
    settings: Settings = field(default_factory=Settings)
    """How long brokers take for what they do among themselves."""
    begins_s: float = 10.0
    """When the faults begin: perhaps before the topics of the overlay are there."""
    storm_s: float = STORM_S
    """How long they last, and how long producers write."""

    def __str__(self) -> str:
        """Return one line for each thing that the plan has."""
        kept = (field for field in fields(self) if field.name not in ("consumers", "mishaps"))
        lines = [f"{field.name}: {getattr(self, field.name)}" for field in kept]
        return "\n".join([*lines, *map(str, self.consumers), *map(str, self.mishaps)])

    @property
    def has_jumps(self) -> bool:
        return any(each.kind is Kind.JUMP for each in self.mishaps)

    @property
    def tells_times(self) -> bool:
        """Whether the timestamps of deliveries can be compared with those of acks and answers."""
        return self.settings.stamps or not self.has_jumps

    @property
    def loses_acks(self) -> bool:
        """Whether acks may go before the service has read them."""
        return any(each.kind in (Kind.FORGET, Kind.RECREATE, Kind.CUT_ACKS) for each in self.mishaps)

    @property
    def loses_requests(self) -> bool:
        """Whether the control topic may lose what requests asked for."""
        return any(each.kind is Kind.CUT_CONTROL for each in self.mishaps)

    @property
    def loses_sequences(self) -> bool:
        """Whether the ledger may lose rounds, so that its sequences begin at 1 again."""
        return any(each.kind in (Kind.CUT_INDEX, Kind.BLINK) for each in self.mishaps)

    @property
    def has_requests(self) -> bool:
        """Whether requests are sent to the service, by operators or by the judge."""
        return bool(self.orders) or any(each.kind in (Kind.PAUSE, Kind.EDIT, Kind.REPOLICY) for each in self.mishaps)

    @classmethod
    def draw(cls, seed: int) -> Plan:
        """Return the plan of a seed. About a quarter of all histories leaves out each kind of fault, and most histories each
        kind of change."""
        chance = random.Random(seed)
        extra = random.Random(f"{seed} extra")  # apart, so that histories without extras stay as they are
        changes = random.Random(f"changes of {seed}")
        losses = random.Random(f"losses of {seed}")
        further = random.Random(f"further losses of {seed}")
        own = random.Random(f"losses of the service's own topics of {seed}")
        sharing = random.Random(f"shared outputs of {seed}")

        def rate(most: float) -> float:
            return 0.0 if chance.random() < 0.25 else chance.random() * most

        brokers = chance.choice((1, 3))
        latency_s = chance.choice(((0.0002, 0.002), (0.001, 0.03), (0.01, 0.3)))
        consumers = tuple(_draw_consumer(chance, extra, number) for number in range(chance.choice((1, 2, 2, 3))))
        has_readers = any(each.readers for each in consumers)
        rates = {
            Kind.KILL: rate(4),
            Kind.FREEZE: rate(3),
            Kind.STOP: rate(2),
            Kind.RESTART: rate(2),
            Kind.MOVE: rate(3) if brokers > 1 else 0.0,
            Kind.PART: rate(2),
            Kind.JUMP: rate(2),
            Kind.LEAVE: rate(3) if has_readers else 0.0,
            Kind.STALL: rate(2) if has_readers else 0.0,
        }
        lost = extra.choice((0.0, 0.0, 0.0, 0.0, LOST_ANSWERS))
        workers = extra.choice((2, 2, 2, 2, 3, 4))
        slept = _draw_mishaps(extra, {Kind.SLEEP: 1.0 if extra.random() < 0.04 else 0.0})[:1]
        change_rates, loss_rates = _draw_change_rates(changes), _draw_loss_rates(losses)
        further_mishaps = _draw_mishaps(further, _draw_further_rates(further, loss_rates))
        is_reset = change_rates[Kind.CUT] > 0 or change_rates[Kind.RENEW] > 0
        loses_control = loss_rates[Kind.CUT_CONTROL] > 0 or Kind.CUT_CONTROL in _list_kinds(further_mishaps)
        own_mishaps = _draw_own_mishaps(own, change_rates | loss_rates, may_reset=not is_reset and not loses_control)
        own_kinds = _list_kinds(own_mishaps)
        if change_rates[Kind.TIGHTEN]:
            consumers = tuple(_let_bury(changes, consumer) for consumer in consumers)
        if sharing.random() < SHARING:
            consumers = _share_output(consumers)
        return cls(
            brokers=brokers,
            partitions=chance.choice((1, 1, 2, 3)),
            workers=workers,
            shards=chance.choice((1, 2, 3)),
            ack_partitions=chance.choice((1, 1, 2)),
            burst=chance.choice((1, 10, 50)),
            pause_s=chance.choice((2.0, 5.0)),
            faults=Faults(
                cut_before=rate(0.01),
                cut_after=max(rate(0.01), lost),
                stalled=rate(0.003),
                slow=rate(0.01),
                slow_s=(0.1, 5.0),
                latency_s=latency_s,
            ),
            consumers=consumers,
            mishaps=_merge(
                _draw_mishaps(chance, rates),
                slept,
                _draw_mishaps(changes, change_rates),
                _draw_mishaps(losses, loss_rates),
                further_mishaps,
                own_mishaps,
            ),
            traps=rate(0.05),
            # the judge of what operators create does not know of resets
            orders=_draw_orders(chance)[: 0 if is_reset or own_kinds & _LOSES_REQUESTED else None],
            limits=draw_limits(chance),
            index=draw_index(chance),
            settings=Settings(
                failover_s=chance.choice((0.0, 0.0, 1.0, 9.0)),
                replication_s=chance.choice((0.0, 0.0, 0.005, 0.2)),
                metadata_s=chance.choice((0.0, 0.0, 0.05, 1.0)),
                # not slower: small limits may have a transaction for each message
                marker_s=chance.choice((0.01, 0.01, 0.02, 0.05)),
                stamps=changes.random() < 0.5,
                loses_markers_of=SHARDS if Kind.BLINK in own_kinds else (),
            ),
            begins_s=chance.choice((10.0, 10.0, 0.5)),
        )


def _draw_mishaps(chance: random.Random, rates: Mapping[Kind, float]) -> list[Mishap]:
    """Return when these mishaps happen, of which there are so many a minute."""
    found: list[Mishap] = []
    for kind, a_minute in rates.items():
        at = chance.expovariate(a_minute / 60) if a_minute else STORM_S
        while at < STORM_S:
            found.append(Mishap(at, kind, chance.getrandbits(32)))
            at += chance.expovariate(a_minute / 60)
    return found


def _merge(*timetables: Iterable[Mishap]) -> tuple[Mishap, ...]:
    return tuple(sorted((mishap for each in timetables for mishap in each), key=lambda mishap: mishap.at))


def _draw_change_rates(chance: random.Random) -> dict[Kind, float]:
    """Return how often a minute topics and config change. A history has few kinds of change."""

    def rate(share: float, most: float) -> float:
        return chance.random() * most if chance.random() < share else 0.0

    return {
        Kind.REFUSE: rate(0.4, 3),
        Kind.NO_LEADER: rate(0.15, 2),
        Kind.TIGHTEN: rate(0.2, 3),
        Kind.GROW: rate(0.2, 3),
        Kind.EXPIRE: rate(0.15, 8),
        Kind.FORGET: rate(0.1, 4),
        Kind.COMPACT: rate(0.25, 6),
        Kind.RECREATE: rate(0.15, 3),
        Kind.CUT: rate(0.12, 2),
        Kind.RENEW: rate(0.06, 2),
        Kind.CUT_ACKS: rate(0.1, 2),
        Kind.EDIT: rate(0.2, 4),
        Kind.REMOVE: rate(0.2, 3),
        Kind.ADD: rate(0.1, 3),
        Kind.PAUSE: rate(0.2, 4),
        Kind.UPDATE: rate(0.3, 4),
    }


def _draw_loss_rates(chance: random.Random) -> dict[Kind, float]:
    """Return how often a minute further logs lose their end, and files say what is refused."""
    policy = chance.random() < 0.5
    return {
        Kind.CUT_OUTPUT: chance.random() * 3 if chance.random() < 0.12 else 0.0,
        Kind.CUT_CONTROL: chance.random() * 3 if chance.random() < 0.2 and not policy else 0.0,
        Kind.REPOLICY: chance.random() * 4 if chance.random() < 0.2 and policy else 0.0,
        Kind.LAPSE: chance.random() * 3 if chance.random() < 0.3 else 0.0,
    }


def _draw_further_rates(chance: random.Random, losses: Mapping[Kind, float]) -> dict[Kind, float]:
    """Return how often a minute what happens that is drawn last. `losses`: what is drawn already."""
    rates: dict[Kind, float] = {}
    # files that say what is refused, while the control topic loses what they said before
    for kind, other in ((Kind.CUT_CONTROL, Kind.REPOLICY), (Kind.REPOLICY, Kind.CUT_CONTROL)):
        rates[other] = chance.random() * 4 if losses[kind] and not losses[other] and chance.random() < 0.3 else 0.0
    return rates


_UNLIKE_BLINK = (
    *(Kind.CUT_STATE, Kind.CUT_INDEX, Kind.CUT_LETTERS, Kind.CUT_OUTPUT),
    *(Kind.REPOLICY, Kind.NO_LEADER, Kind.EXPIRE),
)
"""What does not happen where markers get lost. An operator who aborts what such losses leave open would abort what the product
is about to end. A takeover passes over an output that has no leader for ten seconds. Retention of a history would take rounds
of the ledger whose transaction is open, which are far younger than Kafka's retention takes."""
_LOSES_REQUESTED = {Kind.CUT_STATE, Kind.CUT_INDEX, Kind.BLINK}
"""Where no consumers are made by request: their judge does not know of states that go back, nor of resets."""


def _list_kinds(mishaps: Iterable[Mishap]) -> set[Kind]:
    return {mishap.kind for mishap in mishaps}


def _draw_own_mishaps(chance: random.Random, others: dict[Kind, float], *, may_reset: bool) -> list[Mishap]:
    """Return when the service's own topics lose their end, or the markers of transactions.

    `others`: how often a minute other things happen. `may_reset`: whether the state may go back, and the stream be reset, for
    such a loss alone: the judge could not tell that from what an operator's other resets and the control topic have lost.
    """

    def rate(share: float, most: float) -> float:
        return chance.random() * most if chance.random() < share else 0.0

    rates = {
        Kind.CUT_STATE: rate(0.1, 3),
        Kind.CUT_INDEX: rate(0.05, 2),
        Kind.CUT_LETTERS: rate(0.05, 3),
        Kind.BLINK: rate(0.08, 6),
    }
    # retention takes rounds of the index by their offsets, which a loss of its end changes
    if not may_reset or rates[Kind.CUT_STATE] or others[Kind.EXPIRE]:
        rates[Kind.CUT_INDEX] = 0.0
    if not may_reset:
        rates[Kind.CUT_STATE] = 0.0
    if not may_reset or any((others | rates)[kind] for kind in _UNLIKE_BLINK):
        rates[Kind.BLINK] = 0.0
    return _draw_mishaps(chance, rates)


def _let_bury(chance: random.Random, consumer: Consumer) -> Consumer:
    """Have half of the consumers that are pushed to write dead letters of what their output can never take."""
    if consumer.is_pulled or chance.random() < 0.5:
        return consumer
    letters = consumer.letters or f"dead-{consumer.name}"
    return replace(consumer, config={**consumer.config, "dead_letter": letters, "on_undeliverable": "dead_letter"})


def _share_output(consumers: Sequence[Consumer]) -> tuple[Consumer, ...]:
    """Have all consumers without acks write to the output of the first of them. If their files differ in nothing else but the
    filters, their deliveries are in the same batches."""
    plain = [each for each in consumers if not each.acks and not each.is_pulled]
    shared = {key: plain[0].config[key] for key in ("deliver_subject", "output")} if plain else {}
    return tuple(replace(each, config={**each.config, **shared}) if each in plain else each for each in consumers)


def _draw_orders(chance: random.Random) -> tuple[Order, ...]:
    """Return orders for no consumer in half of all histories, else for one or two; each is created, deleted and so on."""
    found: list[Order] = []
    for number in range(chance.choice((0, 0, 1, 2))):
        times = sorted(chance.random() * STORM_S for _ in range(chance.choice((1, 2, 3, 4))))
        found += [Order(at, f"r{number}", turn % 2 == 0) for turn, at in enumerate(times)]
    return tuple(found)


def _draw_consumer(chance: random.Random, extra: random.Random, number: int) -> Consumer:
    name = f"c{number}"
    config: dict[str, Any] = {
        "stream": STREAM,
        "durable_name": name,
        "deliver_subject": f"out-{number}",
        "output": {"partitions": chance.choice((1, 2))},
        "ack_policy": "none",
        "delivery": "exactly_once",
    }
    numbers = chance.sample(range(KEYS), chance.choice((1, 2, KEYS, KEYS, KEYS)))
    plain = select(Consumer(name, config, frozenset()), numbers)
    if chance.random() < 0.4:
        return plain
    config, keys = {**plain.config}, plain.keys
    is_pulled = chance.random() < 0.25
    policy = "explicit" if is_pulled else chance.choice(("explicit", "explicit", "explicit", "all"))
    config |= {
        "ack_policy": policy,
        "ack_wait": chance.choice(("2s", "5s", "10s")),
        "delivery": chance.choice(("exactly_once", "exactly_once", "at_least_once")),
        "interest": chance.choice(("group", "always")),
        "max_ack_pending": chance.choice((1000, 50)),
        "max_deliver": chance.choice((-1, -1, 2, 4)),
        "dead_letter": f"dead-{number}",
    }
    if is_pulled:
        # what is lost on its way to the one who pulled counts as delivered
        config["max_deliver"] = -1
        for unfit in ("deliver_subject", "output", "interest"):
            del config[unfit]
    deeds = {
        deed: 0.0 if chance.random() < 0.3 else chance.random()
        for deed in (_EXPLICIT_DEEDS if policy == "explicit" else _ALL_DEEDS)
    }
    deeds[Deed.ACK] = 2.0
    if policy == "explicit":
        deeds[Deed.BEYOND] = extra.choice((0.0, 0.0, 1.0))
    return Consumer(name, config, keys, chance.choice((1, 1, 2)), deeds)
