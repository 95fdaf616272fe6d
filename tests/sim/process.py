"""Processes of a simulation: who runs a piece of code, and whether it still may.

Everything runs in one Python process and one thread. A context variable says which simulated process a piece of code belongs
to; tasks, timers and callbacks inherit it, as asyncio copies the context of the code that makes them. Code without a process
is the world's: brokers, the network, and the history itself.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context, ContextVar
from enum import Enum
from typing import Any


class State(Enum):
    RUNNING = "running"
    FROZEN = "frozen"
    DEAD = "dead"


class Process:
    """A simulated process. The loop asks for `state` before it runs anything of it."""

    __slots__ = ("context", "dead_callbacks", "held", "name", "offset_s", "state")

    def __init__(self, name: str, offset_s: float = 0.0) -> None:
        self.name = name
        self.state = State.RUNNING
        self.context = Context()
        """In which its code runs."""
        self.context.run(PROCESS.set, self)
        self.offset_s = offset_s
        """By how much the wall clock of its machine is ahead of the cluster's, in seconds."""
        self.held: list[Any] = []
        """Handles that came up while it was frozen or dead. Those of a dead process are kept until the history ends: without
        a reference Python would close their coroutines, and run the `finally` blocks that a kill leaves out."""
        self.dead_callbacks: list[Callable[[], None]] = []
        """Called when the process is killed: the operating system closes its connections."""

    def __repr__(self) -> str:
        return f"<{self.name} {self.state.value}>"


PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)
