"""The way through a stretch, leg by leg, each with a partition fetch of the fetcher.

The first partition fetch of a journey is the one whose records come next. Partition fetches behind it are fetched
ahead, so that reading many small legs is not a matter of waiting for answers. They are bounded over all journeys
together: by number, and by bytes, which headers tell. A leg whose bytes nobody knows, or which is large, is not
fetched ahead; it has enough to keep fetches going by itself. So what lies ready behind the first partition fetches
stays far below the bytes at which a fetcher stops fetching, and the first partition fetches always get what they
need.

Working on a fetch has a price that does not depend on its size. So small legs that have come whole are worked on as one: to
a decoder what lies between them is a gap like those that compaction leaves. That holds where no transaction was aborted; else
the end of one could lie in the gap, and its producer's later records would be taken for aborted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from overlay.kafka.fetcher import READY_BYTES, Changed, Denied, Fetched, Fetcher, Lost, PartitionFetch
from overlay.scan.header import split

from .offset_ranges import Leg, Stretch

AHEAD_LANES = 8
AHEAD_BYTES = READY_BYTES // 3
SMALL_BYTES = 64 << 10


class Journey:
    """One stretch. `go_on` opens its partition fetches; there is one as long as it is not over."""

    def __init__(self, fetcher: Fetcher, stretch: Stretch) -> None:
        self.stretch = stretch
        self._fetcher = fetcher
        self._legs: deque[Leg] = deque(stretch.legs())
        self._partition_fetches: deque[tuple[PartitionFetch, Leg]] = deque()
        self.offsets = sum(leg.stop - leg.start for leg in self._legs)
        """How many there are to read."""

    @property
    def is_over(self) -> bool:
        return not self._partition_fetches and not self._legs

    @property
    def partition_fetch(self) -> PartitionFetch:
        """The partition fetch whose records come next."""
        return self._partition_fetches[0][0]

    @property
    def ahead(self) -> Sequence[int]:
        """Bytes of the legs that are fetched ahead."""
        return [leg.size or 0 for _, leg in list(self._partition_fetches)[1:]]

    @property
    def next_size(self) -> int | None:
        """Bytes of the next leg to open; None when there is no other, or they are not known."""
        return self._legs[0].size if self._legs else None

    def take(self) -> tuple[Fetched | Lost | Changed | Denied | None, int]:
        """What has come, and how many offsets within it lie between its legs."""
        taken, (partition_fetch, leg) = self.partition_fetch.take(), self._partition_fetches[0]
        if not isinstance(taken, Fetched) or not _is_small_and_whole(taken, partition_fetch):
            return taken, 0
        parts, gaps = [taken], 0
        while len(self._partition_fetches) > 1 and _is_small_and_whole(
            self._partition_fetches[1][0].ready, self._partition_fetches[1][0]
        ):
            self.leave()
            gaps += self._partition_fetches[0][1].start - leg.stop
            following, (_, leg) = self.partition_fetch.take(), self._partition_fetches[0]
            assert isinstance(following, Fetched)
            parts.append(following)
        return (_join(parts) if len(parts) > 1 else taken), gaps

    async def open(self) -> None:
        """Open a partition fetch for the next leg, unless none is left."""
        if self._legs:
            leg = self._legs.popleft()
            self._partition_fetches.append(
                (await self._fetcher.open(*self.stretch.source, leg.start, leg.stop, leg.size), leg)
            )

    def leave(self) -> None:
        """Be done with the first partition fetch if it is at its end."""
        if self.partition_fetch.ready is None and self.partition_fetch.position >= self.partition_fetch.stop:
            self._fetcher.shut(self.partition_fetch)
            self._partition_fetches.popleft()

    @property
    def is_waiting(self) -> bool:
        """Whether it has no partition fetch yet."""
        return not self._partition_fetches


async def go_on(journeys: Sequence[Journey]) -> None:
    """Open what is to be read now, and what may be fetched ahead."""
    for each in journeys:
        if each.is_waiting:
            await each.open()
    ahead = [size for each in journeys for size in each.ahead]
    partition_fetches, room = AHEAD_LANES - len(ahead), AHEAD_BYTES - sum(ahead)
    for each in journeys:
        while partition_fetches > 0 and (size := each.next_size) is not None and size <= room:
            await each.open()
            partition_fetches, room = partition_fetches - 1, room - size


def _is_small_and_whole(taken: Fetched | Lost | Changed | Denied | None, partition_fetch: PartitionFetch) -> bool:
    """Whether a fetch is all of a small leg and no more, and without aborted transactions."""
    if not isinstance(taken, Fetched) or taken.data.size > SMALL_BYTES or taken.aborted.size or not taken.batches.size:
        return False
    is_whole = partition_fetch.position >= partition_fetch.stop > int(taken.batches[-1]["last_offset"])
    return is_whole and int(taken.batches[0]["base_offset"]) >= taken.position


def _join(parts: Sequence[Fetched]) -> Fetched:
    data = np.concatenate([part.data[: int(part.batches[-1]["end"])] for part in parts])
    return replace(parts[-1], position=parts[0].position, data=data, batches=split(data).batches)
