from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from overlay.config import Loaded, load
from overlay.config.loader import sign
from overlay.worker import config_folder
from overlay.worker.config_folder import watch_folder
from tests.config.folders import CONSUMER, write_folder

EVERY_S = 0.02


@contextlib.asynccontextmanager
async def watch(folder: Path) -> AsyncIterator[asyncio.Queue[Loaded]]:
    """What the watcher hands over."""
    found: asyncio.Queue[Loaded] = asyncio.Queue()
    watching = asyncio.create_task(watch_folder(folder, found.put_nowait, load(folder).signature, EVERY_S))
    try:
        yield found
    finally:
        watching.cancel()


async def test_changes_are_handed_over(tmp_path: Path) -> None:
    write_folder(tmp_path, {})
    async with watch(tmp_path) as found:
        write_folder(tmp_path, {"consumers/late.yaml": CONSUMER})
        loaded = await asyncio.wait_for(found.get(), 10)
        assert list(loaded.consumers) == [("FLIGHTS", "late")]
        (tmp_path / "consumers" / "late.yaml").write_text("stream: [")
        loaded = await asyncio.wait_for(found.get(), 10)
        assert (list(loaded.consumers), len(loaded.problems)) == ([], 1)
        (tmp_path / "consumers" / "late.yaml").unlink()
        loaded = await asyncio.wait_for(found.get(), 10)
        assert (list(loaded.consumers), loaded.problems) == ([], ())


async def test_a_change_while_the_service_starts_is_handed_over(tmp_path: Path) -> None:
    """It has read the folder, and takes seconds until it watches it."""
    write_folder(tmp_path, {})
    known = load(tmp_path).signature
    write_folder(tmp_path, {"consumers/late.yaml": CONSUMER})
    found: asyncio.Queue[Loaded] = asyncio.Queue()
    watching = asyncio.create_task(watch_folder(tmp_path, found.put_nowait, known, EVERY_S))
    loaded = await asyncio.wait_for(found.get(), 10)
    assert list(loaded.consumers) == [("FLIGHTS", "late")]
    watching.cancel()


async def test_a_service_file_that_breaks_stops_nothing(tmp_path: Path) -> None:
    write_folder(tmp_path, {})
    async with watch(tmp_path) as found:
        good = (tmp_path / "overlay.yaml").read_text()
        (tmp_path / "overlay.yaml").write_text("kafka: [")
        write_folder(tmp_path, {"overlay.yaml": "kafka: [", "consumers/late.yaml": CONSUMER})
        await asyncio.sleep(5 * EVERY_S)
        assert found.empty()
        (tmp_path / "overlay.yaml").write_text(good)
        (tmp_path / "consumers" / "late.yaml").write_text(CONSUMER + "description: x\n")
        loaded = await asyncio.wait_for(found.get(), 10)
        assert loaded.consumers["FLIGHTS", "late"].description == "x"


@pytest.mark.parametrize("place", ["load", "sign"])
async def test_an_error_that_was_not_foreseen_ends_no_watch(
    place: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The watch is one task for the life of the process."""
    write_folder(tmp_path, {})
    failed = asyncio.Event()
    loop = asyncio.get_running_loop()
    async with watch(tmp_path) as found:
        with monkeypatch.context() as patched:

            def fail(_folder: Path) -> Loaded:
                loop.call_soon_threadsafe(failed.set)
                raise RuntimeError("not foreseen")

            patched.setattr(config_folder, place, fail)
            write_folder(tmp_path, {"consumers/late.yaml": CONSUMER})
            await asyncio.wait_for(failed.wait(), 10)
        (tmp_path / "consumers" / "late.yaml").write_text(CONSUMER + "description: x\n")
        loaded = await asyncio.wait_for(found.get(), 10)
        assert loaded.consumers["FLIGHTS", "late"].description == "x"


def test_what_counts_as_a_change(tmp_path: Path) -> None:
    write_folder(tmp_path, {"consumers/late.yaml": CONSUMER})
    before = sign(tmp_path)
    (tmp_path / "overlay.yaml").write_text("# counts from the next start\n")
    (tmp_path / "consumers" / "notes.txt").write_text("x")
    assert sign(tmp_path) == before
    (tmp_path / "consumers" / "late.yaml").write_text(CONSUMER + "# more\n")
    assert sign(tmp_path) != before
