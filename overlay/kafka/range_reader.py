"""Reading one range of offsets of a partition, once: for state logs, last messages and samples."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator

from aiokafka.client import AIOKafkaClient

from overlay.errors import SourceChanged, SourceUnavailable
from overlay.scan import Decoder, Malformed, make_plan
from overlay.waits import is_set_within

from .fetched import Changed, Denied, Fetched, Lost
from .fetcher import Fetcher
from .gate import Gate
from .log_position import TopicPartition
from .lost_position import refuse
from .records import PlainReader, RowReader

PATIENCE_S = 30.0
HOLD_S = 5.0
"""Seconds for which a gate may hold back what a range needs. Others may wait for the reader of the range."""
HANGING = (
    "Kafka aborts a transaction when its producer's transaction.timeout.ms has passed, but not one that its coordinator"
    " does not know any more. `kafka-transactions.sh find-hanging` finds such a one, and `abort` ends it"
)
"""What becomes of an open transaction, and what an operator does about it."""
LOOK_BACK = 16
"""Offsets to search first for the last record of a log."""


class StillOpen(SourceUnavailable):
    """A transaction has been open for as long as the caller wants to wait. `offset`: the last stable offset, at which the
    transaction begins; `end`: the offset up to which the caller reads.
    """

    def __init__(self, topic: str, partition: int, offset: int, end: int) -> None:
        self.offset, self.end = offset, end
        super().__init__(
            f"{topic}-{partition}@{offset}: a transaction that began here is open, and nothing behind it can be read. {HANGING}"
        )


async def read_span(
    client: AIOKafkaClient,
    topic: str,
    partition: int,
    start: int,
    end: int,
    *,
    size: int | None = None,
    fetcher: Fetcher | None = None,
    plain: bool = False,
    compacted: bool = False,
    gate: Gate | None = None,
    open_s: float | None = None,
) -> AsyncGenerator[Fetched, None]:
    """Yield fetches that together hold the offsets start <= offset < end, and may hold others around them. `end` must
    not be above the high watermark; what lies above the last stable offset is waited for. If the header of a batch
    cannot be read, the fetch that begins with it is the last one (`Fetched.unreadable`).

    `size`: approximate bytes of the range, if known; not much more is then fetched. `fetcher`: one to share between
    several ranges that are read at the same time. `plain`: as in Fetcher, if there is none to share. `compacted`:
    whether the topic is compacted. The last fetch is empty then if no batch is left in the rest of the range. `gate`:
    as in Fetcher.open. `open_s`: seconds for which an open transaction may hold the read up before StillOpen is raised; None
    for PATIENCE_S, after which it is SourceUnavailable.

    Raises SourceChanged if the log no longer has the offset to read next, `start` or a later one, or has changed, or,
    with the gate's stream, if the gate holds records back for HOLD_S;
    CredentialsRefused if this user may not read the partition; SourceUnavailable after PATIENCE_S without an answer,
    or behind a transaction that stays open.
    """
    if start >= end:
        return
    own = fetcher is None
    fetcher = fetcher or Fetcher(client, plain=plain)
    partition_fetch = await fetcher.open(topic, partition, start, end, size, gate=gate)
    partition_fetch.is_compacted = compacted
    try:
        position = start
        while position < end:
            fetcher.changed.clear()
            # data is yielded; every state of the log in which the range cannot be read raises
            match partition_fetch.take():
                case Fetched() as fetched:
                    yield fetched
                    position = fetched.next_offset
                    if position == fetched.position:
                        return  # a batch that cannot be read: the decoder of the caller reports it
                case Lost(at):
                    raise SourceChanged(f"{topic}-{partition}@{at}: the log does not hold this offset any more")
                case Changed() | Denied() as found:
                    raise refuse(found, (topic, partition), "Read it anew")
                case None:
                    if gate is not None and partition_fetch.held is not None:
                        if not await is_set_within(fetcher.changed, HOLD_S):
                            raise SourceChanged(_explain_hold(topic, partition, position, gate), gate.stream)
                    elif open_s is not None and 0 <= (stable_end := partition_fetch.stable_end) < end:
                        if not await is_set_within(fetcher.changed, open_s):
                            raise StillOpen(topic, partition, stable_end, end)
                    elif not await is_set_within(fetcher.changed, PATIENCE_S):
                        is_open = partition_fetch.stable_end == position
                        raise SourceUnavailable(_explain(topic, partition, position, is_open=is_open))
    finally:
        fetcher.shut(partition_fetch)
        if own:
            await fetcher.close()


def _explain_hold(topic: str, partition: int, position: int, gate: Gate) -> str:
    return f"{topic}-{partition}@{position}: records wait for the schema registry: {gate.trouble or 'no answer yet'}"


def _explain(topic: str, partition: int, position: int, *, is_open: bool) -> str:
    """Return, for an error, why no data was fetched at `position` within PATIENCE_S. `is_open`: whether the last stable
    offset is at `position`, so that an open transaction is the reason.
    """
    place = f"{topic}-{partition}@{position}"
    if not is_open:
        return f"{place}: no answer within {PATIENCE_S:.0f} s"
    return (
        f"{place}: a transaction that began here has been open for {PATIENCE_S:.0f} s, and nothing behind it can be read."
        f" {HANGING}"
    )


async def read_records(
    client: AIOKafkaClient,
    topic: str,
    partition: int,
    start: int,
    end: int,
    *,
    plain: bool = False,
    compacted: bool = False,
) -> AsyncIterator[tuple[int, bytes | None, bytes]]:
    """Yield offset, key and value of each committed record with start <= offset < end that has a value.

    Only for small topics: it makes Python objects per record. `plain`: read without kernels, as in Fetcher.
    `compacted`: whether the topic is compacted, so that there may be no batch in the rest of the range. Raises
    SourceChanged for a batch that cannot be read, and the errors of `read_span`.
    """
    reader = PlainReader() if plain else RowReader()
    async for fetched in read_span(client, topic, partition, start, end, plain=plain, compacted=compacted):
        for row in reader.read(fetched, fetched.position, end):
            if isinstance(row, Malformed):
                raise SourceChanged(f"{topic}-{partition}@{row.base_offset}: {row.fault.text}")
            if row.value is not None:
                yield row.offset, row.key, row.value


async def find_records_end(
    client: AIOKafkaClient, source: TopicPartition, first: int, end: int, *, compacted: bool = False
) -> int:
    """Return the offset after the last committed record that can be read in first <= offset < end;
    `first` if there is none.

    From that offset on there are only transaction markers, aborted records and batches that cannot
    be read, and records that `read_span` does not reach after a batch whose header cannot be read.
    `end` must not be above the last stable offset. The search goes backwards from `end`. `compacted`:
    whether the topic is compacted, so that its last offsets may have no batch. Raises as `read_span`.
    """
    decoder, reach = Decoder(make_plan()), LOOK_BACK
    while first < end:
        start, found = max(first, end - reach), -1
        async for fetched in read_span(client, *source, start, end, compacted=compacted):
            position = max(fetched.position, start)
            for piece in decoder.decode(fetched.data, position, stop=end, aborted=fetched.aborted):
                if not isinstance(piece, Malformed) and len(piece):
                    found = int(piece.offset[-1])
        if found >= 0:
            return found + 1
        end, reach = start, 8 * reach
    return first
