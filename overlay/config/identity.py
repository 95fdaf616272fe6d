"""Which config a worker runs, so that whoever asks it can tell whether it is the one that was meant.

An address does not say. Another project's service may listen at the port that a config folder names, and the same folder
may stand for two clusters, by a variable in its bootstrap servers. The digest covers what decides who is given what: the
streams and the consumers. Addresses are left out of it, since workers of one group listen at ports of their own and may reach
one Kafka by different names; credentials are left out because nobody should see even their traces.
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
    """`folder`: where the files were read; `digest`: equal for configs that mean the same."""

    version: str
    prefix: str
    bootstrap: str
    folder: str
    digest: str


def identify(loaded: Loaded) -> Identity:
    """The identity of a config as it was loaded."""
    service = loaded.service
    meaning = {
        "streams": {name: stream.model_dump(mode="json") for name, stream in loaded.streams.items()},
        "consumers": {"/".join(name): consumer.model_dump(mode="json") for name, consumer in loaded.consumers.items()},
    }
    digest = hashlib.sha256(json.dumps(meaning, sort_keys=True).encode()).hexdigest()[:DIGEST_LENGTH]
    folder = Path(loaded.files[""].file).resolve().parent
    return Identity(__version__, service.topics.prefix, service.kafka["bootstrap.servers"], str(folder), digest)
