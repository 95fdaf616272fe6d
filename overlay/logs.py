"""Structured logs: readable on a terminal, JSON lines otherwise.

A program that reads with `overlay.open` may have configured structlog or not. If it has, our logs
follow that configuration. If not, they go to stderr: structlog's default is stdout, where a script
prints its data.

structlog is imported with the first log. Importing it takes as long as some commands take to answer,
and most commands log nothing.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    import structlog


class ModuleLogger:
    """A module's logger. At each call it uses structlog's configuration, or the overlay's own if
    there is none: modules make loggers before a program configures structlog.
    """

    __slots__ = ("_configured", "_name")

    def __init__(self, name: str) -> None:
        self._name, self._configured = name, None

    def __getattr__(self, method: str) -> Any:
        structlog = _load()
        if not structlog.is_configured():
            return getattr(_make_default(), method)
        if self._configured is None:
            self._configured = structlog.get_logger(self._name)
        return getattr(self._configured, method)


class _Late:
    """What is still to be done before the first log; None if nothing is."""

    set_up: Callable[[], None] | None = None


_late = _Late()


def _load() -> Any:
    """Return structlog, set up as `set_up_logs(late=True)` was told to."""
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
    from CRITICAL on. `late`: do so only when the overlay logs for the first time, for commands.
    """
    # aiokafka logs every retry as a warning or error; the overlay logs those that matter itself
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    _late.set_up = None
    if late:
        _late.set_up = partial(set_up_logs, human=human, level=level)
        return
    structlog = _load()
    stderr = _find_stderr()
    pretty = stderr.isatty() if human is None else human
    shared, renderer = _list_processors(pretty), _make_renderer(pretty)
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(stderr)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(processor=renderer, foreign_pre_chain=shared))
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)


def _make_default() -> Any:
    structlog = _load()
    processors = [*_list_processors(pretty=True), _make_renderer(pretty=True)]
    return structlog.wrap_logger(structlog.PrintLogger(_find_stderr()), processors)


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
