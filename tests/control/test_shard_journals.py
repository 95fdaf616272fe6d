"""Writing to the control topic, without Kafka: journals that fail, and topics that do not take their part."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from overlay.control import shard_journals
from overlay.control.serve import RequestServer
from overlay.errors import SourceUnavailable
from overlay.output.entry import Entry
from overlay.output.record import Record
from tests.control.registries import PREFIX, take
from tests.control.request_servers import ONE, TWO, Log, ask_for, take_turns
from tests.control.request_servers import log as log
from tests.control.request_servers import request_server as request_server


async def test_a_journal_that_failed_is_not_used_again(
    request_server: RequestServer, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks write one after the other: one that waits must not get the journal that has just failed."""
    opened: list[Once] = []

    class Once(Log):
        """A journal; the first one fails, and is then as aiokafka's producer is after a fatal error."""

        async def commit(self, entries: Sequence[Entry]) -> int:
            await asyncio.sleep(0)
            assert not self.refuses, "used after it failed"
            if opened[0] is self:
                self.refuses = {"everything"}
                raise SourceUnavailable("the transaction did not end")
            return await log.commit(entries)

    def open_one(*_: object) -> Once:
        opened.append(Once())
        return opened[-1]

    monkeypatch.setattr(shard_journals, "Journal", open_one)
    writes = [request_server._journals.write(("S", "c"), [Record(b"request %d" % number, None)]) for number in range(2)]
    failed, written = await asyncio.gather(*writes, return_exceptions=True)
    assert isinstance(failed, SourceUnavailable)
    assert written is None
    assert log.settled == ["request 1"]


async def test_an_audit_that_its_topic_does_not_take_holds_up_no_request(
    request_server: RequestServer, log: Log
) -> None:
    log.refuses = {f"{PREFIX}.events"}
    await take_turns(request_server, log)
    assert sorted(log.settled) == ["request one", "request two"]
    assert log.answers.keys() == {ONE, TWO}


@pytest.mark.parametrize("largest", [None, 64])
async def test_an_events_topic_that_refuses_leaves_groups_together(
    request_server: RequestServer, log: Log, largest: int | None
) -> None:
    """It costs one refusal, not one for each request."""
    names = [f"made-{number:02}" for number in range(75)]
    registry = request_server.registry
    if largest is None:
        log.refuses = {f"{PREFIX}.events"}
    else:
        log.largest_event = largest
        event = Entry(f"{PREFIX}.events", Record(None, bytes(2 * largest)))
        await request_server._journals.write(("S", "c"), [Record(b"pause S c", None)], [event])
    before = log.commits
    ask_for(registry, names)
    await request_server._turn()
    assert log.commits == before + 1
    assert log.refusals == (largest is None)
    take(registry, *log.own)
    assert [id[1] for id in registry.definitions] == names
    assert not request_server._decider._alone


async def test_an_events_topic_that_is_away_holds_up_requests_once(request_server: RequestServer, log: Log) -> None:
    """It may be back soon, as after an election. If it was deleted, it is not."""
    log.refuses, log.is_final = {f"{PREFIX}.events"}, False
    with pytest.raises(SourceUnavailable):
        await take_turns(request_server, log)
    await take_turns(request_server, log)
    assert sorted(log.settled) == ["request one", "request two"]
    assert log.refusals == 2
