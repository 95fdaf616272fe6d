"""What the page of `overlay fleet run` has done and looked up, each as the command for it does it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from overlay.errors import OverlayError

from .lookup import find_all

if TYPE_CHECKING:
    from overlay.client.control.control import Control
    from overlay.client.subscribe.replay import Letter, Replay
    from overlay.config import Loaded
    from overlay.view.rewind import RewindPlan

MOST_LETTERS = 1_000
"""Most dead letters that are replayed at once: they are held in memory."""
MOST_LINES = 20
"""Most moves or dead letters that a plan lists."""
STRIP_WIDTH = 128


@dataclass(slots=True)
class PageRequests:
    """Carries out what an administrator asks for on the page (overlay/fleet/actions.py). `control`: for requests to the
    service. `find_files`: returns the config folder as it was last read.
    """

    control: Control
    find_files: Callable[[], Loaded]
    _busy: threading.Lock = field(default_factory=threading.Lock)
    """Held by a reset or replay: each may read much, and one after the other they do not get in each other's way."""

    def pause(self, stream: str, name: str, until: timedelta) -> bool:
        return self.control.pause(stream, name, until)

    def resume(self, stream: str, name: str) -> None:
        self.control.resume(stream, name)

    def drain(self, worker: str, boot: str) -> None:
        self.control.drain(worker, boot)

    def undrain(self, worker: str) -> None:
        self.control.undrain(worker)

    def plan_reset(self, stream: str, to: str) -> str:
        with self._take_turn():
            _, plan = self._plan_reset(stream, to)
        moves = [
            f"{name}, {place}: {'-' if now is None else f'{now:,}'} -> {then:,}"
            for name, place, now, then in plan.list_moves()
        ]
        lines = [plan.reason] if plan.reason else []
        lines += [f"The consumers of stream {stream} begin anew at the {to} of its topics:", *_cut(moves)]
        return "\n".join([*lines, *plan.list_effects()])

    def reset(self, stream: str, to: str) -> str:
        with self._take_turn():
            loaded, plan = self._plan_reset(stream, to)
            asyncio.run(plan.run(loaded))
        return f"stream {stream} begins anew at the {to} of its topics"

    def _plan_reset(self, stream: str, to: str) -> tuple[Loaded, RewindPlan]:
        """Return the config, and the plan to reset a stream. Blocks. Raises OverlayError, also if there is nothing to reset."""
        from overlay.view.rewind import Where, plan_rewind
        from overlay.view.stored import read_memory

        loaded = self.find_files()
        if stream not in loaded.streams:
            raise OverlayError(f"the config folder of the fleet has no stream {stream}")
        memory = asyncio.run(read_memory(loaded))
        plan = plan_rewind(loaded, memory, stream, Where(to))
        if not plan.is_needed(memory):
            raise OverlayError(f"nothing is remembered of stream {stream}, so there is nothing to reset")
        return loaded, plan

    def plan_replay(self, stream: str, name: str, to: str | None) -> str:
        with self._take_turn(), self._open_replay(stream, name, to) as (replaying, topic):
            found = _read(replaying, stream, name)
        whole = sum(letter.is_whole for letter in found)
        lines = _cut([letter.line for letter in found])
        return "\n".join([f"{whole:,} dead letters of {stream}/{name} go to topic {topic}:", *lines])

    def replay(self, stream: str, name: str, to: str | None) -> str:
        with self._take_turn(), self._open_replay(stream, name, to) as (replaying, topic):
            found = _read(replaying, stream, name)
            replaying.send(found, topic)
        whole = sum(letter.is_whole for letter in found)
        more = "; there may be more" if len(found) == MOST_LETTERS else ""
        return f"{whole:,} of {len(found):,} dead letters of {stream}/{name} are replayed to topic {topic}{more}"

    @contextmanager
    def _open_replay(self, stream: str, name: str, to: str | None) -> Iterator[tuple[Replay, str]]:
        """Give a replay of a consumer's dead letters and the topic to produce to, to a `with` block. Raises OverlayError."""
        from overlay.client.subscribe.replay import Replay, choose_target

        loaded = find_all(self.find_files())
        topics = loaded.streams[stream].topic_names if stream in loaded.streams else ()
        if to is None and len(topics) > 1:
            raise OverlayError(f"stream {stream} has the topics {', '.join(topics)}. Name one of them")
        letters, topic = choose_target(loaded, stream, name, to)
        if topic not in topics:
            # a record that is written to one of the overlay's own topics might do what its holder may not ask for
            raise OverlayError(f"{topic} is no topic of stream {stream}, which has {', '.join(topics)}")
        service = loaded.service
        with Replay(service.kafka, service.topics.prefix, (stream, name), letters) as replaying:
            yield replaying, topic

    @contextmanager
    def _take_turn(self) -> Iterator[None]:
        """Hold the lock of resets and replays. Raises OverlayError if another one has it."""
        if not self._busy.acquire(blocking=False):
            raise OverlayError("another reset or replay is under way. Try again when it is done")
        try:
            yield
        finally:
            self._busy.release()


def _read(replaying: Replay, stream: str, name: str) -> list[Letter]:
    """Return a consumer's dead letters since the last replay, at most MOST_LETTERS. Raises OverlayError, also if there are
    none.
    """
    found = replaying.read(limit=MOST_LETTERS)
    if not found:
        raise OverlayError(f"there are no dead letters of {stream}/{name} since the last replay")
    return found


def _cut(lines: list[str]) -> list[str]:
    """Return the first MOST_LINES lines, and how many more there are."""
    rest = len(lines) - MOST_LINES
    return [*lines[:MOST_LINES], f"and {rest:,} more"] if rest > 0 else lines


def draw_chunks(files: Loaded, stream: str, name: str) -> dict[str, Any]:
    """Return what a consumer's filter skips in the log of its stream, by the index in Kafka, as `/fleet/chunks` answers it.
    Blocks. Raises OverlayError.
    """
    from overlay.view.account import describe_chunks

    from .explain import ask_for_consumer, explain_stored

    loaded = find_all(files)
    config = loaded.consumers.get((stream, name))
    if config is None:
        raise OverlayError(f"there is no consumer {stream}/{name}")
    return describe_chunks(explain_stored(loaded, ask_for_consumer(loaded, config)), STRIP_WIDTH)
