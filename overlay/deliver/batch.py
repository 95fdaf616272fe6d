"""A finished record batch, in the place where aiokafka's producer expects a BatchBuilder.

The batch is complete but for the producer's id, epoch and sequence, which aiokafka hands over when it drains the batch. The
methods with an underscore are those that aiokafka 0.14 calls (`MessageBatch.set_producer_state`, `get_data_buffer`); a
contract test holds them.
"""

from __future__ import annotations

import struct

from overlay.scan.codec import Codec, compress
from overlay.scan.crc import crc32c
from overlay.scan.header import HEADER_SIZE, TRANSACTIONAL

from .assemble import Body

_FRONT = struct.Struct(">qiibI")  # base offset, length, leader epoch, magic, CRC
_REST = struct.Struct(">hiqqqhii")  # attributes ... record count: what the CRC covers, with the records


class EncodedBatch:
    """Records of one output partition, compressed and ready to send."""

    def __init__(self, body: Body, codec: Codec, *, transactional: bool) -> None:
        self._records = compress(codec, body.records)
        self._attributes = int(codec) | (TRANSACTIONAL if transactional else 0)
        self._count, self._base, self._latest = body.count, body.base_timestamp, body.max_timestamp
        self._producer = (-1, -1, -1)

    @property
    def is_transactional(self) -> bool:
        return bool(self._attributes & TRANSACTIONAL)

    def append(self, *, timestamp: object, key: object, value: object, headers: object = ()) -> None:
        """Refuse: the batch is full, aiokafka is to open another."""

    def close(self) -> None:
        """Nothing is open."""

    def closed(self) -> bool:
        return True

    def size(self) -> int:
        """Bytes on the wire, as the broker's max.message.bytes counts them."""
        return HEADER_SIZE + len(self._records)

    def record_count(self) -> int:
        return self._count

    def _set_producer_state(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        self._producer = (producer_id, producer_epoch, base_sequence)

    def _build(self) -> bytes:
        rest = _REST.pack(
            self._attributes, self._count - 1, self._base, self._latest, *self._producer, self._count
        ) + self._records  # fmt: skip
        return _FRONT.pack(0, len(rest) + 9, 0, 2, crc32c(rest)) + rest
