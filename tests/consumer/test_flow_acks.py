"""`ack_policy: flow_control` against the real nats-server: what answers to flow control requests ack, and when one is asked.

Servers (2.14 and later) take the acks of this policy from two headers of the answer, Nats-Last-Consumer and Nats-Last-Stream.
The machine is told the consumer sequence alone, since the stream sequence follows from it. Seen on 2.15.1: a request is sent
when max_ack_pending is reached; an answer that names nothing frees nothing, and the next heartbeat comes with a new
request; acks by token count for nothing.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import nats
import pytest

from overlay.consumer.acks import Flaw, Token
from overlay.consumer.effects import Refuse, Status
from overlay.consumer.events import Acked, FlowAnswered
from tests.consumer.driver import SECOND, Driver, configure, some
from tests.consumer.jetstream import ANSWER_S, Peer, serve, settle

SEED = int(os.environ.get("OVERLAY_SEED", "0")) or random.SystemRandom().randrange(1 << 32)
MESSAGES = 40
FIELDS: dict[str, Any] = {"ack_policy": "flow_control", "flow_control": True, "idle_heartbeat": SECOND}


def make_driver(room: int) -> Driver:
    return Driver(configure(ack_wait=0, max_ack_pending=room, **FIELDS))


def find_requests(driver: Driver) -> list[str]:
    return [status.answer_to for status in driver.all(Status) if status.answer_to]


def answer(driver: Driver, up_to: int) -> None:
    driver.do(FlowAnswered(find_requests(driver)[-1], up_to))


def describe(driver: Driver) -> tuple[int, ...]:
    window = driver.machine.state.window
    pairs = window.delivered, window.floor
    return (*(part for pair in pairs for part in (pair.consumer, pair.stream)), window.pending.count)


async def test_the_server_does_the_same(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    with serve(tmp_path) as address:
        client = await nats.connect(address, connect_timeout=ANSWER_S)
        for number in range(12):
            await compare(client, f"F{number}", rng.randint(1, 12), rng)
        await client.close()


async def compare(client: Any, name: str, room: int, rng: random.Random) -> None:
    """Answers of all kinds until everything is delivered."""
    config = {"name": "c", "durable_name": "c", "deliver_subject": f"_D.{name}", "max_ack_pending": room, **FIELDS}
    peer, driver = Peer(client, name, config), make_driver(room)
    await peer.start()
    driver.offer(MESSAGES)
    for _ in range(MESSAGES):
        await peer.publish("a", b"x" * 100)
    while True:
        await agree(peer, driver)
        floor, delivered = driver.machine.state.window.floor.consumer, driver.machine.state.window.delivered.consumer
        if delivered == MESSAGES and rng.random() < 0.3:
            break
        if (
            len(find_requests(driver)) == 0
            or not driver.machine.state.pace.flow
            or not driver.machine.state.pace.flow.subject
        ):
            break  # nothing is asked any more: what is left waits for messages to come
        up_to = rng.randint(floor + 1, delivered)
        token = Token(name, "c", 1, up_to, up_to)
        await peer.ack(token, b"+ACK")
        driver.do(Acked(some(up_to), up_to))
        headers = {"Nats-Last-Consumer": str(up_to), "Nats-Last-Stream": str(up_to)}
        await client.publish(peer.flows[-1], b"", headers=headers)
        answer(driver, up_to)
    await peer.stop()


async def agree(peer: Peer, driver: Driver) -> None:
    async def is_same() -> bool:
        found = (await peer.info())[:5]
        return found == describe(driver) and len(peer.flows) == len(find_requests(driver))

    assert await settle(is_same, ANSWER_S), (
        SEED,
        (await peer.info())[:5],
        describe(driver),
        peer.flows,
        find_requests(driver),
    )


def test_an_answer_that_names_nothing_frees_nothing() -> None:
    driver = make_driver(3)
    driver.offer(9)
    assert len(driver.sent()) == 3 and len(find_requests(driver)) == 1
    answer(driver, 0)
    assert len(driver.sent()) == 3 and len(find_requests(driver)) == 1
    driver.pass_time(SECOND)
    assert len(find_requests(driver)) == 2  # with a heartbeat, which is also how it goes on after a restart
    answer(driver, 2)
    assert [row[0] for row in driver.sent()] == [1, 2, 3, 4, 5]
    driver.pass_time(SECOND)
    assert dict(driver.all(Status)[-1].text.headers)["Nats-Consumer-Stalled"] == find_requests(driver)[-1]


def test_what_was_not_delivered_cannot_be_acked() -> None:
    driver = make_driver(3)
    driver.offer(9)
    answer(driver, 4)
    assert driver.all(Refuse) == [Refuse(Flaw.FUTURE)] and len(driver.sent()) == 3
    answer(driver, 3)
    assert len(driver.sent()) == 6
    driver.do(FlowAnswered(find_requests(driver)[0], 6))
    assert len(driver.sent()) == 6  # an answer to a request that was answered


def test_a_request_says_what_came_before_it() -> None:
    driver = make_driver(3)
    driver.offer(9)
    (request,) = driver.all(Status)
    assert dict(request.text.headers) == {"Nats-Last-Consumer": "3", "Nats-Last-Stream": "3"}


@pytest.mark.parametrize("policy", ["none", "explicit", "all"])
def test_other_policies_take_no_acks_from_answers(policy: str) -> None:
    driver = Driver(configure(ack_policy=policy, flow_control=True, idle_heartbeat=SECOND))
    driver.offer(40, size=100_000)
    window = driver.machine.state.window
    assert window.pending.count == (0 if policy == "none" else len(driver.sent()))
    answer(driver, 5)
    assert window.pending.count == (0 if policy == "none" else len(driver.sent()))
    assert dict(driver.all(Status)[0].text.headers) == {}
