"""The removal of a consumer: of its state, and of its records in the control topic."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from overlay.config import Loaded
from overlay.control.journal import strike
from overlay.control.records import Origin
from overlay.control.tail import read_registry
from overlay.kafka.admin import Admin
from overlay.state.amend import amend, forget_consumer
from overlay.state.shard_state import ConsumerId


@dataclass(frozen=True, slots=True)
class Removal:
    """The steps to remove a consumer; `run` does them.

    `is_known`: the control topic has the consumer. `is_by_request`: it was made by request and has
    no file.
    """

    id: ConsumerId
    is_known: bool
    is_by_request: bool

    async def run(self, loaded: Loaded) -> None:
        """Delete the consumer's state, and its records in the control topic if that has any, without asking the
        service. If there is a state, this takes over the consumer's shard for a moment, which fences a running
        service.

        Raises OverlayError, such as Fenced and SourceUnavailable; steps that were done before the error stay done.
        """
        service = loaded.service
        if self.is_by_request:
            # this comes first, because a service that starts now would serve the consumer again
            await strike(service.kafka, service.topics.prefix, self.id)
        change = functools.partial(forget_consumer, consumer=self.id)
        async with Admin(service.kafka) as admin:
            await amend(service, admin, change)
        if self.is_known and not self.is_by_request:
            await strike(service.kafka, service.topics.prefix, self.id)


async def find_removal(loaded: Loaded, id: ConsumerId) -> Removal:
    """Find out in the control topic which steps remove one consumer, and return them. Nothing is
    removed yet. Raises SourceUnavailable, CredentialsRefused.
    """
    service = loaded.service
    async with Admin(service.kafka) as admin:
        registry = await read_registry(service.kafka, admin, loaded)
    known = registry.definitions.get(id)
    is_by_request = known is not None and known.origin is Origin.REQUEST and id not in loaded.consumers
    return Removal(id, known is not None, is_by_request)
