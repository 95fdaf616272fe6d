"""Consumers that no file describes, as the control topic defines them: for readings, which need no service."""

from __future__ import annotations

import asyncio

from overlay.config import ConsumerConfig, Loaded
from overlay.errors import CredentialsRefused
from overlay.jobs import run_apart
from overlay.kafka.properties import Properties


def read_consumers(files: Loaded, kafka: Properties) -> list[ConsumerConfig] | None:
    """Return all consumers: those of the folder's files, and those of the control topic; None if this user may not read the
    topic, or if it is not there. Blocks; the caller may run in an event loop. `kafka`: the settings to connect with. Raises
    SourceUnavailable.
    """
    try:
        return run_apart(lambda: asyncio.run(_look(files, kafka)), "overlay-consumers").result()
    except CredentialsRefused:
        return None


async def _look(files: Loaded, kafka: Properties) -> list[ConsumerConfig] | None:
    # most readings name no consumer, and these imports take long
    from overlay.control.tail import read_registry
    from overlay.kafka.admin import Admin

    async with Admin(kafka) as admin:
        registry = await read_registry(kafka, admin, files)
    # a service writes the definitions of its files first: without any, Kafka does not show the topic
    return list(registry.effective().consumers.values()) if registry.definitions else None
