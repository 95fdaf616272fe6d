"""Facts as JSON objects. Field names are those of the service's /service, /streams and /consumers."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from .facts import ConsumerFacts, ServiceFacts, StreamFacts


def describe_worker(found: ServiceFacts | None) -> dict[str, Any]:
    """With `running`; when none answers there is an empty `url` beside it and nothing else."""
    return {"running": True, **asdict(found)} if found else {"running": False, "url": ""}


def describe_stream(found: StreamFacts) -> dict[str, Any]:
    """With `behind`, the sum over the partitions, beside the fields of StreamFacts."""
    return asdict(found) | {"behind": found.behind}


def describe_consumer(found: ConsumerFacts) -> dict[str, Any]:
    return asdict(found)
