"""Compression and decompression of record batches, with cramjam.

Decompression writes into an arena that is reused for every fetch: a new array per batch would cost
as much time in page faults as LZ4 itself. For records the arena grows to a limit, which also stops
a small batch that decompresses to a huge one. It becomes small again when it was large for nothing
(shrinking.py).
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable
from typing import Any

import cramjam
import numpy as np

from overlay.arrays import Bytes

from .header import Fault
from .shrinking import Shrinking


class Codec(enum.IntEnum):
    """Kafka's compression codecs by their number in a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


XERIAL = (
    # framing of Java's snappy: this, two int32 versions, then blocks of int32 length and raw snappy
    b"\x82SNAPPY\x00"
)
XERIAL_HEADER = 16


class Arena:
    """A growing buffer for the decompressed records of one slice. `size` and `limit` are bytes.

    The records end at the limit or below. `buf` is beyond it only while texts of a slice need more room.
    """

    def __init__(self, size: int = 4 << 20, limit: int = 128 << 20) -> None:
        self.limit = limit
        self._size = min(size, limit)
        self._shrinking = Shrinking(self._size)
        self._used = 0  # bytes of `buf` that were needed since the last `trim`
        self.buf: Bytes = np.empty(self._size, np.uint8)

    def put(self, at: int, codec: int, data: Bytes) -> int | Fault:
        """Decompress `data` (copy it for Codec.NONE) to `buf` from `at` on. Return the position
        after it, or a Fault (CODEC, DECOMPRESS or TOO_LARGE). The bytes below `at` are kept, but
        `buf` may be another array afterwards.
        """
        if codec == Codec.NONE:
            return self._copy(at, data)
        decompress = _DECOMPRESS.get(codec)
        if decompress is None:
            return Fault.CODEC
        while True:
            try:
                # room for texts, which may be beyond the limit, is none for records
                return self._note(at + int(decompress(data, self.buf[at : self.limit])))
            except (cramjam.DecompressionError, ValueError) as error:
                if not _is_full(error):
                    return Fault.DECOMPRESS
                if not self._grow(at):
                    return Fault.TOO_LARGE

    def reserve(self, at: int, room: int) -> Bytes:
        """Return the buffer, with `room` bytes from `at` on, even if that is beyond the limit. The
        bytes below `at` are kept.
        """
        if at + room > self.buf.size:
            larger = np.empty(max(at + room, min(self.buf.size * 2, self.limit)), np.uint8)
            larger[:at] = self.buf[:at]
            self.buf = larger
        self._note(at + room)
        return self.buf

    def trim(self) -> None:
        """Replace `buf` by a new array of the initial size if it is larger than the limit, or was
        larger than needed for SMALL_SLICES slices. Call when a slice is not read any more.
        """
        is_large_for_nothing = self._shrinking.is_due(self.buf.size, self._used)
        if is_large_for_nothing or self.buf.size > self.limit:
            self.buf = np.empty(self._size, np.uint8)
        self._used = 0

    def _note(self, end: int) -> int:
        """Note that `buf` is needed up to `end`, and return `end`."""
        self._used = max(self._used, end)
        return end

    def _copy(self, at: int, data: Bytes) -> int | Fault:
        if at + data.size > self.limit:
            return Fault.TOO_LARGE
        while at + data.size > self.buf.size:
            if not self._grow(at):
                return Fault.TOO_LARGE
        self.buf[at : at + data.size] = data
        return self._note(at + data.size)

    def _grow(self, keep: int) -> bool:
        if self.buf.size >= self.limit:
            return False
        larger = np.empty(min(self.buf.size * 2, self.limit), np.uint8)
        larger[:keep] = self.buf[:keep]
        self.buf = larger
        return True


class _Full(ValueError):
    """The output does not fit the buffer."""


def _is_full(error: Exception) -> bool:
    return isinstance(error, _Full) or "whole buffer" in str(error)


def _snappy(data: Bytes, out: Bytes) -> int:
    raw = data.tobytes()
    if not raw.startswith(XERIAL):
        return _raw_snappy(raw, out)
    at, filled = XERIAL_HEADER, 0
    while at < len(raw):
        if at + 4 > len(raw):
            raise ValueError("a snappy block's length is cut off")
        (size,) = struct.unpack_from(">i", raw, at)
        if size < 0 or at + 4 + size > len(raw):
            raise ValueError("a snappy block runs past the end")
        filled += _raw_snappy(raw[at + 4 : at + 4 + size], out[filled:])
        at += 4 + size
    return filled


def _raw_snappy(raw: bytes, out: Any) -> int:
    size = int(cramjam.snappy.decompress_raw_len(raw))
    if size > out.size:
        raise _Full(f"{size} bytes do not fit")
    if not size:
        # There is nothing to write, and cramjam accepts no empty output; but the data after the
        # size must be sound.
        return len(cramjam.snappy.decompress_raw(raw))
    return int(cramjam.snappy.decompress_raw_into(raw, out[:size]))


_DECOMPRESS: dict[int, Callable[[Any, Any], int]] = {
    Codec.GZIP: cramjam.gzip.decompress_into,
    Codec.SNAPPY: _snappy,
    Codec.LZ4: cramjam.lz4.decompress_into,
    Codec.ZSTD: cramjam.zstd.decompress_into,
}


def compress(codec: Codec, data: Bytes) -> bytes:
    """Return one batch's records in compressed form, as the broker and every client accept them."""
    return _COMPRESS[codec](data)


_LZ4_HEAD = bytes.fromhex("04224d186050fb")
"""The header of an LZ4 frame: independent blocks (the broker refuses others) of up to 256 KiB,
without checksums.

The batch has a checksum of its own. Compared with Java's 64 KiB, larger blocks are an eighth
smaller in total and faster to read.
"""
_LZ4_BLOCK = 1 << 18
_LZ4_STORED = 1 << 31
_LZ4_END = bytes(4)


def _lz4(data: Any) -> bytes:
    # Block by block: cramjam's frame compressor holds the GIL, and adds a checksum to every block.
    parts: list[Any] = [_LZ4_HEAD]
    for at in range(0, data.size, _LZ4_BLOCK):
        block = data[at : at + _LZ4_BLOCK]
        out: Any = np.empty(block.size + block.size // 255 + 16, np.uint8)
        size = int(cramjam.lz4.compress_block_into(block, out, store_size=False))
        if size < block.size:
            parts += [struct.pack("<I", size), out[:size].data]
        else:
            parts += [struct.pack("<I", block.size | _LZ4_STORED), block.data]
    return b"".join([*parts, _LZ4_END])


def _xerial(data: Any) -> bytes:
    block = bytes(cramjam.snappy.compress_raw(data))
    return XERIAL + struct.pack(">iii", 1, 1, len(block)) + block


_COMPRESS: dict[Codec, Callable[[Any], bytes]] = {
    Codec.NONE: lambda data: data.tobytes(),
    Codec.GZIP: lambda data: bytes(cramjam.gzip.compress(data, 1)),
    Codec.SNAPPY: _xerial,
    Codec.LZ4: _lz4,
    Codec.ZSTD: lambda data: bytes(cramjam.zstd.compress(data, 1)),
}
