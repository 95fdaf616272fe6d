"""Consumers that no file describes, as the control topic defines them: for readings, which need no service."""

from __future__ import annotations

import asyncio

from overlay.config import ConsumerConfig, Loaded
from overlay.jobs import run_apart
from overlay.kafka.properties import Properties


def read_consumers(files: Loaded, kafka: Properties) -> list[ConsumerConfig]:
    """Return all consumers: those of the folder's files, and those of the control topic. Blocks; the caller may run in an
    event loop. `kafka`: the settings to connect with. Raises SourceUnavailable, CredentialsRefused.
    """
    return run_apart(lambda: asyncio.run(_look(files, kafka)), "overlay-consumers").result()


async def _look(files: Loaded, kafka: Properties) -> list[ConsumerConfig]:
    # most readings name no consumer, and these imports take long
    from overlay.control.tail import read_registry
    from overlay.kafka.admin import Admin

    async with Admin(kafka) as admin:
        registry = await read_registry(kafka, admin, files)
    return list(registry.effective().consumers.values())
