"""What a reader needs to notice that a log has lost its end, and to find where: the leader epochs of single batches.

A log may lose its end in an unclean election and, before the next fetch, grow past the position of
a reader. All records written afterwards have a higher leader epoch. So a reader knows the epoch of
the batch before its position. If the first batch of a response has another epoch, the batch before
the position is read once more and compared. An epoch has one leader, which writes each offset once,
so the same epoch there means the same log below. Elections are rare, and so is this extra fetch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aiokafka import errors as kafka_errors
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.structs import TopicPartition

from overlay.scan.header import HEADER_SIZE

from .fetch_response import READ_COMMITTED, fetch

NO_EPOCH = -1
_EPOCH_AT, _MAGIC_AT, _MAGIC = 12, 16, 2


def find_epoch(data: Any) -> int:
    """Return the leader epoch in the header of the first batch of `data`; NO_EPOCH if there is no
    whole header, or one of another format than v2.
    """
    if data is None or len(data) < HEADER_SIZE or data[_MAGIC_AT] != _MAGIC:
        return NO_EPOCH
    return int.from_bytes(bytes(data[_EPOCH_AT : _EPOCH_AT + 4]), "big", signed=True)


@dataclass(frozen=True, slots=True)
class LogReader:
    """Reads single batches of logs. `apart`: as of `fetch`."""

    client: AIOKafkaClient
    apart: int

    async def look_at(self, node: int, tp: TopicPartition, offset: int) -> tuple[int, int]:
        """Fetch the batch that holds `offset`, or the next batch if none does, and return its base
        offset and leader epoch. `node`: the partition's leader.

        Both are -1 if the log does not have the offset; (0, -1) if there is no batch yet. Raises
        KafkaError.
        """
        # Kafka sends the first batch whole, however few bytes are asked for.
        wanted = [(tp.topic, [(tp.partition, offset, 1)])]
        request = FetchRequest(0, 0, 1, READ_COMMITTED, wanted)
        response = await fetch(self.client, node, request, apart=self.apart)
        ((_, code, *_, data),) = response.topics[0][1]
        error = kafka_errors.for_code(code)
        if error is kafka_errors.OffsetOutOfRangeError:
            return -1, NO_EPOCH
        if error is not kafka_errors.NoError:
            raise error(f"{tp.topic}-{tp.partition}@{offset}")
        return int.from_bytes(bytes(data[:8] if data else b""), "big"), find_epoch(data)

    async def find_cut(self, node: int, tp: TopicPartition, epoch: int, first: int, position: int) -> int:
        """Return the first offset from `first` on whose batch has a higher leader epoch than
        `epoch`; `position` if none below it has. Reads one batch for each step of a binary search.

        Raises KafkaError.
        """
        low, high = first, position
        while low < high:
            middle = (low + high) // 2
            if (await self.look_at(node, tp, middle))[1] > epoch:
                high = middle
            else:
                low = middle + 1
        return low
