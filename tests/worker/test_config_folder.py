from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from overlay.config import Loaded, load
from overlay.config.loader import sign
from overlay.worker import config_folder
from overlay.worker.config_folder import watch_folder
from tests.config.folders import CONSUMER, load_files, write_folder

EVERY_S = 0.02
DEADLINE_S = 60


@contextlib.asynccontextmanager
async def watch(folder: Path, known: Loaded | None = None) -> AsyncIterator[asyncio.Queue[Loaded]]:
    """What the watcher hands over."""
    found: asyncio.Queue[Loaded] = asyncio.Queue()
    watching = asyncio.create_task(
        watch_folder(
            folder,
            found.put_nowait,
            known or dataclasses.replace(load(folder), problems=(), warnings=()),
            every=EVERY_S,
        )
    )
    await asyncio.sleep(0)  # its first look
    try:
        yield found
    finally:
        watching.cancel()


async def take(found: asyncio.Queue[Loaded], is_wanted: Callable[[Loaded], bool]) -> Loaded:
    """Return the first folder handed over of which something is true. On a busy machine others may come before: those that were
    read while a test was writing."""
    async with asyncio.timeout(DEADLINE_S):
        while not is_wanted(loaded := await found.get()):
            pass
    return loaded


def has_description(loaded: Loaded) -> bool:
    late = loaded.consumers.get(("FLIGHTS", "late"))
    return late is not None and late.description == "x"


async def test_changes_are_handed_over(tmp_path: Path) -> None:
    write_folder(tmp_path, {})
    async with watch(tmp_path) as found:
        write_folder(tmp_path, {"consumers/late.yaml": CONSUMER})
        loaded = await take(found, lambda loaded: not loaded.problems)
        assert list(loaded.consumers) == [("FLIGHTS", "late")]
        (tmp_path / "consumers" / "late.yaml").write_text("stream: [")
        loaded = await take(found, lambda loaded: len(loaded.problems) > 0)
        assert (list(loaded.consumers), len(loaded.problems)) == ([], 1)
        (tmp_path / "consumers" / "late.yaml").unlink()
        loaded = await take(found, lambda loaded: not loaded.problems)
        assert (list(loaded.consumers), loaded.problems) == ([], ())


async def test_a_change_while_the_service_starts_is_handed_over(tmp_path: Path) -> None:
    """It has read the folder, and takes seconds until it watches it."""
    write_folder(tmp_path, {})
    known = load(tmp_path)
    write_folder(tmp_path, {"consumers/late.yaml": CONSUMER})
    found: asyncio.Queue[Loaded] = asyncio.Queue()
    watching = asyncio.create_task(watch_folder(tmp_path, found.put_nowait, known, every=EVERY_S))
    loaded = await asyncio.wait_for(found.get(), DEADLINE_S)
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
        await take(found, has_description)


async def test_a_reload_logs_what_is_new(tmp_path: Path) -> None:
    bad = {f"consumers/c{number:03}.yaml": "zork" for number in range(200)}
    known = load_files(tmp_path, bad)
    edited = tmp_path / "consumers" / "c007.yaml"
    async with watch(tmp_path, known) as found:
        with capture_logs() as logs:
            edited.write_text("# a line more\nzork")
            await asyncio.wait_for(found.get(), 60)
            assert [each["log_level"] for each in logs] == ["info"]
            assert (logs[0]["event"], logs[0]["problems"]) == ("the folder has changed", 200)
            edited.write_text("stream: FLIGHTS\nzork: 1\n")
            await asyncio.wait_for(found.get(), 60)
            edited.write_text(CONSUMER)
            await asyncio.wait_for(found.get(), 60)
    told = [each["problem"] for each in logs if each["event"] == "config problem"]
    assert 0 < len(told) < 5
    assert all("c007.yaml" in each for each in told)
    assert logs[-1]["problems"] == 199


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
            await asyncio.wait_for(failed.wait(), DEADLINE_S)
        (tmp_path / "consumers" / "late.yaml").write_text(CONSUMER + "description: x\n")
        await take(found, has_description)


def test_what_counts_as_a_change(tmp_path: Path) -> None:
    write_folder(tmp_path, {"consumers/late.yaml": CONSUMER})
    before = sign(tmp_path)
    (tmp_path / "overlay.yaml").write_text("# counts from the next start\n")
    (tmp_path / "consumers" / "notes.txt").write_text("x")
    assert sign(tmp_path) == before
    (tmp_path / "consumers" / "late.yaml").write_text(CONSUMER + "# more\n")
    assert sign(tmp_path) != before
