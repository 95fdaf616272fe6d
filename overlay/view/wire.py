"""Facts as JSON objects, with the field names of the service's /service, /streams, /consumers."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from overlay.control.records import write_config

from .facts import ConsumerFacts, IndexFacts, ServiceFacts, StreamFacts


def describe_worker(found: ServiceFacts | None) -> dict[str, Any]:
    """Return the worker's facts with `running`: true.

    Without a worker, `running`: false and an empty `url`.
    """
    return {"running": True, **asdict(found)} if found else {"running": False, "url": ""}


def describe_stream(found: StreamFacts) -> dict[str, Any]:
    """Return the fields of StreamFacts as a JSON object, with `behind` summed over the partitions."""
    index = None if found.index is None else describe_index(found.index)
    return asdict(found) | {"behind": found.behind, "index": index}


def describe_index(found: IndexFacts) -> dict[str, Any]:
    """Return the fields of IndexFacts as a JSON object, with `chunks`, `behind` and
    `remaining_seconds` of all partitions together.

    Each partition has its own `behind`.
    """
    whole = {"chunks": found.chunks, "behind": found.behind, "remaining_seconds": found.remaining_seconds}
    parts = {name: asdict(part) | {"behind": part.behind} for name, part in found.partitions.items()}
    return asdict(found) | whole | {"partitions": parts}


def describe_consumer(found: ConsumerFacts) -> dict[str, Any]:
    """Return the fields of ConsumerFacts as a JSON object. `config` is as in a ConsumerInfo:
    durations are ns, and fields that are unset are left out.
    """
    config = None if found.config is None else write_config(found.config)
    return asdict(replace(found, config=None)) | {"config": config}
