"""`stream.take` for the overlay's messages.

Faust fills the batches of `take` by a second loop over the stream. When the agent ends with an
exception, that loop goes on until the agent has been started again, and acknowledges events that
nothing has taken. So streams over an agent topic have a `take` of their own, with one loop: what
was not handed out at its end is delivered again.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, TypeVar, cast

from faust import App
from faust.exceptions import AlreadyConfiguredWarning
from faust.streams import Stream
from faust.types import EventT
from mode import Seconds, want_seconds

from overlay.logs import get_logger

from .tracking import DeliveredEvent

log = get_logger(__name__)

B = TypeVar("B")


def take_safely(app: App, is_ours: Callable[[object], bool]) -> None:
    """Replace the application's class of streams (its setting `Stream`) by one whose `take` loses no
    messages of the overlay. A second call does nothing. `is_ours`: returns whether a channel has the
    overlay's messages; streams over other channels work as before.
    """
    settings = cast(Any, app.conf)  # whose types say less than there is
    base = settings.Stream
    if issubclass(base, _Batching):
        return

    class AgentStream(_Batching, base):  # type: ignore[misc, valid-type] # an application may have a class of its own
        """The application's class of streams, with a `take` that loses no messages of the overlay.
        Streams over channels that are not `is_ours` work as before.
        """

        _is_ours = staticmethod(is_ours)

    with warnings.catch_warnings():
        # that the setting was read before: agents make their streams when they start
        warnings.simplefilter("ignore", AlreadyConfiguredWarning)
        settings.Stream = AgentStream


class _Batching(Stream[Any]):
    _is_ours: Callable[[object], bool]

    def take(self, max_: int, within: Seconds) -> AsyncGenerator[Sequence[Any], None]:
        """Yield lists of up to `max_` values. A list is complete with `max_` values or `within` seconds after its first one,
        whichever is earlier; if `within` is 0, only with `max_`. Each list is acknowledged when the next is asked for.
        """
        if not self._is_ours(self.channel):
            return super().take(max_, within)
        return self._track(self._take(max_, within, lambda event: event.value))

    def take_events(self, max_: int, within: Seconds) -> AsyncGenerator[Sequence[EventT[Any]], None]:
        """Yield lists as `take` does, of events instead of their values."""
        if not self._is_ours(self.channel):
            return super().take_events(max_, within)
        return self._track(self._take(max_, within, lambda event: event))

    def take_with_timestamp(
        self, max_: int, within: Seconds, timestamp_field_name: str
    ) -> AsyncGenerator[Sequence[Any], None]:
        """Yield lists of values as `take` does. For the overlay's messages `timestamp_field_name` is not used: they have
        their timestamp in `metadata`.
        """
        if not self._is_ours(self.channel):
            return super().take_with_timestamp(max_, within, timestamp_field_name)
        return self.take(max_, within)

    def noack_take(self, max_: int, within: Seconds) -> AsyncGenerator[Sequence[Any], None]:
        """Yield lists as `take` does, of events, which are not acknowledged: the agent does so by `event.ack()`."""
        if not self._is_ours(self.channel):
            return super().noack_take(max_, within)
        return self._track(self._take(max_, within, lambda event: event, acks=False))

    def _track(self, batches: AsyncGenerator[B, None]) -> AsyncGenerator[B, None]:
        # the stream closes them when it stops
        self._active_agens.add(batches)
        return batches

    async def _take(
        self, max_: int, within: Seconds, show: Callable[[DeliveredEvent], B], *, acks: bool = True
    ) -> AsyncGenerator[list[B], None]:
        """Yield lists of what `show` returns for each event. With `acks` the events of a list are acknowledged when
        the next one is asked for; without, that is up to the agent. At the end, events that were taken from the
        stream and not yielded are abandoned, and with `acks` those of the last list too, unless it was acknowledged:
        they are delivered again.
        """
        was_acking, self.enable_acks = self.enable_acks, False
        source = EventSource(self._each_event())
        try:
            while events := await source.take(max_, want_seconds(within) if within else None):
                yield [show(event) for event in events]
                if acks:
                    for event in events:
                        await self.ack(event)
                source.forget()
        finally:
            self.enable_acks = was_acking
            for event in await source.close(with_shown=acks):
                event.abandon()
                await self.ack(event)

    async def _each_event(self) -> AsyncGenerator[DeliveredEvent, None]:
        async for _ in self:
            yield cast(DeliveredEvent, self.current_event)


class EventSource:
    """Events of a stream, taken in batches by `take`, which end by number or by time. At most one
    event is read ahead of a batch. It belongs to the next batch; `close` returns it with the other
    events that are not done with.
    """

    def __init__(self, events: AsyncGenerator[DeliveredEvent, None]) -> None:
        self._events = events
        self._ahead: asyncio.Task[DeliveredEvent] | None = None
        self._batch: list[DeliveredEvent] = []
        self._is_shown = False

    async def take(self, most: int, within_s: float | None) -> list[DeliveredEvent]:
        """Return the next batch: complete when it has `most` events, or `within_s` seconds after its first one (None:
        no limit). Empty at the end of the stream, also if events were taken for it, which `close` returns then. Call
        `forget` before the next `take`, which otherwise begins with the same events again.
        """
        ends = None
        while len(self._batch) < most:
            if self._ahead is None:
                self._ahead = asyncio.ensure_future(cast(Any, anext(self._events)))
            now = asyncio.get_running_loop().time()
            done, _ = await asyncio.wait({self._ahead}, timeout=None if ends is None else max(0.0, ends - now))
            if not done:
                break
            finished, self._ahead = self._ahead, None
            try:
                self._batch.append(finished.result())
            except StopAsyncIteration:
                return []
            if ends is None and within_s is not None:
                ends = asyncio.get_running_loop().time() + within_s
        self._is_shown = True
        return self._batch

    def forget(self) -> None:
        """Forget the events of the last batch, which are done with: the next `take` begins another, and `close` does not
        return them.
        """
        self._batch, self._is_shown = [], False

    async def close(self, *, with_shown: bool) -> list[DeliveredEvent]:
        """End the loop over the stream. Return the events that were taken out of it and not forgotten. Those of a batch
        that `take` has returned are among them only if `with_shown`. An error of the stream that no `take` has raised
        is only logged.
        """
        left = self._batch if with_shown or not self._is_shown else []
        if (ahead := self._ahead) is not None:
            ahead.cancel()
            await asyncio.wait({ahead})
            error = None if ahead.cancelled() else ahead.exception()
            if error is None and not ahead.cancelled():
                left = [*left, ahead.result()]
            elif error is not None and not isinstance(error, StopAsyncIteration):
                log.warning("a stream has ended by an error while its agent ended", reason=repr(error))
        await self._events.aclose()
        return left
