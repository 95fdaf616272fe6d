"""Digests of the config that a worker runs, so that clients can recognise the expected one and workers can be compared.

An address is not enough. Another project's service may listen at the port that a config folder
names. The same folder may also stand for two clusters, by a variable in its bootstrap servers. The
digest covers what decides who gets which messages: the streams and the consumers. Addresses are
left out, because the workers of one group listen at different ports and may reach the same Kafka by
different names. Credentials are left out, because not even a digest of them should be visible.

A second digest covers those parts of overlay.yaml that all workers of a prefix have to agree on: any of
them may create a topic or decide on a request (docs/control.md#limits).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from overlay import __version__
from overlay.config import Loaded, ServiceConfig

DIGEST_LENGTH = 12


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a running config.

    `version`: of the overlay. `prefix`: topics.prefix. `bootstrap`: Kafka's addresses. `folder`: the folder of the
    files. `digest`: of the streams and consumers alone, equal wherever these are equal. `settings`: the same of the parts
    of overlay.yaml that all workers have to agree on, "" if unknown.
    """

    version: str
    prefix: str
    bootstrap: str
    folder: str
    digest: str
    settings: str = ""


def identify(loaded: Loaded) -> Identity:
    """Return the identity of a loaded config."""
    service = loaded.service
    meaning = {
        "streams": {name: stream.model_dump(mode="json") for name, stream in loaded.streams.items()},
        "consumers": {"/".join(name): consumer.model_dump(mode="json") for name, consumer in loaded.consumers.items()},
    }
    folder = Path(loaded.files[""].file).resolve().parent
    return Identity(
        version=__version__,
        prefix=service.topics.prefix,
        bootstrap=service.kafka["bootstrap.servers"],
        folder=str(folder),
        digest=_sum_up(meaning),
        settings=_sum_up(_list_settings(service)),
    )


def _list_settings(service: ServiceConfig) -> dict[str, Any]:
    """Return the parts of overlay.yaml that all workers have to agree on, as JSON."""
    topics = service.topics
    return {
        "requests": service.requests.model_dump(mode="json"),
        "topics": {
            "reply_to": sorted(set(topics.reply_to)),
            "requests": topics.requests,
            "replication": topics.replication,
        },
        "shards": service.shards,
    }


def _sum_up(meaning: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(meaning, sort_keys=True).encode()).hexdigest()[:DIGEST_LENGTH]
