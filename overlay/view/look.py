"""One look at streams and consumers: what the running service says, completed by what Kafka remembers."""

from __future__ import annotations

from dataclasses import replace

from overlay.config import Loaded
from overlay.errors import SourceUnavailable

from .facts import ConsumerFacts, Facts
from .running import NoService, ask_service
from .stored import REMOVED, describe_memory, read_memory

NO_RATES = "positions and lag are those of the last commit, and there are no rates"


async def look(loaded: Loaded) -> Facts:
    """Ask the service and Kafka. With a service, a Kafka that does not answer costs only the consumers without a file.

    Raises SourceUnavailable or CredentialsRefused when neither answers.
    """
    note, running = "", None
    try:
        running = await ask_service(loaded.service.http)
    except NoService as error:
        note = str(error)
    try:
        stored = describe_memory(loaded, await read_memory(loaded))
    except SourceUnavailable as error:
        if running is None:
            raise
        return replace(running, notes=(f"this is what the service says; {error}",))
    if running is None:
        return replace(stored, notes=(f"{note}; {NO_RATES}",))
    return combine(running, stored)


def combine(running: Facts, stored: Facts) -> Facts:
    """The service's word where it has one; positions from the state where it serves nothing at the moment."""
    streams, consumers = dict(stored.streams), dict(stored.consumers)
    for name, found in running.streams.items():
        idle = not found.partitions and name in stored.streams
        streams[name] = replace(found, partitions=stored.streams[name].partitions) if idle else found
    for consumer, says in running.consumers.items():
        consumers[consumer] = _complete(says, stored.consumers.get(consumer))
    notes = [
        f"the running service does not know {kind} {word}; restart it to have it read the config again"
        for kind, word in _unknown(running, stored)
    ]
    return Facts(
        dict(sorted(streams.items())),
        dict(sorted(consumers.items())),
        running.url,
        tuple(notes),
    )


def _complete(says: ConsumerFacts, stored: ConsumerFacts | None) -> ConsumerFacts:
    if says.positions or stored is None:
        return says
    return replace(
        says,
        consumer_sequence=stored.consumer_sequence,
        positions=stored.positions,
        lag_records=stored.lag_records,
        lag_seconds=None,
    )


def _unknown(running: Facts, stored: Facts) -> list[tuple[str, str]]:
    """What is in the config folder but not in the service, which has read it earlier."""
    streams = [("stream", name) for name in stored.streams if name not in running.streams]
    consumers = [
        ("consumer", "/".join(consumer))
        for consumer, facts in stored.consumers.items()
        if consumer not in running.consumers and facts.state != REMOVED
    ]
    return streams + consumers
