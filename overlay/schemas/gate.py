"""The wait for a schema registry: fetched records are passed on when the ids of their schemas are settled.

A gate belongs to one stream and one fetcher. The fetcher gives it what it has fetched of a partition.
The gate finds the ids in it that the stream's book does not have, and asks the registry for them, one
question at a time for the stream. While the registry does not answer, the partition waits, and the
questions are repeated with growing pauses. Other partitions and streams go on.

Decoding itself asks no registry: it uses what is in the book.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from overlay.clock import monotonic, now_ms
from overlay.config.registry import RegistryConfig
from overlay.config.schema_book import SchemaBook
from overlay.config.stream import StreamConfig
from overlay.config.values import SUFFIXES, Schema, ValueFormat, ValuesConfig, read_schema
from overlay.credentials import resolve
from overlay.errors import OverlayError, SchemaError, SourceUnavailable
from overlay.jobs import run_apart
from overlay.kafka.fetched import Fetched
from overlay.kafka.log_position import TopicPartition
from overlay.logs import get_logger
from overlay.waits import finish_in_thread

from .ids import find_ids
from .registry_client import RegistryError, SchemaRegistry, write_file

if TYPE_CHECKING:  # a client that reads has no metrics, and importing these takes time
    from prometheus_client import Counter

log = get_logger(__name__)

PAUSE_S = (0.5, 30.0)
"""Shortest and longest pause between two questions that the registry does not answer."""
LOOK_S = 0.05
"""How often a wait looks at what another gate of the stream has learnt."""
MOST_WAIT_S = 60.0
"""Seconds after which a question counts as not answered, whatever its thread does."""


@dataclass(slots=True, eq=False)
class Wait:
    """A partition's wait for the schema with an id. `since`: ms since 1970. `offset`: of its first record. `trouble`:
    why the last question was not answered, "" if none was so far.
    """

    id: int
    since: int
    offset: int
    trouble: str = ""
    failures: int = 0


@dataclass(slots=True, eq=False)
class SchemaGate:
    """Holds back records of one stream until the ids of their schemas are settled. `note`: called with the outcome of
    each question: fetched, unknown, unusable or failed.
    """

    stream: str
    format: ValueFormat
    registry: RegistryConfig
    book: SchemaBook
    note: Callable[[str], None] = lambda outcome: None
    waits: dict[TopicPartition, Wait] = field(default_factory=dict)
    """The partitions that wait now."""
    _last_trouble: str = ""

    @property
    def trouble(self) -> str:
        """Why a partition waits for longer than usual, or last did; empty if none did."""
        return next((wait.trouble for wait in self.waits.values() if wait.trouble), self._last_trouble)

    async def find_open(self, fetched: Fetched) -> Sequence[tuple[int, int]]:
        """Return the ids in fetched records that are not settled, each with the offset of its first record, ascending
        by offset.
        """
        found = await finish_in_thread(find_ids, fetched.data, fetched.position, fetched.aborted)
        left = set(self.book.list_open(found, monotonic()))
        return [(id, offset) for id, offset in found.items() if id in left]

    async def settle(self, source: TopicPartition, id: int, offset: int) -> None:
        """Wait until an id is settled; ask the registry for it, unless another wait of the stream asks for something.
        `source`, `offset`: the partition that waits, and where. Two waits of a partition at once count as one.
        """
        self.waits[source] = wait = Wait(id, now_ms(), offset)
        try:
            while self.book.list_open([id], monotonic()):
                pause = LOOK_S
                if self.book.claim(wait):
                    try:
                        pause = await self._ask(wait)
                    finally:
                        self.book.release(wait)
                # without the claim: an id that the registry cannot answer must not keep others from being asked for
                await asyncio.sleep(pause)
        finally:
            if self.waits.get(source) is wait:
                del self.waits[source]

    async def _ask(self, wait: Wait) -> float:
        """Ask once for an id, if the stream may, and record the answer in the book. Return the seconds until the next
        question, 0 if there was an answer.
        """
        if pause := self.book.take_turn(monotonic()):
            return pause
        schema: Schema | None = None
        try:
            async with asyncio.timeout(MOST_WAIT_S):
                schema = await asyncio.wrap_future(run_apart(partial(self._fetch, wait.id), "schema-registry"))
            outcome, reason = "unknown", "the registry has no schema of this id"
        except SchemaError as error:
            outcome, reason = "unusable", str(error)
        except (OverlayError, TimeoutError) as error:
            return self._note_failure(wait, str(error) or f"no answer within {MOST_WAIT_S:.0f} s")
        if schema is not None:
            self.book.add(wait.id, schema)
            self.note("fetched")
            log.info("schema fetched from the registry", stream=self.stream, id=wait.id)
            return 0.0
        again = self.book.note_unknown(wait.id, monotonic())
        self.note(outcome)
        log.warning("no schema", stream=self.stream, id=wait.id, reason=reason, asked_again_in_s=round(again))
        return 0.0

    def _note_failure(self, wait: Wait, reason: str) -> float:
        """Count and log a question that was not answered. Return the seconds until the next one."""
        pause = min(PAUSE_S[0] * 2.0 ** min(wait.failures, 20), PAUSE_S[1])
        wait.failures += 1
        wait.trouble = self._last_trouble = reason
        self.note("failed")
        log.warning("waiting for the schema registry", stream=self.stream, id=wait.id, reason=reason, pause_s=pause)
        return pause

    def _fetch(self, id: int) -> Schema | None:
        """Return the schema of an id: that of its file if there is one by now, else the registry's, which becomes a
        file; None if the registry says that there is none. For a thread. Raises SchemaError if the schema cannot be
        used, and RegistryError or SourceUnavailable if there is no answer.
        """
        if self.book.is_full:
            raise SchemaError(f"the stream has {len(self.book.known)} schemas, and more are not kept")
        folder = self.book.folder
        file = None if folder is None else folder / f"{id}{SUFFIXES[self.format]}"
        if file is not None and file.exists():
            try:
                return read_schema(self.format, file.read_bytes())
            except (OSError, SchemaError, ValueError, RecursionError) as error:
                raise SchemaError(f"{file} cannot be used: {error}") from error
        found = SchemaRegistry(self.registry.url, resolve(self.registry.settings)).fetch(id, self.format)
        if found is not None and file is not None:
            try:
                write_file(file, found.data)
            except RegistryError as error:
                # it stays in memory; the next process asks once more
                log.warning("schema not kept", stream=self.stream, id=id, reason=str(error))
        return None if found is None else found.schema


def settle_all(values: ValuesConfig, ids: Iterable[int]) -> None:
    """Have the registry of a stream's values asked for those of the ids that are not settled, and wait for it. For a
    thread without an event loop, such as a Spark task's. Raises SourceUnavailable after MOST_WAIT_S.
    """
    assert values.registry is not None and values.book is not None
    gate = SchemaGate("", values.format, values.registry, values.book)

    async def settle() -> None:
        async with asyncio.timeout(MOST_WAIT_S):
            for id in gate.book.list_open(ids, monotonic()):
                await gate.settle(("", 0), id, 0)

    try:
        asyncio.run(settle())
    except TimeoutError:
        reason = gate.trouble or "no answer"
        raise SourceUnavailable(f"the schema registry at {values.registry.url} is waited for: {reason}") from None


def open_gate(stream: StreamConfig, note: Callable[[str], None] = lambda outcome: None) -> SchemaGate | None:
    """Return a gate for what is fetched of a stream; None if no registry is asked for its schemas. `note`: as in
    SchemaGate.
    """
    values = stream.values
    if values.registry is None or values.book is None:
        return None
    return SchemaGate(stream.name, values.format, values.registry, values.book, note)


def open_gates(streams: Mapping[str, StreamConfig], asked: Counter) -> dict[str, SchemaGate]:
    """Return a gate for each stream whose schemas a registry has, by its name. `asked`: the metric `schemas_asked`, which
    counts what their questions come to."""
    gates = {name: open_gate(stream, partial(_count, asked, name)) for name, stream in streams.items()}
    return {name: gate for name, gate in gates.items() if gate is not None}


def _count(asked: Counter, stream: str, outcome: str) -> None:
    asked.labels(stream, outcome).inc()
