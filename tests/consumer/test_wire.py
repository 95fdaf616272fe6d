"""A consumer and a reader joined by a wire that loses, repeats and delays both messages and acks.

The reader acks what it gets and remembers it. However bad the wire was, once it is good again for long enough both sides
say the same: everything is acked, nothing is pending, and nothing whose ack arrived has gone out after that.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from overlay.consumer.acks import Ack, Garbage, Token, parse_ack, write_ranges
from overlay.consumer.effects import Deliver, Effect
from overlay.consumer.events import read_ack
from tests.consumer.driver import SECOND, Driver, configure, rows

MESSAGES = 60


@dataclass
class Wire:
    """Packets on their way: when they arrive, and what they are. `is_bad`: whether it loses, repeats and delays."""

    chance: random.Random
    is_bad: bool = True
    packets: list[tuple[int, tuple[bytes, bytes]]] = field(default_factory=list)

    def send(self, now: int, packet: tuple[bytes, bytes]) -> None:
        copies = self.chance.choice([0, 0, 1, 1, 1, 2]) if self.is_bad else 1
        for _ in range(copies):
            self.packets.append((now + (self.chance.randint(0, 8) * SECOND if self.is_bad else 0), packet))

    def take(self, now: int) -> list[tuple[bytes, bytes]]:
        arrived = [packet for at, packet in self.packets if at <= now]
        self.packets = [(at, packet) for at, packet in self.packets if at > now]
        if self.is_bad:
            self.chance.shuffle(arrived)
        return arrived


@dataclass
class Reader:
    """Acks one by one, naks now and then, and acks ranges of what it was given lately."""

    chance: random.Random
    seen: set[int] = field(default_factory=set)

    def read(self, token: Token) -> tuple[bytes, bytes]:
        self.seen.add(token.stream_seq)
        kind = self.chance.random()
        if kind < 0.2:
            return b"$JS.ACK.S.c", write_ranges([(token.consumer_seq, token.consumer_seq)])
        return str(token).encode(), b"-NAK" if kind < 0.3 else b"+ACK"


@pytest.mark.parametrize("seed", range(20))
def test_both_ends_agree_in_the_end(seed: int) -> None:
    chance = random.Random(seed)
    driver = Driver(configure(ack_wait=3 * SECOND, max_ack_pending=15))
    out, back, reader = Wire(chance), Wire(chance), Reader(chance)
    settled: set[int] = set()

    def carry(effects: list[Effect]) -> None:
        for effect in effects:
            for sequence, consumer_seq, deliveries in rows(effect) if isinstance(effect, Deliver) else ():
                assert sequence not in settled
                out.send(driver.now, (str(Token("S", "c", deliveries, sequence, consumer_seq)).encode(), b""))

    for step in range(400):
        out.is_bad = back.is_bad = step < 120
        if driver.last < MESSAGES:
            carry(driver.offer(1))
        carry(driver.pass_time(SECOND))
        for token, _ in out.take(driver.now):
            parsed = parse_ack(token, b"")
            assert isinstance(parsed, Ack)
            back.send(driver.now, reader.read(parsed.token))
        for packet in back.take(driver.now):
            pending = driver.machine.state.window.pending
            before = set(pending.view("sequence")[pending.find_pending(pending.find_up_to(MESSAGES))].tolist())
            ack = parse_ack(*packet)
            assert not isinstance(ack, Garbage)
            effects = driver.do(read_ack(ack))
            after = set(pending.view("sequence")[pending.find_pending(pending.find_up_to(MESSAGES))].tolist())
            settled |= before - after
            carry(effects)
    info = driver.info()
    assert reader.seen == settled == set(range(1, MESSAGES + 1))
    assert (info.num_ack_pending, info.ack_floor) == (0, info.delivered)
