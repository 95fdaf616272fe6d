"""Whatever happened, a machine made of the log goes on as the one that wrote it."""

from __future__ import annotations

import json
import random
import struct

import numpy as np
import pytest

from overlay.consumer.events import Nakked, Paused, Progressed, RangeAcked, Removed, Termed, Ticked
from overlay.consumer.machine import Machine
from overlay.consumer.pending import COLUMNS
from overlay.consumer.snapshot import _HEAD, MachineRecord, SnapshotUnreadable, decode
from overlay.consumer.state import begin
from overlay.units import parse_time
from tests.consumer.driver import SECOND, Driver, configure, some
from tests.support.large_numbers import enlarge

CONFIG = configure(ack_wait=5 * SECOND, max_deliver=4, max_ack_pending=40, sample_freq="30")


def act(driver: Driver, chance: random.Random) -> None:
    """One random thing that happens to a consumer."""
    sequence = chance.randint(1, max(driver.machine.state.window.delivered.stream, 1))
    consumer_seq = driver.machine.state.window.delivered.consumer
    match chance.randrange(8):
        case 0 | 1:
            driver.offer(chance.randint(1, 20))
        case 2:
            driver.ack(*{chance.randint(1, sequence) for _ in range(4)})
        case 3 if consumer_seq:
            driver.do(Nakked(sequence, consumer_seq, 1, chance.choice([None, 2 * SECOND])))
        case 4:
            driver.do(Progressed(some(sequence)))
        case 5 if consumer_seq:
            driver.do(Termed(sequence, consumer_seq, 1))
        case 6 if consumer_seq:
            first = chance.randint(1, consumer_seq)
            driver.do(RangeAcked(((first, min(first + 3, consumer_seq)),)))
        case _:
            driver.pass_time(chance.randint(1, 6) * SECOND)


def resume(log: list[MachineRecord], driver: Driver) -> Driver:
    """Another driver at the same time, with a machine made of the log, and the offers that were not delivered."""
    twin = Driver(CONFIG, log)
    twin.now = driver.now
    twin.last = twin.machine.state.position
    twin.offer(driver.last - twin.last)
    twin.do(Ticked())
    return twin


def tell(machine: Machine) -> tuple[object, ...]:
    window, pending = machine.state.window, machine.state.window.pending
    rows = np.flatnonzero(pending.view("state") != 0)
    columns = [pending.view(name)[rows].tolist() for name in COLUMNS if name != "deadline"]
    return window.delivered, window.floor, pending.redelivered, machine.state.sampling.rest, columns


def test_with_another_deliver_subject_all_that_is_pending_goes_out_again() -> None:
    driver, log = Driver(CONFIG), list[MachineRecord]()
    driver.offer(4)
    driver.ack(2)
    driver.do(Nakked(3, 3, 1, 60 * SECOND))
    log.append(decode(driver.machine.take_delta()))
    assert resume(log, driver).sent() == []
    other = CONFIG.model_copy(update={"deliver_subject": "other"})
    moved = Machine(begin(other, driver.now), log)
    assert moved.state.window.find_next_up(10)[0].tolist() == [1, 3, 4]
    # it is written down with the new one, and that happens once
    log.append(decode(moved.take_delta()))
    again = Machine(begin(other, driver.now), log)
    assert again.state.window.find_next_up(10)[0].tolist() == [1, 3, 4]
    assert again.state.window.take_changes().rows.size == 0


@pytest.mark.parametrize("seed", range(12))
def test_a_log_makes_the_same_machine(seed: int) -> None:
    chance = random.Random(seed)
    driver, log = Driver(CONFIG), list[MachineRecord]()
    for step in range(120):
        act(driver, chance)
        if step % 3 == 0:
            take = driver.machine.take_checkpoint if chance.random() < 0.1 else driver.machine.take_delta
            log.append(decode(take()))
    log.append(decode(driver.machine.take_delta()))
    driver.do(Ticked())
    twin = resume(log, driver)
    assert tell(twin.machine) == tell(driver.machine)
    first, second = len(driver.sent()), len(twin.sent())
    for other in (driver, twin):
        chance = random.Random(seed + 1)
        for _ in range(40):
            act(other, chance)
    assert twin.sent()[second:] == driver.sent()[first:]
    assert tell(twin.machine) == tell(driver.machine)


def test_a_range_names_redeliveries_from_before() -> None:
    driver, log = Driver(CONFIG), list[MachineRecord]()
    driver.offer(2)
    driver.pass_time(10 * SECOND)
    log.append(decode(driver.machine.take_delta()))
    twin = resume(log, driver)
    twin.do(RangeAcked(((3, 3),)))
    assert twin.machine.state.window.pending.find(some(1)).size == 0
    assert twin.machine.state.window.pending.count == 1


def test_a_pause_lasts() -> None:
    driver, log = Driver(CONFIG), list[MachineRecord]()
    driver.do(Paused(driver.now + SECOND))
    log.append(decode(driver.machine.take_checkpoint()))
    assert resume(log, driver).info().pause_remaining == SECOND


def test_what_is_written_follows_what_changed() -> None:
    driver = Driver(configure(max_ack_pending=-1))
    driver.offer(100_000)
    assert len(driver.machine.take_delta()) > 1_000_000
    driver.ack(*range(1, 11))
    driver.do(Removed(sequences=some(50)))
    assert len(driver.machine.take_delta()) < 1_000
    assert len(driver.machine.take_delta()) < 400


def test_what_came_and_went_between_two_records_is_small() -> None:
    driver = Driver(configure())
    driver.machine.take_delta()
    driver.offer(500)
    driver.ack(*range(1, 501))
    assert len(driver.machine.take_delta()) < 500 * 8 + 400


def test_newer_and_damaged_records_are_refused() -> None:
    driver = Driver(CONFIG)
    driver.offer(3)
    value = driver.machine.take_delta()
    assert decode(value).rows["sequence"].tolist() == [1, 2, 3]
    with pytest.raises(SnapshotUnreadable, match="version 2"):
        decode(value[:3] + struct.pack("<B", 2) + value[4:])
    for damaged in (b"", b"OVC", b"XXX" + value[3:], value[:-1], value + b"x", value[:8] + b"[" + value[9:]):
        with pytest.raises(SnapshotUnreadable):
            decode(damaged)


def test_a_number_of_more_than_64_bits_is_refused() -> None:
    driver = Driver(CONFIG)
    driver.offer(3)
    value = driver.machine.take_delta()
    magic, version, size = _HEAD.unpack_from(value)
    head, rest = value[_HEAD.size : _HEAD.size + size], value[_HEAD.size + size :]
    for large in enlarge(head):
        if json.loads(large) | {"paused_until": 0, "sampled": 0} != json.loads(head):
            with pytest.raises(SnapshotUnreadable):
                decode(_HEAD.pack(magic, version, len(large)) + large + rest)


def test_a_pause_up_to_the_last_year_is_read() -> None:
    driver = Driver(CONFIG)
    until = parse_time("9999-12-31T23:59:59Z")
    assert until > 1 << 63
    driver.do(Paused(until))
    driver.offer(3)
    again = Driver(CONFIG, [decode(driver.machine.take_delta())])
    assert again.machine.state.paused_until == until
