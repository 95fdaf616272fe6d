"""Consumers by name: those of the folder's files, and those that were made by request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from overlay.errors import CredentialsRefused, OverlayError, SourceUnavailable

from .folder import Command, refuse_unknown

if TYPE_CHECKING:
    from overlay.client.control.control import Control
    from overlay.config import ConsumerConfig, Loaded
    from overlay.control.registry import Registry


def names_argument(command: Command) -> Command:
    """Add the words [STREAM] NAME, passed on as `names`, which `join_names` joins."""
    return click.argument("names", nargs=-1, required=True, metavar="[STREAM] NAME")(command)


def join_names(names: tuple[str, ...]) -> str:
    """Return the words [STREAM] NAME as NAME or STREAM/NAME. Raises click.UsageError for more than two."""
    if len(names) > 2:
        raise click.UsageError("name one consumer: [STREAM] NAME")
    return "/".join(names)


def choose(ids: Iterable[tuple[str, str]], name: str, folder: Path) -> tuple[str, str]:
    """Return the stream and the name of a consumer by NAME or STREAM/NAME. `ids`: all that there are. Raises OverlayError,
    with a suggestion if it is unknown, with all that have the name if it is ambiguous.
    """
    known = list(ids)
    found = [id for id in known if name in (id[1], "/".join(id))]
    if not found:
        raise refuse_unknown("consumer", name, map("/".join, known), folder)
    if len(found) > 1:
        names = ", ".join(map("/".join, found))
        raise OverlayError(f"{folder}: several streams have a consumer {name!r}. Name one of {names}")
    return found[0]


def find_served(control: Control, name: str, folder: Path) -> tuple[str, str]:
    """Return the stream and the name of a consumer by NAME or STREAM/NAME, for a request about it. Only if the stream is left
    out, the service is asked which consumers there are: over the connection of the request that takes less time than
    reading the folder, and it knows those that were made by request. Raises as `choose`, and as `control`.
    """
    stream, slash, rest = name.rpartition("/")
    return (stream, rest) if slash else choose(control.list_names(), name, folder)


def find_consumer(loaded: Loaded, name: str, folder: Path) -> ConsumerConfig:
    """Return a consumer by its name or STREAM/NAME. Raises OverlayError if it is unknown or
    ambiguous.
    """
    return loaded.consumers[choose(loaded.consumers, name, folder)]


def find_anywhere(loaded: Loaded, name: str, folder: Path, kafka: Mapping[str, str]) -> ConsumerConfig:
    """Return the config of a consumer by NAME or STREAM/NAME, from its file; only if no file has the name, Kafka is asked
    for what the control topic has. Blocks. `kafka`: the settings to connect with. Raises OverlayError if it is unknown or
    ambiguous; SourceUnavailable or CredentialsRefused, with a suggestion from the files, if Kafka does not say.
    """
    if any(name in (id[1], "/".join(id)) for id in loaded.consumers):
        return find_consumer(loaded, name, folder)
    try:
        return find_config(loaded, name, folder, kafka)
    except (SourceUnavailable, CredentialsRefused) as error:
        if not loaded.consumers:
            raise
        # a name that is nearly that of a file is more likely misspelt than made by request
        unknown = refuse_unknown("consumer", name, map("/".join, loaded.consumers), folder)
        kind = CredentialsRefused if isinstance(error, CredentialsRefused) else SourceUnavailable
        raise kind(f"{unknown} in its files. Whether one was made by request is not known: {error}") from error


def find_config(loaded: Loaded, name: str, folder: Path, kafka: Mapping[str, str]) -> ConsumerConfig:
    """Return the config of a consumer by NAME or STREAM/NAME, from its file or from the control topic
    without a pause by request. Blocks. `kafka`: the settings to connect with. Raises OverlayError if
    it is unknown or ambiguous.
    """
    registry = _read_registry(loaded, kafka)
    config = find_consumer(registry.effective(), name, folder)
    definition = registry.definitions.get(config.id)
    return loaded.consumers[config.id] if definition is None or config.id in loaded.consumers else definition.config


def find_all(files: Loaded) -> Loaded:
    """Return the config with all consumers: those of the folder's files, and those of the control topic. Blocks. Raises
    OverlayError, such as SourceUnavailable.
    """
    return _read_registry(files, files.service.kafka).effective()


def _read_registry(loaded: Loaded, kafka: Mapping[str, str]) -> Registry:
    """Return the consumers of the files and the control topic. Blocks. `kafka`: the settings to connect with."""
    import asyncio

    from overlay.control.tail import read_registry
    from overlay.kafka.admin import Admin

    async def look() -> Registry:
        async with Admin(kafka) as admin:
            return await read_registry(kafka, admin, loaded)

    return asyncio.run(look())
