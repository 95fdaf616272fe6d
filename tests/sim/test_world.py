"""What a world takes over of its process, and gives back."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO

import pytest
import structlog

from overlay.logs import get_logger

from .world import World


@pytest.fixture
def written() -> Iterator[StringIO]:
    """Where logs go to. They are set up as a command of the service does it: each logger is bound for good when it is first
    used."""
    file, kept = StringIO(), structlog.get_config() if structlog.is_configured() else None
    structlog.reset_defaults()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(file), cache_logger_on_first_use=True)
    yield file
    structlog.reset_defaults()
    if kept is not None:
        structlog.configure(**kept)


def test_the_story_has_the_log_whatever_logs_were_set_up_before(written: StringIO) -> None:
    """Histories that look for a line in the story would else depend on the tests before them."""
    log, world = get_logger("some"), World(1, tells=True)
    log.info("before")

    async def history(_: World) -> None:
        log.warning("shard lost", shard=3)

    world.run(history)
    log.info("after")
    assert [line.split(" ", 2)[2] for line in world.story] == ["[warning] shard lost shard=3"]
    found = written.getvalue()
    assert ["before" in found, "shard lost" in found, "after" in found] == [True, False, True]


def test_a_world_without_a_story_logs_nothing(written: StringIO) -> None:
    log, world = get_logger("some"), World(1)

    async def history(_: World) -> None:
        log.error("shard lost")

    world.run(history)
    assert (world.story, written.getvalue()) == ([], "")
