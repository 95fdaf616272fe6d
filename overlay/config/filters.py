"""A consumer's filter: compiled against its stream's properties, or refused with its place in the file and in the text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from overlay.config.consumer import FilterConfig
from overlay.config.document import Path
from overlay.config.stream import StreamConfig
from overlay.errors import FilterSyntaxError

if TYPE_CHECKING:
    from overlay.filter import Filter


def compile_filter(config: FilterConfig, stream: StreamConfig) -> Filter | None:
    """The filter that the messages of the matching subjects have to pass; None when all do. Raises FilterSyntaxError."""
    if config.sql is None and config.properties is None:
        return None
    # brings the parser and Arrow along, which a folder without filters has no use for
    from overlay.filter import compile_properties, compile_sql

    if config.sql is not None:
        return compile_sql(config.sql, stream.properties)
    return compile_properties(config.properties or {}, stream.properties)


def check_filter(config: FilterConfig, stream: StreamConfig) -> Iterator[tuple[Path, str]]:
    """Yield path and message of what is wrong with a filter.

    An expression's own lines and columns stand in the message, with the place marked: YAML may fold and indent a text, so
    only its beginning has a place in the file.
    """
    try:
        compile_filter(config, stream)
    except FilterSyntaxError as error:
        path: Path = ("filter", "sql") if config.sql is not None else ("filter", "properties", *error.path)
        yield path, _word(error)


def _word(error: FilterSyntaxError) -> str:
    where = f"line {error.line}, column {error.column} of the expression: " if error.line else ""
    hint = f" ({error.hint})" if error.hint else ""
    excerpt = f"\n{error.excerpt}" if error.excerpt else ""
    return f"{where}{error.message}{hint}{excerpt}"
