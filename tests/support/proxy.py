"""A TCP proxy in front of a broker, which holds back or cuts what passes, to the byte.

A broker tells its clients an address of its own, past any proxy. `lead_through` therefore has every new connection of
aiokafka's clients go to the proxy, whatever address it is for.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator
from typing import Any

import aiokafka.client
import pytest

CHUNK = 1 << 16


class Valve:
    """One direction. Lets everything through until told how much; `passed` counts bytes."""

    def __init__(self) -> None:
        self.passed = 0
        self.shut = asyncio.Event()
        """Set while nothing more is let through."""
        self._opened = asyncio.Event()
        self.allow(math.inf)

    def allow(self, size: float) -> None:
        """Let so many bytes through from now on."""
        self._left = size
        ends = (self._opened, self.shut) if size > 0 else (self.shut, self._opened)
        ends[0].set()
        ends[1].clear()

    async def admit(self, size: int) -> int:
        """How many of `size` bytes may pass now; waits until some may."""
        while self._left <= 0:
            await self._opened.wait()
        admitted = int(min(size, self._left))
        self.passed += admitted
        self.allow(self._left - admitted)
        return admitted


class Proxy:
    """`up`: from clients to the broker; `down`: the answers."""

    def __init__(self, target: str) -> None:
        self.host, _, port = target.rpartition(":")
        self.target_port, self.port = int(port), 0
        self.up, self.down = Valve(), Valve()
        self._links: dict[asyncio.Task[None], list[asyncio.StreamWriter]] = {}

    def cut(self) -> None:
        """Break every connection as a cable does: what is on its way is lost. New connections find the way open."""
        for task, writers in self._links.items():
            task.cancel()
            for writer in writers:
                writer.transport.abort()
        self.open()

    def open(self) -> None:
        for valve in (self.up, self.down):
            valve.allow(math.inf)

    async def link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a client's connection."""
        task = asyncio.current_task()
        assert task is not None
        self._links[task] = [writer]
        try:
            far_reader, far_writer = await asyncio.open_connection(self.host, self.target_port)
            self._links[task].append(far_writer)
            async with asyncio.TaskGroup() as both:
                both.create_task(_pump(reader, far_writer, self.up))
                both.create_task(_pump(far_reader, writer, self.down))
        except* OSError:
            pass  # one side has gone, and takes the other along
        finally:
            for each in self._links.pop(task):
                each.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, valve: Valve) -> None:
    while data := await reader.read(CHUNK):
        while data:
            size = await valve.admit(len(data))
            writer.write(data[:size])
            await writer.drain()
            data = data[size:]
    raise ConnectionResetError


@contextlib.asynccontextmanager
async def run_proxy(target: str) -> AsyncIterator[Proxy]:
    """A proxy to `host:port` for the block."""
    proxy = Proxy(target)
    async with await asyncio.start_server(proxy.link, proxy.host, 0) as server:
        proxy.port = server.sockets[0].getsockname()[1]
        try:
            yield proxy
        finally:
            proxy.cut()


def lead_through(proxy: Proxy, monkeypatch: pytest.MonkeyPatch, **more: Any) -> None:
    """Have all connections of aiokafka go through a proxy, with `more` settings."""
    connect = aiokafka.client.create_conn

    async def connect_to_proxy(host: str, port: int, **settings: Any) -> Any:
        return await connect(proxy.host, proxy.port, **{**settings, **more})

    monkeypatch.setattr(aiokafka.client, "create_conn", connect_to_proxy)
