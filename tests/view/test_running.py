"""Asking a service over HTTP: what answers need not be one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from overlay.config import HttpConfig
from overlay.errors import ConfigError, CredentialsRefused
from overlay.view.facts import PartitionFacts, ServiceFacts
from overlay.view.running import NoService, _connect, ask_service


@asynccontextmanager
async def serving(pages: dict[str, Any], status: int = 200) -> AsyncIterator[HttpConfig]:
    """A server with these JSON pages, where overlay.yaml would have it listen."""
    app = web.Application()
    for path, body in pages.items():

        async def answer(_: web.Request, body: Any = body) -> web.StreamResponse:
            return web.json_response(body, status=status)

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


@pytest.mark.parametrize(
    ("status", "body", "text"),
    [
        (401, {"error": "send the token"}, r"refuses the credentials \(401\): send the token"),
        (403, {"error": "add it to http.hosts"}, r"refuses the request \(403\): add it to http\.hosts"),
        (403, "Forbidden", r"refuses the request \(403\): check http\.token and http\.listen .* a proxy"),
        (401, {}, r"refuses the credentials \(401\): check http\.token"),
    ],
)
async def test_a_refusal_is_told_apart_from_no_answer(status: int, body: Any, text: str) -> None:
    async with serving({"/service": body}, status) as http:
        with pytest.raises(CredentialsRefused, match=rf"the service at http://127\.0\.0\.1:{http.address[1]} {text}"):
            await ask_service(http)


@pytest.mark.parametrize("content", [b"", b"no certificate", b"\xff\x00", b"-----BEGIN CERTIFICATE-----\nx\n"])
async def test_a_certificate_that_cannot_be_used_is_named(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "service.pem"
    file.write_bytes(content)
    async with serving({}) as http:
        with pytest.raises(ConfigError, match=rf"{file}: http\.tls_certificate: (has no certificate|cannot be read)"):
            await ask_service(http.model_copy(update={"tls_certificate": str(file)}))


class Socket:
    """A socket that keeps what is sent."""

    sent = b""

    def sendall(self, data: bytes) -> None:
        self.sent += data


@pytest.mark.parametrize(
    ("host", "port", "header"),
    [
        ("127.0.0.1", 8222, "127.0.0.1:8222"),
        ("::1", 8222, "[::1]:8222"),
        ("::1", 80, "[::1]"),
        ("overlay.example", 80, "overlay.example"),
        ("overlay.example", 443, "overlay.example:443"),
    ],
)
def test_the_host_header_names_host_and_port(host: str, port: int, header: str) -> None:
    connection, kept = _connect(HttpConfig(), host, port), Socket()
    connection.sock = kept
    connection.request("GET", "/service")
    assert f"\r\nHost: {header}\r\n".encode() in kept.sent
