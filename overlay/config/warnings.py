"""Things in a file that are allowed and hardly meant. They are told, and stop nothing."""

from __future__ import annotations

from collections.abc import Iterator

from overlay.errors import ConfigError
from overlay.subject import Pattern, find_plain_wildcard
from overlay.units import NANOSECONDS, format_duration

from .document import Document, Path, show_path

LEAST = NANOSECONDS["ms"]
"""Nanoseconds below which a duration without a unit was hardly meant as nanoseconds."""
_SPANS: tuple[Path, ...] = (
    ("ack_wait",),
    ("backoff",),
    ("max_expires",),
    ("idle_heartbeat",),
    ("inactive_threshold",),
    ("priority_timeout",),
    ("index", "chunk_age"),
)
"""Durations of consumer and stream files."""
_PATTERNS: tuple[Path, ...] = (("filter_subject",), ("filter_subjects",), ("subjects",))


def find_warnings(document: Document) -> Iterator[ConfigError]:
    """Yield a warning for each value of a consumer or stream file that was hardly meant: a duration that is a
    positive whole number below LEAST, without a unit, and a `*` or `>` within a token of a subject.
    """
    for path, value in _find_values(document, _SPANS):
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < LEAST:
            message = f"{value} without a unit is {format_duration(value)}. Write {value}s for seconds"
            yield ConfigError(document.place(path), message, field=show_path(path))
    for path, value in _find_values(document, _PATTERNS):
        if isinstance(value, str) and (token := find_plain_wildcard(Pattern(value))):
            message = f"the * or > in {token!r} is an ordinary character. A wildcard stands alone between dots"
            yield ConfigError(document.place(path), message, field=show_path(path))


def _find_values(document: Document, paths: tuple[Path, ...]) -> Iterator[tuple[Path, object]]:
    """Yield each of these paths with its value, None where the document has none; after a list, each of its items with its
    own path."""
    for path in paths:
        value: object = document.data
        for step in path:
            value = value.get(str(step)) if isinstance(value, dict) else None
        items = enumerate(value) if isinstance(value, tuple | list) else ()
        yield path, value
        for at, item in items:
            yield (*path, at), item
