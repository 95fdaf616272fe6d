"""A digest of the config that a worker runs, so that clients can recognise the expected one.

An address is not enough. Another project's service may listen at the port that a config folder
names. The same folder may also stand for two clusters, by a variable in its bootstrap servers. The
digest covers what decides who gets which messages: the streams and the consumers. Addresses are
left out, because the workers of one group listen at different ports and may reach the same Kafka by
different names. Credentials are left out, because not even a digest of them should be visible.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from overlay import __version__
from overlay.config import Loaded

DIGEST_LENGTH = 12


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a running config.

    `version`: of the overlay. `prefix`: topics.prefix. `bootstrap`: Kafka's addresses. `folder`: the folder of the
    files. `digest`: of the streams and consumers alone, equal wherever these are equal.
    """

    version: str
    prefix: str
    bootstrap: str
    folder: str
    digest: str


def identify(loaded: Loaded) -> Identity:
    """Return the identity of a loaded config."""
    service = loaded.service
    meaning = {
        "streams": {name: stream.model_dump(mode="json") for name, stream in loaded.streams.items()},
        "consumers": {"/".join(name): consumer.model_dump(mode="json") for name, consumer in loaded.consumers.items()},
    }
    digest = hashlib.sha256(json.dumps(meaning, sort_keys=True).encode()).hexdigest()[:DIGEST_LENGTH]
    folder = Path(loaded.files[""].file).resolve().parent
    return Identity(__version__, service.topics.prefix, service.kafka["bootstrap.servers"], str(folder), digest)
