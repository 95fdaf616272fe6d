"""Facts as JSON objects. Field names are those of the service's /service, /streams and /consumers."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from .facts import ConsumerFacts, IndexFacts, ServiceFacts, StreamFacts


def describe_worker(found: ServiceFacts | None) -> dict[str, Any]:
    """With `running`; when none answers there is an empty `url` beside it and nothing else."""
    return {"running": True, **asdict(found)} if found else {"running": False, "url": ""}


def describe_stream(found: StreamFacts) -> dict[str, Any]:
    """With `behind`, the sum over the partitions, beside the fields of StreamFacts."""
    index = None if found.index is None else describe_index(found.index)
    return asdict(found) | {"behind": found.behind, "index": index}


def describe_index(found: IndexFacts) -> dict[str, Any]:
    """With `chunks`, `behind` and `remaining_seconds` of all partitions, and `behind` of each."""
    whole = {"chunks": found.chunks, "behind": found.behind, "remaining_seconds": found.remaining_seconds}
    parts = {name: asdict(part) | {"behind": part.behind} for name, part in found.partitions.items()}
    return asdict(found) | whole | {"partitions": parts}


def describe_consumer(found: ConsumerFacts) -> dict[str, Any]:
    return asdict(found)
