"""Gates: what the fetched records of a stream have to wait for before their reader gets them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from .fetched import Fetched, cut_front
from .log_position import TopicPartition

LOOK_S = 0.2
"""How often a wait for a gate looks whether its partition fetch was moved."""


class Gate(Protocol):
    """Decides when fetched records of a stream may be passed on. Until then the partition fetch waits; others do not."""

    @property
    def stream(self) -> str:
        """Return the name of the stream."""

    @property
    def trouble(self) -> str:
        """Return why records wait for longer than usual; empty if that is unknown."""

    async def find_open(self, fetched: Fetched) -> Sequence[tuple[int, int]]:
        """Return what the records of a fetch have to wait for, each with the offset of the first record that waits,
        ascending by offset.
        """

    async def settle(self, source: tuple[str, int], id: int, offset: int) -> None:
        """Wait until a record of this partition, at `offset`, need not wait for `id` any more."""


async def pass_through(
    gate: Gate, fetched: Fetched, source: TopicPartition, is_held: Callable[[], bool]
) -> Fetched | None:
    """Wait until a gate lets data of a partition through, and return it, or the part at its front that need not wait.
    Return None if `is_held` does not hold any more: the reader has moved.
    """
    for id, offset in await gate.find_open(fetched):
        if (front := cut_front(fetched, offset)) is not None:
            return front
        waiting = asyncio.ensure_future(gate.settle(source, id, offset))
        try:
            while is_held() and not waiting.done():
                await asyncio.wait([waiting], timeout=LOOK_S)
            if not waiting.done():
                return None
            waiting.result()
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
    return fetched
