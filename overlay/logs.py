"""Structured logs: readable on a terminal, JSON lines otherwise.

A program that reads with `overlay.open` may have configured structlog or not. If it has, our logs
follow that configuration, but for tracebacks, which never show local variables. If not, they go to
stderr as readable lines: structlog's default is stdout, where a script prints its data.

structlog is imported with the first log. Importing it takes as long as some commands take to answer,
and most commands log nothing.
"""

from __future__ import annotations

import importlib
import logging
import os
import re
import sys
import traceback
from collections import OrderedDict
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TextIO

from overlay.clock import monotonic

if TYPE_CHECKING:
    import structlog

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
BURST, WINDOW_S = 10, 60.0
"""Warnings and errors of a kind that are logged in so many seconds."""
MOST_KINDS = 10_000
OF_ONE = frozenset({"reason", "error", "exception", "timestamp", "request", "subject"})
"""Fields whose texts may differ each time: a client chooses the id of its request, and what the request is about."""
_OFFSET = re.compile(r"@\d+$")


class ModuleLogger:
    """A module's logger. At each call it uses structlog's configuration, or the overlay's own if
    there is none: modules make loggers before a program configures structlog.
    """

    __slots__ = ("_configured", "_name")

    def __init__(self, name: str) -> None:
        self._name, self._configured = name, None

    def exception(self, event: str, *, of: BaseException | None = None, **fields: object) -> None:
        """Log an error with the traceback of an exception; `of` None means the one that is handled now.

        The traceback is a text before structlog gets it: a program's own configuration, and structlog's default, may
        show the local variables of each function beside it, and those hold secrets.
        """
        error = sys.exception() if of is None else of
        text = "" if error is None else "".join(traceback.format_exception(error)).rstrip("\n")
        self.error(event, exception=text, **fields)

    def __getattr__(self, method: str) -> Any:
        structlog = _load()
        if not structlog.is_configured():
            return getattr(_make_default(), method)
        if self._configured is None:
            self._configured = structlog.get_logger(self._name)
        return getattr(self._configured, method)


@dataclass(slots=True)
class Repeats:
    """A processor of structlog that lets BURST warnings or errors of a kind pass in WINDOW_S seconds, and drops the
    others. The next one that passes says how many there were: `repeated=N`.

    Of a kind are those with the same event, whose other texts are the same (but for those in OF_ONE,
    and for offsets, as in `topic-0@17`), about the same shard, broker and partition number.
    `monotonic`: the clock, in seconds.
    """

    monotonic: Callable[[], float] = monotonic
    _kinds: OrderedDict[tuple[object, ...], list[float]] = field(default_factory=OrderedDict)
    """By kind: when its window began, how many have passed in it, and how many were dropped. The longest unused is first."""

    def __call__(self, logger: object, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """Return the event to log. Raises structlog.DropEvent if there are too many."""
        if event.get("level") not in ("warning", "error"):
            return event
        kind = tuple(
            (name, _leave_out_offset(value)) for name, value in sorted(event.items()) if _is_of_kind(name, value)
        )
        now = self.monotonic()
        known = self._kinds.setdefault(kind, [now, 0, 0])
        self._kinds.move_to_end(kind)
        if len(self._kinds) > MOST_KINDS:
            self._kinds.popitem(last=False)
        began, passed, dropped = known
        if now - began >= WINDOW_S:
            began, passed = now, 0
        if passed >= BURST:
            known[:] = began, passed, dropped + 1
            raise _load().DropEvent
        known[:] = began, passed + 1, 0
        if dropped:
            event["repeated"] = int(dropped)
        return event


def _is_of_kind(name: str, value: object) -> bool:
    is_text = isinstance(value, str) and name not in OF_ONE
    return is_text or (isinstance(value, int) and name in ("shard", "broker", "partition"))


def _leave_out_offset(value: object) -> object:
    """Return a text without the offset at its end, anything else as it is. Strangers choose how many offsets are told of."""
    return _OFFSET.sub("", value) if isinstance(value, str) else value


class _Late:
    """A holder of what is still to be done before the first log: `set_up`, None if nothing is."""

    set_up: Callable[[], None] | None = None


_late = _Late()


def _load() -> Any:
    """Return structlog. If `set_up_logs(late=True)` was called, configure it first, once."""
    structlog = importlib.import_module("structlog")
    set_up, _late.set_up = _late.set_up, None
    if set_up is not None:
        set_up()
    return structlog


def get_logger(name: str) -> Any:
    """Return a new logger with structlog's methods: `log.info(event, key=value)`. `name` is not
    shown.
    """
    return ModuleLogger(name)


def set_up_logs(*, human: bool | None = None, level: int = logging.INFO, late: bool = False) -> None:
    """Configure structlog and the standard library's logging to write to stderr. `human`: readable
    or JSON lines; None means readable if stderr is a terminal.

    `level`: the least level of the overlay's logs. Other libraries log from WARNING on, aiokafka
    from CRITICAL on. `late`: do so only when the overlay first logs or calls `name_source`, for
    commands; only aiokafka's level is set at once.
    """
    # aiokafka logs every retry as a warning or error; the overlay logs those that matter itself
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    _late.set_up = None
    if late:
        _late.set_up = partial(set_up_logs, human=human, level=level)
        return
    structlog = _load()
    stderr = _find_stderr()
    pretty = is_readable(human)
    shared, renderer = _list_processors(pretty), _make_renderer(pretty)
    structlog.configure(
        processors=[*shared[:2], Repeats(), *shared[2:], renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        # a line in one write: PrintLogger makes two where Python does not buffer, and workers share a stderr
        logger_factory=structlog.WriteLoggerFactory(stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(stderr)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(processor=renderer, foreign_pre_chain=shared))
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)


def is_readable(human: bool | None) -> bool:
    """Return whether logs are lines for people, and not JSON: `human`, or if that is None, whether stderr is a terminal."""
    return _find_stderr().isatty() if human is None else human


def name_source(**fields: object) -> None:
    """Add these fields to every log of this task, and of those that it starts."""
    _load().contextvars.bind_contextvars(**fields)


def _make_default() -> Any:
    structlog = _load()
    processors = [*_list_processors(pretty=True), _make_renderer(pretty=True)]
    return structlog.wrap_logger(structlog.WriteLogger(_find_stderr()), processors)


def _find_stderr() -> TextIO:
    # None in a process that was started without stderr (`2>&-`)
    return sys.stderr if sys.stderr is not None else _open_nothing()


@cache
def _open_nothing() -> TextIO:
    return open(os.devnull, "w", encoding="utf-8")


def _list_processors(pretty: bool) -> list[structlog.typing.Processor]:
    structlog = _load()
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper("%H:%M:%S")
        if pretty
        else structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]


def _make_renderer(pretty: bool) -> structlog.typing.Processor:
    library = _load()
    renderer: structlog.typing.Processor
    if pretty:
        renderer = library.dev.ConsoleRenderer(
            colors=_find_stderr().isatty(), exception_formatter=library.dev.plain_traceback
        )
    else:
        renderer = library.processors.JSONRenderer(default=str)
    return renderer
