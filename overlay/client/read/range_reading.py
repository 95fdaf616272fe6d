"""The reading of one offset range: its fetch ranges one after the other, each with a partition fetch
of its own.

The records of the first partition fetch come next. The fetch ranges behind it are fetched ahead, so
that reading many small ones does not mean waiting for many answers. What is fetched ahead is
bounded over all range readings together, by number and by bytes, which chunk headers tell. A fetch
range that is large, or whose bytes are unknown, is not fetched ahead; it is enough to keep fetches
going by itself. So what is ready behind the first partition fetches stays far below the bytes at
which a fetcher stops. The first partition fetches always get what they need.

Processing a fetch has a cost that does not depend on its size. So small fetch ranges that were fetched
whole are processed as one. For the decoder, the space between them is a gap like those that
compaction leaves. This is valid only if no transaction was aborted. Otherwise the end of an aborted
transaction could be in the gap, and later records of its producer would be taken for aborted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from overlay.kafka.fetched import Changed, Denied, Fetched, Lost
from overlay.kafka.fetcher import READY_BYTES, Fetcher
from overlay.kafka.gate import Gate
from overlay.kafka.partition_fetch import PartitionFetch
from overlay.scan.header import split

from .offset_ranges import FetchRange, OffsetRange

AHEAD_FETCHES = 8
AHEAD_BYTES = READY_BYTES // 3
SMALL_BYTES = 64 << 10


class RangeReading:
    """The reading of one offset range: its fetch ranges one after the other, each by a partition
    fetch (a reading position of the fetcher) of its own.

    Call in a loop until `is_over`: the function `go_on`, which opens one partition fetch at least and
    others ahead; `take`, which returns fetched data; `leave`, which closes a partition fetch at its end.
    """

    def __init__(self, fetcher: Fetcher, offset_range: OffsetRange, gate: Gate | None = None) -> None:
        """`gate`: decides when fetched records may be taken; None to take them at once."""
        self.offset_range, self._gate = offset_range, gate
        self._fetcher = fetcher
        self._fetch_ranges: deque[FetchRange] = deque(offset_range.fetch_ranges())
        self._partition_fetches: deque[tuple[PartitionFetch, FetchRange]] = deque()
        self.offsets = sum(fetch_range.stop - fetch_range.start for fetch_range in self._fetch_ranges)
        """Number of offsets to read."""

    @property
    def is_over(self) -> bool:
        return not self._partition_fetches and not self._fetch_ranges

    @property
    def partition_fetch(self) -> PartitionFetch:
        """The partition fetch whose records come next."""
        return self._partition_fetches[0][0]

    @property
    def ahead(self) -> Sequence[int]:
        """The bytes of each fetch range that is fetched ahead, behind the first partition fetch; 0 if unknown."""
        return [fetch_range.size or 0 for _, fetch_range in list(self._partition_fetches)[1:]]

    @property
    def next_size(self) -> int | None:
        """Bytes of the next fetch range to open; None if there is none, or if they are unknown."""
        return self._fetch_ranges[0].size if self._fetch_ranges else None

    def take(self) -> tuple[Fetched | Lost | Changed | Denied | None, int]:
        """Return what the first partition fetch has ready, None if nothing is, and a number of skipped
        offsets, which is 0 unless fetch ranges were joined. It never waits. There must be an open
        partition fetch.

        If small fetch ranges are ready as a whole, they are returned joined as one Fetched, with the
        number of offsets in the gaps between them. All their partition fetches but the last are
        closed.
        """
        taken, (partition_fetch, fetch_range) = self.partition_fetch.take(), self._partition_fetches[0]
        if not isinstance(taken, Fetched) or not _is_small_and_whole(taken, partition_fetch):
            return taken, 0
        parts, gaps = [taken], 0
        while len(self._partition_fetches) > 1 and _is_small_and_whole(
            self._partition_fetches[1][0].ready, self._partition_fetches[1][0]
        ):
            self.leave()
            gaps += self._partition_fetches[0][1].start - fetch_range.stop
            following, (_, fetch_range) = self.partition_fetch.take(), self._partition_fetches[0]
            assert isinstance(following, Fetched)
            parts.append(following)
        return (_join(parts) if len(parts) > 1 else taken), gaps

    async def open(self) -> None:
        """Open a partition fetch for the next fetch range, if there is one. Does not wait for its data."""
        if self._fetch_ranges:
            part = self._fetch_ranges.popleft()
            opened = await self._fetcher.open(
                *self.offset_range.source, part.start, part.stop, part.size, gate=self._gate
            )
            self._partition_fetches.append((opened, part))

    def leave(self) -> None:
        """Close the first partition fetch if it has reached its end and none of its data is left to take."""
        if self.partition_fetch.is_empty and self.partition_fetch.position >= self.partition_fetch.stop:
            self._fetcher.shut(self.partition_fetch)
            self._partition_fetches.popleft()

    @property
    def is_waiting(self) -> bool:
        """Whether the reading has no open partition fetch."""
        return not self._partition_fetches


async def go_on(range_readings: Sequence[RangeReading]) -> None:
    """Open a partition fetch for each reading that has none, and further ones for fetch ranges to
    be fetched ahead: at most AHEAD_FETCHES and AHEAD_BYTES over all readings, none of unknown size.
    Does not wait for data.
    """
    for each in range_readings:
        if each.is_waiting:
            await each.open()
    ahead = [size for each in range_readings for size in each.ahead]
    partition_fetches, room = AHEAD_FETCHES - len(ahead), AHEAD_BYTES - sum(ahead)
    for each in range_readings:
        while partition_fetches > 0 and (size := each.next_size) is not None and size <= room:
            await each.open()
            partition_fetches, room = partition_fetches - 1, room - size


def _is_small_and_whole(taken: Fetched | Lost | Changed | Denied | None, partition_fetch: PartitionFetch) -> bool:
    """Return whether `taken` is data of a whole fetch range, that of `partition_fetch`, of at most SMALL_BYTES, with
    whole batches of that range only and without aborted transactions.
    """
    if not isinstance(taken, Fetched) or taken.data.size > SMALL_BYTES or taken.aborted.size or not taken.batches.size:
        return False
    is_whole = partition_fetch.position >= partition_fetch.stop > int(taken.batches[-1]["last_offset"])
    return is_whole and int(taken.batches[0]["base_offset"]) >= taken.position


def _join(parts: Sequence[Fetched]) -> Fetched:
    data = np.concatenate([part.data[: int(part.batches[-1]["end"])] for part in parts])
    return replace(parts[-1], position=parts[0].position, data=data, batches=split(data).batches)
