"""Lines: kept with their loops, closed with their holders, in whichever thread."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest

import overlay
from overlay.client.connection import KEPT, Connection, Connections
from tests.support.kafka import NewTopicFixture, produce_values


def run_together(lines: Connections, count: int) -> list[Connection]:
    """As many readings at once."""
    barrier, used = threading.Barrier(count), list[Connection]()

    async def work(line: Connection) -> None:
        used.append(line)
        await asyncio.to_thread(barrier.wait, 30)

    threads = [threading.Thread(target=lines.run, args=(work,)) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return used


@pytest.fixture
def lines() -> Connections:
    return Connections({"bootstrap.servers": "127.0.0.1:1"})


def test_a_line_is_used_again(lines: Connections) -> None:
    assert len({id(run_together(lines, 1)[0]) for _ in range(5)}) == 1


def test_each_reading_has_its_own(lines: Connections) -> None:
    assert len({id(line) for line in run_together(lines, KEPT + 2)}) == KEPT + 2
    assert len(lines._free) == KEPT


def test_one_that_failed_is_not_kept(lines: Connections) -> None:
    async def fail(line: Connection) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        lines.run(fail)
    assert lines._free == []


def test_one_that_was_left_is_kept(lines: Connections) -> None:
    async def leave(line: Connection) -> None:
        raise asyncio.CancelledError

    lines.run(leave)
    assert len(lines._free) == 1


async def test_closing_where_a_loop_runs(lines: Connections) -> None:
    await asyncio.to_thread(run_together, lines, 2)
    loops = [runner.get_loop() for runner, _ in lines._free]
    lines.close()
    assert lines._free == [] and all(loop.is_closed() for loop in loops)


def test_lines_close_with_their_client(bootstrap: str, new_topic: NewTopicFixture) -> None:
    topic = new_topic()
    produce_values(bootstrap, topic, [b"a"])
    client = overlay.open(bootstrap=bootstrap)
    assert [batch.num_rows for batch in client.read(topic=topic)] == [1]
    ((runner, line),) = client._lines._free
    loop, kept = runner.get_loop(), line._client
    assert kept is not None and kept._conns
    del client, runner, line
    gc.collect()
    assert loop.is_closed() and not any(connection.connected() for connection in kept._conns.values())


def test_two_threads_may_close_at_once(lines: Connections) -> None:
    """The last connection may be taken, by a close or by a reading, after the other has seen it."""

    class Emptied(list[tuple[asyncio.Runner, Connection]]):
        def __bool__(self) -> bool:
            return True

    lines._free = Emptied()
    lines.close()
