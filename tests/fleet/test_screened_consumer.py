"""What is assumed about Faust's consumer, and which records it is kept from leaving out."""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from faust.transport.consumer import Consumer
from faust.transport.drivers import aiokafka
from faust.types import TP
from structlog.testing import capture_logs

from overlay.fleet.screened_consumer import ScreenedConsumer

PLACE = TP("overlay.fleet", 0)
STATES = ("_read_offset", "_committed_offset", "_gap", "_acked", "_acked_index")


def make_consumer(monkeypatch: pytest.MonkeyPatch, *, committed: int | None, read: int | None, offset: int) -> Any:
    """A consumer whose next record has this offset."""

    async def getmany(self: Any, timeout: float) -> AsyncIterator[tuple[TP, Any]]:  # noqa: ASYNC109 - as Faust's has it
        yield PLACE, SimpleNamespace(offset=offset)

    monkeypatch.setattr(aiokafka.Consumer, "getmany", getmany)
    consumer: Any = ScreenedConsumer.__new__(ScreenedConsumer)
    consumer.topics, consumer.told = {PLACE.topic}, defaultdict(int, {PLACE: 9})
    for name in STATES:
        setattr(consumer, name, defaultdict(lambda: None, {PLACE: "known"}))
    consumer._committed_offset[PLACE], consumer._read_offset[PLACE] = committed, read
    return consumer


async def read(consumer: Any) -> list[int]:
    return [message.offset async for _, message in consumer.getmany(1.0)]


@pytest.mark.parametrize(
    ("committed", "read_to", "offset", "is_dropped", "is_anew"),
    [
        pytest.param(None, None, 0, False, False, id="the first record"),
        pytest.param(37, 40, 41, False, False, id="the next record"),
        pytest.param(37, 215, 37, True, False, id="Faust went back to the committed offset"),
        pytest.param(None, 215, 3, True, False, id="nothing was committed"),
        pytest.param(37, 215, 36, True, True, id="the topic was created anew"),
    ],
)
async def test_no_record_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
    committed: int | None,
    read_to: int | None,
    offset: int,
    is_dropped: bool,
    is_anew: bool,
) -> None:
    consumer = make_consumer(monkeypatch, committed=committed, read=read_to, offset=offset)
    with capture_logs() as logs:
        assert await read(consumer) == [offset]
    known = None if is_anew else committed
    assert consumer._read_offset[PLACE] == (known if is_dropped else read_to)
    assert [line["event"] for line in logs] == ["the topic was created anew and is read from its start"] * is_anew
    forgotten = [name for name in STATES[2:] if PLACE not in getattr(consumer, name)]
    assert forgotten == list(STATES[2:]) * is_anew


async def test_topics_of_others_alone_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Faust's own changelogs are read from is Faust's."""
    consumer = make_consumer(monkeypatch, committed=37, read=215, offset=37)
    consumer.topics = set()
    assert await read(consumer) == [37]
    assert consumer._read_offset[PLACE] == 215


def test_faust_keeps_what_is_assumed() -> None:
    """By these names and no others."""
    made = inspect.getsource(Consumer.__init__)
    assert all(f"self.{name} = " in made for name in STATES)
    assert "offset >= r_offset" in inspect.getsource(Consumer._drain_messages)
