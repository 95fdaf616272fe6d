"""The config folder of a history: the files of its consumers, which an operator adds, removes and changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from overlay.config import Loaded

from .host import read_config
from .plan import SOURCE, STREAM, Consumer, Plan
from .world import World


@dataclass(slots=True)
class Files:
    """The files of consumers. `versions`: what each file has said so far, by the consumer's name, the latest last."""

    versions: dict[str, list[Consumer]]
    absent: set[str] = field(default_factory=set)
    """Consumers whose files are not there at the moment."""
    refused: dict[str, Consumer] = field(default_factory=dict)
    """What a file says at the moment that no update may say, by the consumer's name: the consumer runs as it was."""

    @property
    def consumers(self) -> list[Consumer]:
        """The consumers as their files say now, or said last."""
        return [versions[-1] for versions in self.versions.values()]

    def find_always(self, name: str) -> frozenset[bytes]:
        """Return the keys that a consumer has wanted all the time."""
        return frozenset.intersection(*(version.keys for version in self.versions[name]))

    def find_ever(self, name: str) -> frozenset[bytes]:
        """Return the keys that a consumer has wanted at any time."""
        return frozenset.union(*(version.keys for version in self.versions[name]))

    def read(self, world: World, plan: Plan) -> Loaded:
        """Return the folder as the service reads it now."""
        present: Sequence[Consumer] = [each for each in self.consumers if each.name not in self.absent]
        return read_config(
            {
                "kafka": {"bootstrap.servers": world.bootstrap},
                "shards": plan.shards,
                "topics": {"replication": plan.brokers},
            },
            [{"name": STREAM, "topics": [SOURCE], "subject": {"template": "s.{key}"}, "index": dict(plan.index)}],
            [self.refused.get(consumer.name, consumer).config for consumer in present],
        )
