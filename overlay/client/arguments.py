"""Checks of arguments that several calls of the client share.

Python refuses an unknown keyword of an ordinary signature itself, without saying which was meant: `named` does.
A function that collects keywords, to pass them on as a question or as fields of a consumer, has to check them
here. Otherwise a misspelled filter would filter nothing.

Seconds become nanoseconds in requests and acks, and limits of locks. NaN and infinity are neither,
so they are refused or bounded here, before they are half way out.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import wraps
from numbers import Real
from typing import Any, ParamSpec, TypeVar, cast

from overlay.config.consumer import ConsumerConfig
from overlay.config.suggestion import suggest_name
from overlay.errors import OverlayError
from overlay.units import INT64_MAX, NANOSECONDS

Delay = float | timedelta
"""Seconds, or a timedelta."""
LONGEST_WAIT_S = 3_000_000_000.0
"""Seconds to which waits are shortened, 95 years: locks take such a time, and the sum of two fits an int64 of ns."""

CONSUMER_FIELDS = tuple(info.alias or name for name, info in ConsumerConfig.model_fields.items())
"""The fields of a consumer file."""


class UnknownArgument(OverlayError, TypeError):
    """A keyword argument that the function does not have. The caller has to correct the call."""


class BadQuestion(OverlayError, ValueError):
    """Arguments of a reading, a subscription or another call of the client that are wrong, alone or together. The caller
    acts.
    """


FEW = 24
"""Most arguments that are all listed beside the one that was meant."""
P = ParamSpec("P")
R = TypeVar("R")

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
    """Raise UnknownArgument for the first name in `given` that is not in `known`, with the known name that
    was meant as a suggestion, and with all known names if these are few or none is similar.

    `function`: its name for the message.
    """
    for name in given:
        if name not in known:
            near = suggest_name(name, known)
            listed = "" if near and len(known) > FEW else f" Arguments are {', '.join(known)}"
            raise UnknownArgument(f"{function} has no argument {name!r}.{near}{listed}")


def named(word: str = "") -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator for a function that is called by users. A call with a keyword that the function does not have
    raises UnknownArgument, a TypeError as Python's own, with the name that was meant. The signature stays as it is.

    `word`: the function's name for the message, if users call it by another than its own.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        code = function.__code__
        names = code.co_varnames[code.co_posonlyargcount : code.co_argcount + code.co_kwonlyargcount]
        known = tuple(name for name in names if name != "self")
        has = frozenset(known).issuperset

        @wraps(function)
        def call(*args: P.args, **given: P.kwargs) -> R:
            if not has(given):
                check_names(word or function.__name__, given, known)
            return function(*args, **given)

        async def call_async(*args: P.args, **given: P.kwargs) -> Any:
            return await cast(Any, call)(*args, **given)

        return cast(Callable[P, R], wraps(function)(call_async)) if inspect.iscoroutinefunction(function) else call

    return decorate


def check_wait(name: str, seconds: float) -> float:
    """Return how long a call may wait, at most LONGEST_WAIT_S: infinity means no limit. A negative
    number stays negative. Raises BadQuestion for NaN and for what is not a number. `name`: the
    argument's, for the message.
    """
    # math.isnan fails at integers that are too large for a float
    if not _is_number(seconds) or not (seconds < 0 or seconds >= 0):
        raise BadQuestion(f"{name} is {seconds!r}, and has to be a number of seconds")
    return float(max(-LONGEST_WAIT_S, min(seconds, LONGEST_WAIT_S)))


def _is_number(value: object) -> bool:
    return isinstance(value, Real)


def check_count(name: str, count: int, least: int) -> int:
    """Return a count. Raises BadQuestion if it is not a whole number, or not from `least` to INT64_MAX. `name`: the
    argument's, for the message.
    """
    if isinstance(count, bool) or not hasattr(count, "__index__") or not least <= count <= INT64_MAX:
        raise BadQuestion(f"{name} is {count!r}, and has to be a whole number, {least} or more")
    return operator.index(count)


def write_delay(delay: Delay | None) -> str:
    """Return what follows the verb in a nak with this delay: the JSON object {"delay": ns} as text, ""
    for None. Raises BadQuestion, which is a ValueError, for a negative delay, for NaN, for what is neither
    a number nor a timedelta, and for a delay of more than INT64_MAX ns (292 years), such as infinity:
    the service ignores a nak with such a number.
    """
    if delay is None:
        return ""
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    if not _is_number(seconds):
        raise BadQuestion(f"a delay is {seconds!r}, and has to be a number of seconds or a timedelta")
    if seconds < 0:
        raise BadQuestion(f"a delay of {seconds} s: naks cannot be sent back in time")
    # negated, so that NaN is refused as well
    if not seconds * NANOSECONDS["s"] < INT64_MAX:
        raise BadQuestion(f"a delay of {seconds} s: give a number of at most {INT64_MAX // NANOSECONDS['s']:,} s")
    return f'{{"delay": {round(seconds * NANOSECONDS["s"])}}}'
