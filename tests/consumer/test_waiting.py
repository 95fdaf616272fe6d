"""Pull behaviour through the machine: what docs/jetstream.md#pull lists."""

from __future__ import annotations

from typing import Any

from overlay.consumer.effects import Advise, Advisory, Deliver, Status
from overlay.consumer.events import Paused, Pulled, Ticked, Unreachable
from overlay.consumer.pulls import PullRequest
from tests.consumer.driver import SECOND, Driver, configure


def puller(messages: int = 0, **fields: Any) -> Driver:
    driver = Driver(configure(pull=True, **fields))
    if messages:
        driver.offer(messages)
    return driver


def pull(driver: Driver, reply: str, batch: int = 1, expires: int = 0, **fields: Any) -> None:
    pin = fields.pop("pin", "")
    driver.do(Pulled(PullRequest(batch, expires, **fields), reply, pin))


def got(driver: Driver, reply: str) -> list[int]:
    return [seq for effect in driver.all(Deliver) if effect.reply == reply for seq in effect.sequences.tolist()]


def headers(driver: Driver, reply: str) -> dict[str, str]:
    return dict(next(s.text.headers for s in driver.all(Status) if s.reply == reply))


def test_one_message_a_turn() -> None:
    driver = puller()
    pull(driver, "a", 3)
    pull(driver, "b", 2)
    driver.offer(5)
    assert (got(driver, "a"), got(driver, "b")) == ([1, 3, 5], [2, 4])
    assert driver.all(Status) == []


def test_expiry_tells_what_was_left() -> None:
    driver = puller(2)
    pull(driver, "a", 5, SECOND)
    driver.pass_time(SECOND)
    assert driver.statuses("a") == [(408, "Request Timeout")]
    assert headers(driver, "a") == {"Nats-Pending-Messages": "3", "Nats-Pending-Bytes": "0"}


def test_no_wait() -> None:
    driver = puller()
    pull(driver, "a", no_wait=True)
    assert driver.statuses("a") == [(404, "No Messages")]
    driver.offer(2)
    pull(driver, "b", 5, no_wait=True)
    assert (got(driver, "b"), driver.statuses("b")) == ([1, 2], [(404, "No Messages")])


def test_no_wait_that_expires_takes_what_comes() -> None:
    driver = puller()
    pull(driver, "a", 5, SECOND, no_wait=True)
    assert driver.statuses("a") == []
    driver.offer(2)
    assert (got(driver, "a"), driver.statuses("a")) == ([1, 2], [(404, "No Messages")])


def test_no_wait_at_max_ack_pending_hangs() -> None:
    driver = puller(5, max_ack_pending=1)
    pull(driver, "a", 1)
    pull(driver, "b", 1, no_wait=True)
    assert driver.statuses("b") == []
    driver.ack(1)
    assert got(driver, "b") == [2]


def test_no_wait_that_got_some_ends_with_another_at_max_ack_pending() -> None:
    """Seen with nats-server 2.15.1: what has got nothing stays, and who is alone waits to its own end."""
    driver = puller(50, max_ack_pending=2, ack_wait=3 * SECOND)
    pull(driver, "a", 4, 5 * SECOND)
    pull(driver, "b", 4, 6 * SECOND, no_wait=True)
    pull(driver, "c", 4, 7 * SECOND, no_wait=True)
    driver.pass_time(3 * SECOND)
    assert (got(driver, "a"), got(driver, "b"), got(driver, "c")) == ([1, 2, 1], [2], [])
    driver.pass_time(2 * SECOND)
    assert (driver.statuses("a"), driver.statuses("b")) == ([(408, "Request Timeout")], [(404, "No Messages")])
    assert driver.statuses("c") == []
    driver.pass_time(2 * SECOND)
    assert (got(driver, "c"), driver.statuses("c")) == ([1, 2], [(408, "Request Timeout")])


def test_no_wait_behind_others() -> None:
    driver = puller(2, max_ack_pending=1)
    pull(driver, "a", 3)
    pull(driver, "b", 1, no_wait=True)
    assert driver.statuses("b") == [(408, "Requests Pending")]


def test_more_to_come_is_no_end() -> None:
    driver = Driver(configure(pull=True))
    driver.offer(1, beyond=3)
    pull(driver, "a", 2, no_wait=True)
    assert driver.statuses("a") == []
    driver.offer(3)
    assert (got(driver, "a"), driver.statuses("a")) == ([1, 2], [])


def test_a_pause_ends_what_does_not_wait() -> None:
    driver = puller(2)
    driver.do(Paused(driver.now + 9 * SECOND))
    pull(driver, "a", no_wait=True)
    pull(driver, "b", 1, SECOND)
    driver.pass_time(SECOND)
    assert driver.statuses("a") == [(404, "No Messages")]
    assert driver.statuses("b") == [(408, "Request Timeout")]


