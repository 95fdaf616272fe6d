"""Structured logs: readable on a terminal, JSON lines otherwise.

A program that reads with `overlay.open` may have configured structlog or not. If it has, our logs
follow that configuration. If not, they go to stderr: structlog's default is stdout, where a script
prints its data.
"""

from __future__ import annotations

import logging
import os
import sys
from functools import cache
from typing import Any, TextIO

import structlog


class ModuleLogger:
    """A module's logger. At each call it uses structlog's configuration, or the overlay's own if
    there is none: modules make loggers before a program configures structlog.
    """

    __slots__ = ("_configured",)

    def __init__(self, name: str) -> None:
        self._configured = structlog.get_logger(name)

    def __getattr__(self, method: str) -> Any:
        return getattr(self._configured if structlog.is_configured() else _make_default(), method)


def get_logger(name: str) -> Any:
    """Return a new logger with structlog's methods: `log.info(event, key=value)`. `name` is not
    shown.
    """
    return ModuleLogger(name)


def set_up_logs(*, human: bool | None = None, level: int = logging.INFO) -> None:
    """Configure structlog and the standard library's logging to write to stderr. `human`: readable
    or JSON lines; None means readable if stderr is a terminal.

    `level`: the least level of the overlay's logs. Other libraries log from WARNING on, aiokafka
    from CRITICAL on.
    """
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
    # aiokafka logs every retry as a warning or error; the overlay logs those that matter itself
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)


def _make_default() -> Any:
    processors = [*_list_processors(pretty=True), _make_renderer(pretty=True)]
    return structlog.wrap_logger(structlog.PrintLogger(_find_stderr()), processors)


def _find_stderr() -> TextIO:
    # None in a process that was started without stderr (`2>&-`)
    return sys.stderr if sys.stderr is not None else _open_nothing()


@cache
def _open_nothing() -> TextIO:
    return open(os.devnull, "w", encoding="utf-8")


def _list_processors(pretty: bool) -> list[structlog.typing.Processor]:
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper("%H:%M:%S")
        if pretty
        else structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]


def _make_renderer(pretty: bool) -> structlog.typing.Processor:
    if not pretty:
        return structlog.processors.JSONRenderer(default=str)
    return structlog.dev.ConsoleRenderer(
        colors=_find_stderr().isatty(), exception_formatter=structlog.dev.plain_traceback
    )
