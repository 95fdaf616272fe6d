"""Asking a service over HTTP: what answers need not be one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from overlay.config import HttpConfig
from overlay.view.facts import PartitionFacts, ServiceFacts
from overlay.view.running import NoService, ask_service


@asynccontextmanager
async def serving(pages: dict[str, Any]) -> AsyncIterator[HttpConfig]:
    """A server with these JSON pages, where overlay.yaml would have it listen."""
    app = web.Application()
    for path, body in pages.items():

        async def answer(_: web.Request, body: Any = body) -> web.StreamResponse:
            return web.json_response(body)

        app.router.add_get(path, answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield HttpConfig(listen=f"0.0.0.0:{runner.addresses[0][1]}")
    finally:
        await runner.cleanup()


async def test_a_service_that_says_more_than_we_know() -> None:
    stream: dict[str, Any] = {
        "name": "S",
        "topics": ["t"],
        "partitions": {"t-0": {"position": 3, "end": -1}},
        "rate": 2.0,
        "new": 1,
    }
    part = {"chunks": 4, "position": 300, "end": 500, "new": 1}
    unknown = {"chunks": 0, "position": 0, "end": -1}
    stream["index"] = {"reason": "", "rate": 50.0, "new": 1, "partitions": {"t-0": part, "t-1": unknown}}
    consumer = {"stream": "S", "name": "c", "filters": ["a.>"], "state": "running", "lag_seconds": 0.0, "new": 1}
    service = {"prefix": "ov", "shards": [0, 2], "shard_count": 3, "new": 1}
    async with serving({"/service": service, "/streams": [stream], "/consumers": [consumer]}) as http:
        facts = await ask_service(http)
    assert facts.url == f"http://127.0.0.1:{http.address[1]}"
    assert facts.service == ServiceFacts(facts.url, prefix="ov", shards=(0, 2), shard_count=3)
    assert facts.streams["S"].topics == ("t",)
    assert facts.streams["S"].partitions == {"t-0": PartitionFacts(3, None)}
    index = facts.streams["S"].index
    assert index is not None and (index.chunks, index.behind, index.remaining_seconds) == (4, 200, 4.0)
    assert index.partitions["t-1"].behind is None
    assert facts.consumers["S", "c"].filters == ("a.>",)
    assert facts.consumers["S", "c"].lag_records is None


@pytest.mark.parametrize(
    "pages",
    [
        {},
        {"/streams": [], "/consumers": []},
        {"/service": {}, "/streams": ["x"], "/consumers": []},
        {"/service": {}, "/streams": {}, "/consumers": 1},
        {"/service": 1, "/streams": [], "/consumers": []},
    ],
)
async def test_another_program_answers(pages: dict[str, Any]) -> None:
    async with serving(pages) as http:
        with pytest.raises(NoService, match="another program"):
            await ask_service(http)


async def test_without_a_service_there_is_no_answer() -> None:
    async with serving({}) as http:
        pass
    with pytest.raises(NoService, match="nothing answers"):
        await ask_service(http)
    with pytest.raises(NoService, match="port 0"):
        await ask_service(HttpConfig(listen="127.0.0.1:0"))
