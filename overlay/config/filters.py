"""Checks of a consumer's filter against the properties and subjects of its stream.

Filter values that no message of the stream can have are refused as well. Their consumer would stay
empty, and nothing would show the reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from overlay.errors import FilterSyntaxError, SubjectError
from overlay.field import FieldKind
from overlay.subject import Pattern, SubjectRule, is_subject

from .consumer import FilterConfig
from .document import Path
from .stream import StreamConfig, is_sectioned

if TYPE_CHECKING:
    from overlay.filter import Filter


def compile_filter(config: FilterConfig, stream: StreamConfig) -> Filter | None:
    """Return the compiled filter of a consumer: its `sql`, or else its `properties`, with the types
    of the stream.

    Returns None if the config has neither.

    Raises FilterSyntaxError.
    """
    if config.sql is None and config.properties is None:
        return None
    # loads the parser and Arrow, which a folder without filters does not need
    from overlay.filter import compile_properties, compile_sql

    if config.sql is not None:
        try:
            return compile_sql(config.sql, stream.properties)
        except FilterSyntaxError as error:
            raise name_property(error, stream) from None
    return compile_properties(config.properties or {}, stream.properties)


def list_properties(stream: StreamConfig) -> list[str]:
    """Return the names of the declared properties that a filter names without a section."""
    return [name for name in stream.properties if not is_sectioned(name)]


def find_property(stream: StreamConfig, name: str) -> str:
    """Return the declared property that a filter means by `name`, which is not declared itself: one whose name differs
    in case, hyphens, underscores and dots alone, or else one that is read from the JSON field `name`, or from one whose
    path ends with `name`. "" if there is none.
    """
    wanted = _fold(name)
    names = list_properties(stream)
    sources = {own: stream.properties[own].source for own in names}
    paths = {own: each.name for own, each in sources.items() if each is not None and each.kind is FieldKind.VALUE}
    found = [own for own in names if _fold(own) == wanted]
    found += [own for own, path in paths.items() if _fold(path) == wanted]
    found += [own for own, path in paths.items() if _fold(path.rpartition(".")[2]) == wanted]
    return found[0] if found else ""


def name_property(error: FilterSyntaxError, stream: StreamConfig) -> FilterSyntaxError:
    """Return the error for a name with a point, such as `customer.vip`, with the declared property that is read from this
    field of the value, or is named so, as its hint. Any other error is returned as it is.
    """
    dotted = _DOTTED.search(error.hint) if error.message.startswith("unknown section ") else None
    if dotted is None:
        return error
    name = dotted[1]
    own = name if name in stream.properties else find_property(stream, name)
    if not own:
        return error
    source = stream.properties[own].source
    hint = f"did you mean {own if _PLAIN.fullmatch(own) else f'[{own}]'}?"
    hint += f" It is read from {source}" if own != name and source is not None else ""
    return FilterSyntaxError(
        error.message, hint=hint, line=error.line, column=error.column, excerpt=error.excerpt, path=error.path
    )


_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_DOTTED = re.compile(r"is written \[(.+)\]$")


def _fold(name: str) -> str:
    return name.casefold().replace("-", "_").replace(".", "_")


def check_filter(config: FilterConfig, stream: StreamConfig) -> Iterator[tuple[Path, str]]:
    """Yield the path and message of the first error in the `sql` or `properties` of a consumer's filter, and of each
    error in its `values` and `match_unfiltered`.

    If the error has a place in an expression, its message names the line and column within the expression. YAML may
    fold and indent a string, so in the file only the beginning of the expression has a known place.
    """
    try:
        compile_filter(config, stream)
    except FilterSyntaxError as error:
        path: Path = ("filter", "sql") if config.sql is not None else ("filter", "properties", *error.path)
        yield path, _word(error)
    yield from check_values(config, stream)


def check_values(config: FilterConfig, stream: StreamConfig) -> Iterator[tuple[Path, str]]:
    """Yield the path and message of each error in a consumer's `values` and `match_unfiltered`."""
    if config.match_unfiltered and not config.values:
        yield (
            ("filter", "match_unfiltered"),
            "goes with `values`: without them every message passes. Name some, or leave it out",
        )
    for at, value in enumerate(config.values):
        if fault := _find_fault(value, stream):
            yield ("filter", "values", at), f"found {value!r}, which no message has: {fault}"


def _find_fault(value: str, stream: StreamConfig) -> str:
    """Return why no message of the stream can have this filter value; "" if the stream's file does not rule it out."""
    chosen = stream.filter_value
    if chosen.header is not None or (chosen.template is not None and not value):
        return ""
    if chosen.template is not None:
        (cover,) = SubjectRule.from_template(chosen.template).patterns()
        fits = is_subject(value) and cover.matches(value)
        return "" if fits else f"the stream's filter_value is made by {chosen.template}"
    if not value:
        return "the stream's filter_value is the subject, and every message has one"
    if not is_subject(value):
        hint = ". Wildcards go into filter_subjects" if _is_pattern(value) else ""
        return f"the stream's filter_value is the subject, and this is none{hint}"
    for words, patterns in (("has the subjects", stream.patterns), ("builds", stream.subject.rule.patterns())):
        if not any(pattern.matches(value) for pattern in patterns):
            return f"the stream {words} {', '.join(map(str, patterns))}"
    return ""


def _is_pattern(text: str) -> bool:
    try:
        return not Pattern(text).is_literal
    except SubjectError:
        return False


def _word(error: FilterSyntaxError) -> str:
    where = f"line {error.line}, column {error.column} of the expression: " if error.line else ""
    hint = f" ({error.hint})" if error.hint else ""
    excerpt = f"\n{error.excerpt}" if error.excerpt else ""
    return f"{where}{error.message}{hint}{excerpt}"
