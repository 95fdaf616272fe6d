"""Definitions of files in the control topic, written by the owner of each consumer's shard.

They say what was last taken up of a file (registry.py). The definition of a new consumer also says what Kafka told at its
creation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from overlay.clock import now_ns
from overlay.kafka.admin import Admin

from .changes import makes_output
from .creation import find_log_ends, is_missing
from .records import Definition, write_definition
from .registry import Registry
from .shard_journals import ShardJournals


@dataclass(slots=True)
class FileDefinitions:
    """The definitions of files that the topic does not have yet."""

    registry: Registry
    admin: Admin
    journals: ShardJournals
    _unwritten: list[Definition] | None = None
    """None if they have to be compared again."""

    def compare_again(self) -> None:
        """Have the next `write` compare all files with the topic: either may have changed."""
        self._unwritten = None

    async def write(self) -> None:
        """Write the definitions of files that the topic does not have, for our shards, in one
        transaction for each shard. A shard of which not everything was read yet is left for the
        next turn.
        """
        if self._unwritten is None:
            self._unwritten = list(self.registry.find_unwritten(now_ns()))
        unwritten = {definition.id: definition for definition in self._unwritten}
        for shard, ids in self.journals.sort_by_shard(unwritten).items():
            if not await self.journals.knows_all(shard):
                continue
            mine = [unwritten[id] for id in ids]
            written = [await self._complete(definition) for definition in mine]
            records = [write_definition(definition) for definition in written]
            await self.journals.write(mine[0].id, records, decided=True)
            done = {definition.id for definition in mine}
            self._unwritten = [definition for definition in self._unwritten if definition.id not in done]

    async def _complete(self, definition: Definition) -> Definition:
        """Return a file's definition. If the consumer is new, what Kafka tells at its creation is added: the
        present ends of the logs, if it begins there, and whether a temporary output is still to be made.
        """
        config = definition.config
        stream = self.registry.files.streams.get(config.stream)
        if stream is None or definition.id in self.registry.definitions:
            return definition
        ends = await find_log_ends(self.admin, stream) if config.deliver_policy.begins_at_end else None
        topic = config.deliver_subject
        # a shard may have begun with the file already, and have created it
        is_new = config.output.temporary and await is_missing(self.admin, topic, counts_made=True)
        return replace(definition, ends=ends, makes_output=makes_output(self.registry, config, lacks_output=is_new))
