"""Where a new consumer begins: its deliver policy turned into a position in each partition.

all             the log's start
new             the committed end at the moment of creation
by_start_sequence  sequence - 1, or the closest that the log still has; one that is yet to come is waited for (one
                partition only: sequences are offsets there)
by_start_time   the first record at or after the time; the end when there is none yet
last            the last record that matches, and everything after it
last_per_subject  the last record of every matching subject, then everything after: a snapshot, see `find_lasts`

With several partitions and no total order `last` is the matching record with the latest timestamp; its neighbours in
other partitions start at their ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from aiokafka.client import AIOKafkaClient
from confluent_kafka.admin import OffsetSpec

from overlay.admin import Admin
from overlay.config.consumer import ConsumerConfig, DeliverPolicy
from overlay.config.stream import StreamConfig
from overlay.errors import SourceChanged
from overlay.match import Addressed, Addressing, Audience
from overlay.subject import Pattern

from .mark import Source
from .span import read_span

WINDOW = 20_000
"""Offsets that the search for the last message looks back at first; each further step looks back twice as far."""

Step = Callable[[int], None]
"""Told how many offsets of a scan are done."""


@dataclass(frozen=True, slots=True)
class Start:
    """`positions` to read from; below `snapshot`, where there is one, only the last message of each subject counts, and
    below `floor` none at all."""

    positions: Mapping[Source, int]
    snapshot: Mapping[Source, int] = field(default_factory=dict)
    floor: Mapping[Source, int] = field(default_factory=dict)


async def find_start(
    client: AIOKafkaClient, admin: Admin, config: ConsumerConfig, stream: StreamConfig, sources: Sequence[Source]
) -> Start:
    """The start of a consumer that has no position yet. Raises SourceChanged, SourceUnavailable."""
    bounds = await admin.find_bounds(sources)
    earliest = {source: first for source, (first, _) in bounds.items()}
    ends = {source: end for source, (_, end) in bounds.items()}
    match config.deliver_policy:
        case DeliverPolicy.ALL:
            return Start(earliest)
        case DeliverPolicy.NEW:
            return Start(ends)
        case DeliverPolicy.LAST_PER_SUBJECT:
            return Start(earliest, ends)
        case DeliverPolicy.BY_START_SEQUENCE:
            if len(sources) > 1:
                raise SourceChanged(
                    f"consumer {config.id[1]}: by_start_sequence needs a stream of one partition; {stream.name} has"
                    f" {len(sources)} and no total order yet"
                )
            only = sources[0]
            first = config.opt_start_seq - 1
            return Start({only: min(max(first, earliest[only]), ends[only])}, floor={only: first})
        case DeliverPolicy.BY_START_TIME:
            assert config.opt_start_time is not None  # facts b, 10094
            # the first record at or after it: a time between two milliseconds begins at the later one
            # and Kafka gives negative ones a meaning of their own
            spec = OffsetSpec.for_timestamp(max(0, -(-config.opt_start_time // 1_000_000)))
            found = await admin.find_offsets(sources, spec)
            return Start({source: at if at >= 0 else ends[source] for source, at in found.items()})
        case DeliverPolicy.LAST:
            return Start(await _find_last(client, config, stream, earliest, ends))


def patterns(config: ConsumerConfig) -> tuple[Pattern, ...]:
    """A consumer's filters, parsed; one that takes everything when it has none."""
    return tuple(Pattern.parse(text) for text in config.filters or (">",))


async def _find_last(
    client: AIOKafkaClient,
    config: ConsumerConfig,
    stream: StreamConfig,
    earliest: Mapping[Source, int],
    ends: Mapping[Source, int],
) -> dict[Source, int]:
    """Positions from which the last matching message comes first."""
    best: tuple[int, Source, int] | None = None  # timestamp, where
    for source, end in ends.items():
        found = await _find_last_in(client, config, stream, source, earliest[source], end)
        if found is not None and (best is None or found[0] > best[0]):
            best = (found[0], source, found[1])
    return dict(ends) if best is None else {**ends, best[1]: best[2]}


async def _find_last_in(
    client: AIOKafkaClient, config: ConsumerConfig, stream: StreamConfig, source: Source, first: int, end: int
) -> tuple[int, int] | None:
    """Timestamp and offset of a partition's last match, looked for backwards in ever larger windows."""
    window = WINDOW
    stop = end
    while stop > first:
        low = max(first, stop - window)
        found: tuple[int, int] | None = None

        def note(piece: Addressed, rows: npt.NDArray[np.int64]) -> None:
            nonlocal found
            if rows.size:
                found = int(piece.records.timestamp[rows[-1]]), int(piece.records.offset[rows[-1]])

        await _scan(client, config, stream, source, (low, stop), note)
        if found is not None:
            return found
        stop, window = low, window * 2
    return None


async def find_lasts(
    client: AIOKafkaClient,
    config: ConsumerConfig,
    stream: StreamConfig,
    source: Source,
    span: tuple[int, int],
    step: Step,
) -> npt.NDArray[np.int64]:
    """Offsets of the last message of each matching subject in a part of a partition, ascending."""
    lasts: dict[str, int] = {}

    def note(piece: Addressed, rows: npt.NDArray[np.int64]) -> None:
        codes, index = np.unique(piece.codes[rows][::-1], return_index=True)
        offsets = piece.records.offset[rows][::-1][index]
        subjects = piece.dictionary.subjects
        lasts.update((subjects[code], offset) for code, offset in zip(codes.tolist(), offsets.tolist(), strict=True))
        step(piece.records.next_offset - span[0])

    await _scan(client, config, stream, source, span, note)
    return np.sort(np.fromiter(lasts.values(), np.int64, len(lasts)))


async def _scan(
    client: AIOKafkaClient,
    config: ConsumerConfig,
    stream: StreamConfig,
    source: Source,
    span: tuple[int, int],
    note: Callable[[Addressed, npt.NDArray[np.int64]], None],
) -> None:
    """Show `note` every slice of a part of a partition and its matching rows. Corrupt batches are passed over here: the
    delivery that follows meets them again and does what the stream's on_corrupt says."""
    addressing = Addressing(stream.subject.rule, stream.patterns)
    audience = Audience(addressing.dictionary(*source), [patterns(config)])
    async for fetched in read_span(client, *source, *span):
        position = max(fetched.position, span[0])
        for piece in addressing.read(*source, fetched.data, position, stop=span[1], aborted=fetched.aborted):
            if isinstance(piece, Addressed):
                note(piece, audience.select(piece.codes).of(0))
