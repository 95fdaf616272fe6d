"""Checks of keyword arguments in functions that take them as `**names`.

Python refuses an unknown keyword of an ordinary signature itself. A function that collects
keywords, to pass them on as a question or as fields of a consumer, has to check them here.
Otherwise a misspelled filter would filter nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from overlay.config.consumer import ConsumerConfig
from overlay.config.suggestion import suggest
from overlay.errors import OverlayError

CONSUMER_FIELDS = tuple(info.alias or name for name, info in ConsumerConfig.model_fields.items())
"""The fields of a consumer file."""


class UnknownArgument(OverlayError, TypeError):
    """A keyword argument that the function does not have. The caller has to correct the call."""


ALIASES = {"subject": "subjects", "value": "values"}
"""Other spellings of filter words."""
FILTER_WORDS = ("subjects", "sql", "properties", "values", "match_unfiltered", *ALIASES)
"""The words for filters, the same for readings, ordered consumers, and consumers by request."""


class ArgumentConflict(OverlayError, TypeError):
    """Two arguments of a call say the same thing. The caller has to leave one of them out."""


def join_aliases(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the arguments with each alias (`subject`, `value`) replaced by the name that it
    stands for (`subjects`, `values`). An alias that is None is dropped; all other arguments stay as
    they are. Raises ArgumentConflict if an alias and its name are both there and not None.
    """
    found = {name: value for name, value in given.items() if name not in ALIASES}
    for alias, name in ALIASES.items():
        if given.get(alias) is not None:
            if given.get(name) is not None:
                raise ArgumentConflict(f"{alias} and {name} are the same argument. Leave one of them out")
            found[name] = given[alias]
    return found


def spell_filters(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the arguments with FILTER_WORDS replaced by fields of a consumer file: `subjects`
    by `filter_subjects`, a list; the others by one `filter` with them as keys. A word that is None is
    dropped. Raises ArgumentConflict if the field for a word (`filter_subject`, `filter_subjects` or
    `filter`) is there as well and not empty, or an alias and its name.
    """
    joined = join_aliases(given)
    words = {name: joined.pop(name) for name in FILTER_WORDS if name in joined}
    words = {name: value for name, value in words.items() if value is not None}
    if "subjects" in words:
        if clash := [name for name in ("filter_subject", "filter_subjects") if joined.get(name)]:
            raise ArgumentConflict(f"subjects and {clash[0]} are the same argument. Leave one of them out")
        joined["filter_subjects"] = _list_words(words.pop("subjects"))
    if words:
        if joined.get("filter"):
            raise ArgumentConflict(f"filter has {next(iter(words))} in it. Leave one of them out")
        joined["filter"] = {name: _list_words(value) if name == "values" else value for name, value in words.items()}
    return joined


def _list_words(given: Any) -> Any:
    """Return a text as a list of it, another iterable as a list; anything else as it is, for the
    service to judge.
    """
    return [given] if isinstance(given, str) else list(given) if isinstance(given, Iterable) else given


def check_names(function: str, given: Iterable[str], known: Sequence[str]) -> None:
    """Raise UnknownArgument for the first name in `given` that is not in `known`, with a similar
    known name as a suggestion.

    `function`: its name for the message.
    """
    for name in given:
        if name not in known:
            raise UnknownArgument(
                f"{function} has no argument {name!r}.{suggest(name, list(known))} Arguments are {', '.join(known)}"
            )
