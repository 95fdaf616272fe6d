"""A filter for deliveries that were seen before, with bounded state, without a watermark and
without a clock.

Spark's own `dropDuplicatesWithinWatermark` forgets by the watermark, and a query has only one. It
would drop late records, and delay the results of operators further down that use a watermark. State
that times out by the clock makes Spark run batches for ever, so a query over what exists now would
never end. So the state here is bounded by its size.

The sequences of a consumer are cut into blocks, and a block with any record is a bitmap. If there
are too many blocks, the one that was least recently used is dropped. A redelivery after that many
others is shown again. Blocks are spread over a few groups (`lane`), which are what Spark can
process in parallel.

Rows go through Python for this, as pandas frames, which can have lists of bytes but no lists of
structs. So headers are passed as two lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState

from overlay.arrays import Bytes, Flags, Ints

BLOCK = 4096
"""Sequences in a block, which takes 512 bytes of state."""
LANES = 8

Key = tuple[str, str, int]
Frames = Iterator[pd.DataFrame]

_BYTES = BLOCK // 8
_MASKS = (0x80 >> np.arange(8)).astype(np.uint8)
_MASKS.setflags(write=False)


class Seen:
    """The sequences of one group (`lane`) that were seen, in at most `limit` blocks of BLOCK
    neighbouring sequences each.

    `state`: as `pack` returned it; empty if none was seen yet.
    """

    def __init__(self, limit: int, state: bytes = b"") -> None:
        count = len(state) // (8 + _BYTES)
        ids = np.frombuffer(state, np.int64, count)
        bitmaps = np.frombuffer(state, np.uint8, count * _BYTES, offset=count * 8).reshape(count, _BYTES)
        # least recently used first
        self._blocks: dict[int, Bytes] = dict(zip(ids.tolist(), bitmaps, strict=True))
        self._limit = limit

    def note(self, sequences: Ints) -> Flags:
        """Return for each sequence whether it is new: seen neither in an earlier call nor earlier
        in this one. Then all of them count as seen. If there are more blocks than the limit, those
        used least recently are forgotten.
        """
        fresh = np.zeros(sequences.size, np.bool_)
        distinct, first = np.unique(sequences, return_index=True)
        starts = np.flatnonzero(np.diff(distinct // BLOCK, prepend=-1))
        for part, at in zip(np.split(distinct, starts[1:]), np.split(first, starts[1:]), strict=True):
            if part.size:
                block, bits = int(part[0]) // BLOCK, part % BLOCK
                known = self._blocks.pop(block, None)
                bitmap = np.zeros(_BYTES, np.uint8) if known is None else known.copy()
                fresh[at] = bitmap[bits // 8] & _MASKS[bits % 8] == 0
                np.bitwise_or.at(bitmap, bits // 8, _MASKS[bits % 8])
                self._blocks[block] = bitmap
        for block in list(self._blocks)[: max(0, len(self._blocks) - self._limit)]:
            del self._blocks[block]
        return fresh

    def pack(self) -> bytes:
        """Return the blocks as bytes, from which another Seen can be made."""
        return np.array(list(self._blocks), np.int64).tobytes() + b"".join(map(bytes, self._blocks.values()))


def drop_redeliveries(deliveries: DataFrame, remember: int) -> DataFrame:
    """Return the deliveries with each (stream, consumer, sequence) once, as far as sequences are
    remembered: a later delivery of the same is left out. Rows without a sequence are kept.

    `deliveries`: with the envelope's columns.

    `remember`: about how many stream sequences of each consumer are remembered; the state has an
    eighth of that in bytes.
    """
    headers, sequence = F.col("headers"), F.col("sequence")
    packed = deliveries.withColumns(
        {
            "names": F.transform(headers, lambda header: header["name"]),
            "values": F.transform(headers, lambda header: header["value"]),
            "place": F.coalesce(sequence, F.lit(-1)),
            "lane": F.coalesce(F.floor(sequence / BLOCK) % LANES, F.lit(-1)).cast("int"),
        }
    ).drop("headers")
    fresh = packed.groupBy("stream", "consumer", "lane").applyInPandasWithState(
        _make_sift(max(1, remember // BLOCK // LANES)), packed.schema, "seen binary", "append", "NoTimeout"
    )
    whole = F.arrays_zip("names", "values").cast("array<struct<name:string,value:binary>>")
    return fresh.withColumn("headers", whole).select(deliveries.columns)


def _make_sift(limit: int) -> Callable[[Key, Iterable[pd.DataFrame], GroupState], Frames]:
    def sift(key: Key, frames: Iterable[pd.DataFrame], state: GroupState) -> Frames:
        if key[-1] < 0:
            yield from frames
            return
        seen = Seen(limit, bytes(state.get[0]) if state.exists else b"")
        for frame in frames:
            kept = frame[seen.note(frame["place"].to_numpy())]
            if len(kept):
                yield kept
        state.update((seen.pack(),))

    return sift
