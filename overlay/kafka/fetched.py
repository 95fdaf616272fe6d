"""What a fetch brings of one partition: data, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from overlay.arrays import Bytes
from overlay.scan.commit import Aborted
from overlay.scan.header import BATCH, Batches

from .log_position import LogPosition


@dataclass(frozen=True, slots=True)
class Fetched:
    """A partition's part of a fetch response. `data`: record batches, beginning with the one that holds `position`, or
    the next one if none does, or with an earlier one if another fetch has brought them; empty if compaction has left
    none. The last one may be cut off, and is then not in `batches`. `aborted`: pairs of producer id and first offset.
    `log_start`: the first offset of the log.
    """

    position: int
    data: Bytes
    batches: Batches
    """Where the batches are in `data`, and the fields of their headers."""
    aborted: Aborted
    stable_end: int
    """The last stable offset: records from there on are not committed yet."""
    log_start: int
    log_position: LogPosition
    """Position of the next fetch, with epoch and checksum of the last batch. It is `position`
    itself if there was no whole batch.
    """
    unreadable: int = -1
    """Base offset of a batch whose header cannot be read, where `batches` end; -1 if there is none.
    """

    @property
    def next_offset(self) -> int:
        return self.log_position.position

    @property
    def reach(self) -> int:
        """Return the offset from which the log still has to be read after this fetch:
        `next_offset`, or one past the base offset of a batch that cannot be read. If that batch begins
        before `next_offset`, it is one past `next_offset`: how far the batch reaches is unknown.
        """
        return self.next_offset if self.unreadable < 0 else max(self.next_offset, self.unreadable) + 1

    @property
    def records(self) -> int:
        """Return the number of records of all batches, as the batch headers count them. Counted are
        also records below `position`, records of aborted transactions, and transaction markers.
        """
        return int(self.batches["count"].clip(0).sum())


@dataclass(frozen=True, slots=True)
class Lost:
    """A position outside the log: below its start, such as after retention, or above its end, such as after the log
    has become shorter.
    """

    position: int


@dataclass(frozen=True, slots=True)
class Changed:
    """A position below which the log has changed: it lost its end and grew again.

    `cut`: the offset where it was cut off, or the start of the log if it is a different log.
    """

    position: int
    cut: int


@dataclass(frozen=True, slots=True)
class Denied:
    """Kafka does not allow this user to read the partition."""

    reason: str


def cut_front(fetched: Fetched, offset: int) -> Fetched | None:
    """Return the batches of a fetch that end before an offset, as a fetch of their own; None if there are none from
    its position on.
    """
    count = int(np.searchsorted(fetched.batches["last_offset"], offset))
    batches = fetched.batches[:count]
    log_position = log_position_after(batches, fetched.position)
    if log_position.position == fetched.position:
        return None
    data = fetched.data[: int(batches[-1]["end"])]
    return replace(fetched, data=data, batches=batches, log_position=log_position, unreadable=-1)


def join(parts: Sequence[Fetched]) -> Fetched:
    """Return fetches as one. Each has to have a batch, and its first one has to be the one behind the last batch of the
    fetch before it. What follows the last batch of a part, such as one that is cut off, is left out. The joined data is a
    copy, for reading only.
    """
    datas = [part.data[: int(part.batches[-1]["end"])] for part in parts]
    data = np.concatenate(datas)
    data.flags.writeable = False
    # as bytes, since to concatenate structures takes fifty times as long
    batches = np.concatenate([part.batches.view(np.uint8) for part in parts]).view(BATCH)
    shifts = np.repeat(np.cumsum([0, *(each.size for each in datas[:-1])]), [part.batches.size for part in parts])
    for field in ("at", "end"):
        batches[field] += shifts
    # a transaction that reaches over several parts is in the list of each
    aborted = np.unique(np.concatenate([part.aborted for part in parts]), axis=0)
    return replace(parts[-1], position=parts[0].position, data=data, batches=batches, aborted=aborted)


def log_position_after(batches: Batches, position: int) -> LogPosition:
    """Return the log position after the last of these batches; `position` with unknown epoch and
    CRC if no batch reaches it.
    """
    if not batches.size or int(batches[-1]["last_offset"]) < position:
        return LogPosition(position)
    last = batches[-1]
    return LogPosition(int(last["last_offset"]) + 1, int(last["leader_epoch"]), int(last["crc"]))