def test_max_bytes() -> None:
    driver = puller(5)
    token = len("$JS.ACK.S.c.1.1.1..4") + 19
    pull(driver, "a", 5, max_bytes=2 * (100 + token) + 50)
    assert got(driver, "a") == [1, 2]
    assert driver.statuses("a") == [(409, "Message Size Exceeds MaxBytes")]
    assert headers(driver, "a") == {"Nats-Pending-Messages": "3", "Nats-Pending-Bytes": "50"}


def test_a_batch_that_leaves_bytes() -> None:
    driver = puller(5)
    pull(driver, "a", 2, max_bytes=10_000)
    assert driver.statuses("a") == [(409, "Batch Completed")]


def test_heartbeats() -> None:
    driver = puller()
    pull(driver, "a", 2, 5 * SECOND, idle_heartbeat=SECOND)
    driver.pass_time(3 * SECOND + 1)
    driver.offer(1)
    driver.pass_time(SECOND // 2)
    assert driver.statuses("a") == [(100, "Idle Heartbeat")] * 3
    assert headers(driver, "a") == {"Nats-Last-Consumer": "0", "Nats-Last-Stream": "0"}


def test_max_waiting() -> None:
    driver = puller(max_waiting=1)
    pull(driver, "a", 1, SECOND)
    pull(driver, "b", 1)
    pull(driver, "c", 1, 8 * SECOND, idle_heartbeat=SECOND)
    assert (driver.statuses("b"), driver.statuses("c")) == ([(409, "Exceeded MaxWaiting")], [])
    driver.pass_time(2 * SECOND)
    pull(driver, "d", 1)
    assert driver.info().num_waiting == 1


def test_a_batch_of_none_waits_and_expires() -> None:
    driver = puller(3)
    pull(driver, "a", 0, SECOND)
    pull(driver, "b", 1)
    driver.pass_time(SECOND)
    assert (got(driver, "a"), got(driver, "b"), headers(driver, "a")["Nats-Pending-Messages"]) == ([], [1], "0")


def test_no_reply_no_request() -> None:
    driver = puller(1)
    pull(driver, "", 1)
    assert driver.seen[1:] == []
    assert driver.info().num_waiting == 0


def test_priorities() -> None:
    driver = puller(priority_policy="prioritized", priority_groups=("g",))
    for reply, priority in (("low", 5), ("high", 0), ("low2", 5)):
        pull(driver, reply, 2, group="g", priority=priority)
    driver.offer(4)
    assert (got(driver, "high"), got(driver, "low"), got(driver, "low2")) == ([1, 2], [3], [4])


def test_overflow() -> None:
    driver = puller(2, priority_policy="overflow", priority_groups=("g",))
    pull(driver, "a", 5, group="g", min_pending=3)
    assert got(driver, "a") == []
    driver.offer(2)
    assert got(driver, "a") == [1, 2]


def test_a_pinned_client_is_served_until_it_is_silent() -> None:
    driver = puller(priority_policy="pinned_client", priority_groups=("g",), priority_timeout=5 * SECOND)
    pull(driver, "a", 1, group="g", pin="P1")
    pull(driver, "b", 1, group="g", pin="P2")
    driver.offer(2)
    assert (got(driver, "a"), got(driver, "b")) == ([1], [])
    assert driver.all(Deliver)[0].pin == "P1"
    pull(driver, "a2", 1, group="g", id="P1")
    assert got(driver, "a2") == [2]
    pull(driver, "c", 1, group="g", id="other")
    assert driver.statuses("c")[0][0] == 423
    driver.offer(1)
    driver.pass_time(6 * SECOND)
    assert got(driver, "b") == [3]
    kinds = [advice.kind for advice in driver.all(Advise)]
    assert kinds == [Advisory.PINNED, Advisory.UNPINNED, Advisory.PINNED]


def test_only_named_addresses_are_dropped() -> None:
    """`t/0/1` is no head of `t/0/17`, and an address without a correlation is none of its partition's others."""
    driver = puller()
    for reply in ("t/0/1", "t/0/17", "t/0/", "t/1/1", "tt/0/1"):
        pull(driver, reply, expires=SECOND)
    driver.do(Unreachable(addresses=frozenset(("t/0/1",))))
    assert len(driver.machine.state.waiting) == 4
    driver.do(Unreachable(addresses=frozenset(("t/0/",))))
    assert len(driver.machine.state.waiting) == 3
    driver.do(Unreachable(heads=frozenset(("t/0/",))))
    assert len(driver.machine.state.waiting) == 2
    driver.do(Unreachable(heads=frozenset(("t/",))))
    driver.offer(1)
    assert got(driver, "tt/0/1") == [1]


def test_requests_that_are_held_back_are_given_nothing() -> None:
    """Others take the messages; whether one is held back no more is told."""
    driver = puller()
    pull(driver, "full/0/1", 2)
    pull(driver, "good/0/1", 1)
    assert not driver.machine.hold_back(["full/"])
    driver.offer(3)
    assert (got(driver, "full/0/1"), got(driver, "good/0/1")) == ([], [1])
    assert not driver.machine.hold_back(["full/", "good/"])
    assert driver.machine.hold_back([])
    driver.do(Ticked())
    assert got(driver, "full/0/1") == [2, 3]
