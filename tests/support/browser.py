"""A page in a real browser: Chromium without a window, driven by its DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import ClientSession, ClientWebSocketResponse

from overlay.local.guard import Guard

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), ""
)
START_S = 60
TOLD = ("Runtime.exceptionThrown", "Log.entryAdded")


class Tab:
    """One tab. `told`: the texts of errors that the browser has logged."""

    def __init__(self, socket: ClientWebSocketResponse) -> None:
        self._socket, self._count = socket, 0
        self.told: list[str] = []

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result."""
        self._count += 1
        await self._socket.send_json({"id": self._count, "method": method, "params": parameters})
        async with asyncio.timeout(START_S):
            while True:
                found = json.loads((await self._socket.receive()).data)
                if found.get("method") in TOLD:
                    self.told.append(json.dumps(found["params"]))
                if found.get("id") == self._count:
                    assert "error" not in found, found
                    return dict(found["result"])

    async def run(self, script: str) -> Any:
        """Return the value of a JavaScript expression."""
        found = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def until(self, script: str) -> None:
        """Wait until a JavaScript expression is true."""
        async with asyncio.timeout(START_S):
            while not await self.run(script):  # noqa: ASYNC110 - no event tells
                await asyncio.sleep(0.05)

    async def show_as(self, *, width: int, is_dark: bool) -> None:
        """Have the page be so many pixels wide, in the light or the dark theme."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        await self.call("Emulation.setDeviceMetricsOverride", **size)
        feature = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[feature])

    async def photograph(self, file: Path) -> None:
        """Write what is seen to a PNG file."""
        found = await self.call("Page.captureScreenshot", format="png")
        await asyncio.to_thread(file.write_bytes, base64.b64decode(found["data"]))


@asynccontextmanager
async def open_tab(url: str) -> AsyncIterator[Tab]:
    """A tab that shows a page. The browser ends with it."""
    with tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True) as folder:
        # root may run it without a sandbox alone; what it shows is ours
        options = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--remote-debugging-port=0",
            f"--user-data-dir={folder}",
        ]
        nothing = asyncio.subprocess.DEVNULL
        process = await asyncio.create_subprocess_exec(
            CHROMIUM, *options, "about:blank", stdout=nothing, stderr=nothing
        )
        guard = Guard(["kill", "-9", str(process.pid)])
        try:
            port = await _find_port(Path(folder, "DevToolsActivePort"))
            async with ClientSession() as session:
                async with session.get(f"http://127.0.0.1:{port}/json") as answer:
                    (address,) = [tab["webSocketDebuggerUrl"] for tab in await answer.json() if tab["type"] == "page"]
                async with session.ws_connect(address, max_msg_size=0) as socket:
                    tab = Tab(socket)
                    for domain in ("Page", "Runtime", "Log"):
                        await tab.call(f"{domain}.enable")
                    await tab.call("Page.navigate", url=url)
                    yield tab
        finally:
            process.terminate()
            async with asyncio.timeout(START_S):
                await process.wait()
            guard.release()


async def _find_port(file: Path) -> int:
    """The port of the DevTools protocol, which the browser writes once it listens."""
    async with asyncio.timeout(START_S):
        while not (port := _read_port(file)):  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.05)
    return port


def _read_port(file: Path) -> int:
    """The port in a file of two lines, 0 as long as it is not whole."""
    lines = file.read_text().splitlines() if file.exists() else []
    return int(lines[0]) if len(lines) > 1 else 0
