"""The way through a stretch, leg by leg, each with a lane of the feed.

The first lane of a journey is the one whose records come next. Lanes behind it are fetched ahead, so that reading many small
legs is not a matter of waiting for answers. They are bounded over all journeys together: by number, and by bytes, which
headers tell. A leg whose bytes nobody knows, or which is large, is not fetched ahead; it has enough to keep
fetches going by itself. So what lies ready behind the first lanes stays far below the bytes at which a feed stops
fetching, and the first lanes always get what they need.

Working on a fetch has a price that does not depend on its size. So small legs that have come whole are worked on as one: to
a decoder what lies between them is a gap like those that compaction leaves. That holds where no transaction was aborted; else
the end of one could lie in the gap, and its producer's later records would be taken for aborted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from overlay.kafka.fetcher import READY_BYTES, Changed, Denied, Feed, Fetched, Lane, Lost
from overlay.scan.header import split

from .offset_ranges import Leg, Stretch

AHEAD_LANES = 8
AHEAD_BYTES = READY_BYTES // 3
SMALL_BYTES = 64 << 10


class Journey:
    """One stretch. `go_on` opens its lanes; there is one as long as it is not over."""

    def __init__(self, feed: Feed, stretch: Stretch) -> None:
        self.stretch = stretch
        self._feed = feed
        self._legs: deque[Leg] = deque(stretch.legs())
        self._lanes: deque[tuple[Lane, Leg]] = deque()
        self.offsets = sum(leg.stop - leg.start for leg in self._legs)
        """How many there are to read."""

    @property
    def is_over(self) -> bool:
        return not self._lanes and not self._legs

    @property
    def lane(self) -> Lane:
        """The lane whose records come next."""
        return self._lanes[0][0]

    @property
    def ahead(self) -> Sequence[int]:
        """Bytes of the legs that are fetched ahead."""
        return [leg.size or 0 for _, leg in list(self._lanes)[1:]]

    @property
    def next_size(self) -> int | None:
        """Bytes of the next leg to open; None when there is no other, or they are not known."""
        return self._legs[0].size if self._legs else None

    def take(self) -> tuple[Fetched | Lost | Changed | Denied | None, int]:
        """What has come, and how many offsets within it lie between its legs."""
        taken, (lane, leg) = self.lane.take(), self._lanes[0]
        if not isinstance(taken, Fetched) or not _is_small_and_whole(taken, lane):
            return taken, 0
        parts, gaps = [taken], 0
        while len(self._lanes) > 1 and _is_small_and_whole(self._lanes[1][0].ready, self._lanes[1][0]):
            self.leave()
            gaps += self._lanes[0][1].start - leg.stop
            following, (_, leg) = self.lane.take(), self._lanes[0]
            assert isinstance(following, Fetched)
            parts.append(following)
        return (_join(parts) if len(parts) > 1 else taken), gaps

    async def open(self) -> None:
        """Open a lane for the next leg, unless none is left."""
        if self._legs:
            leg = self._legs.popleft()
            self._lanes.append((await self._feed.open(*self.stretch.source, leg.start, leg.stop, leg.size), leg))

    def leave(self) -> None:
        """Be done with the first lane if it is at its end."""
        if self.lane.ready is None and self.lane.position >= self.lane.stop:
            self._feed.shut(self.lane)
            self._lanes.popleft()

    @property
    def is_waiting(self) -> bool:
        """Whether it has no lane yet."""
        return not self._lanes


async def go_on(journeys: Sequence[Journey]) -> None:
    """Open what is to be read now, and what may be fetched ahead."""
    for each in journeys:
        if each.is_waiting:
            await each.open()
    ahead = [size for each in journeys for size in each.ahead]
    lanes, room = AHEAD_LANES - len(ahead), AHEAD_BYTES - sum(ahead)
    for each in journeys:
        while lanes > 0 and (size := each.next_size) is not None and size <= room:
            await each.open()
            lanes, room = lanes - 1, room - size


def _is_small_and_whole(taken: Fetched | Lost | Changed | Denied | None, lane: Lane) -> bool:
    """Whether a fetch is all of a small leg and no more, and without aborted transactions."""
    if not isinstance(taken, Fetched) or taken.data.size > SMALL_BYTES or taken.aborted.size or not taken.batches.size:
        return False
    is_whole = lane.position >= lane.stop > int(taken.batches[-1]["last_offset"])
    return is_whole and int(taken.batches[0]["base_offset"]) >= taken.position


def _join(parts: Sequence[Fetched]) -> Fetched:
    data = np.concatenate([part.data[: int(part.batches[-1]["end"])] for part in parts])
    return replace(parts[-1], position=parts[0].position, data=data, batches=split(data).batches)
