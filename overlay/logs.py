"""Structured logs: for people on a terminal, JSON lines otherwise."""

from __future__ import annotations

import logging
import sys

import structlog


def set_up_logs(*, human: bool | None = None, level: int = logging.INFO) -> None:
    """Send every log of the process to stderr. `human`: None decides by whether stderr is a terminal."""
    pretty = sys.stderr.isatty() if human is None else human
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True)
        if not pretty
        else structlog.processors.TimeStamper("%H:%M:%S"),
        structlog.processors.format_exc_info,
    ]
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
        if pretty
        else structlog.processors.JSONRenderer(default=str)
    )
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(processor=renderer, foreign_pre_chain=shared))
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    # aiokafka logs every retry at warning and above; what matters of it reaches our own log as an error of ours
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
