"""Checks of keyword arguments in functions that take them as `**names`.

Python refuses an unknown keyword of an ordinary signature itself. A function that collects
keywords, to pass them on as a question or as fields of a consumer, has to check them here.
Otherwise a misspelled filter would filter nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from overlay.config.consumer import ConsumerConfig
from overlay.config.relations import suggest
from overlay.errors import OverlayError

CONSUMER_FIELDS = tuple(info.alias or name for name, info in ConsumerConfig.model_fields.items())
"""The fields of a consumer file."""


class UnknownArgument(OverlayError, TypeError):
    """A keyword argument that the function does not have. The caller has to correct the call."""


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
