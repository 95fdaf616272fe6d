"""One owner of a consumer after the other, for tests: machines made of what the former ones have written."""

from __future__ import annotations

import numpy as np

from overlay.consumer.acks import Token, parse_ack
from overlay.consumer.effects import Effect
from overlay.consumer.events import Offered, read_ack
from overlay.consumer.machine import Machine
from overlay.consumer.queues import Run
from overlay.consumer.snapshot import decode
from tests.consumer.driver import SECOND, Driver, configure, some

WAIT = 10 * SECOND
EXACT, AT_LEAST = "exactly_once", "at_least_once"


def restore(records: list[bytes], incarnation: str, now: int, **fields: object) -> Driver:
    """The next owner's machine."""
    stored = [decode(record) for record in records]
    driver = Driver(configure(ack_wait=WAIT, **fields), stored, incarnation=incarnation)
    driver.now = now
    driver.last = driver.machine.state.up_to
    return driver


def offer(driver: Driver, *sequences: int) -> None:
    driver.do(Offered(Run(some(*sequences), some(*sequences), some(*sequences) * 0 + 100), sequences[-1]))


def tell(driver: Driver, token: Token | bytes, body: bytes = b"+ACK", reply: str = "") -> list[Effect]:
    parsed = parse_ack(token if isinstance(token, bytes) else str(token).encode(), body)
    return driver.do(read_ack(parsed, reply))  # type: ignore[arg-type]


def list_pending(machine: Machine) -> list[int]:
    window = machine.state.window
    rows = window.pending.find_pending(np.arange(window.pending.end))
    return [int(sequence) for sequence in window.pending.view("sequence")[rows]]
