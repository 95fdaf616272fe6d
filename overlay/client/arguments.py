"""Keyword arguments that a signature takes as `**names`: refused where no such name exists.

Python refuses an unknown keyword of an ordinary signature itself. A function that collects keywords, to hand them on as a
question or as fields of a consumer, has to do it here, or a misspelled filter would filter nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from overlay.config.consumer import ConsumerConfig
from overlay.config.relations import suggest
from overlay.errors import OverlayError

CONSUMER_FIELDS = tuple(info.alias or name for name, info in ConsumerConfig.model_fields.items())
"""The fields of a consumer file."""


class UnknownArgument(OverlayError, TypeError):
    """A keyword argument that the function does not have. The caller acts."""


def check_names(function: str, given: Iterable[str], known: Sequence[str]) -> None:
    """Raise UnknownArgument for the first given name that is not known, with a suggestion."""
    for name in given:
        if name not in known:
            raise UnknownArgument(
                f"{function} has no argument {name!r}.{suggest(name, list(known))} Arguments are {', '.join(known)}"
            )
