"""What JetStream and the file format know and this version cannot do yet: one table, so that nothing is ignored.

A row names a field, when it asks for something that is missing here, and what to write instead. A field at the value
it would have anyway asks for nothing. The rows of a feature are deleted when the feature arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from overlay.config.consumer import AckPolicy, ConsumerConfig
from overlay.config.document import Path

C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class _Row(Generic[C]):
    path: Path
    asks: Callable[[C], bool]
    instead: str
    what: str = ""

    @property
    def message(self) -> str:
        return f"{self.what or self.path[-1]} is not supported yet. {self.instead}"


LEAVE = "Leave it out"


def _set(field: str) -> _Row[ConsumerConfig]:
    """The field asks when it has another value than its own zero."""
    zero = ConsumerConfig.model_fields[field].default
    return _Row((field,), lambda config: getattr(config, field) != zero, LEAVE)


_CONSUMER: tuple[_Row[ConsumerConfig], ...] = (
    _Row(
        ("ack_policy",),
        lambda c: c.ack_policy is AckPolicy.FLOW_CONTROL,
        "Write ack_policy: all",
        "ack_policy flow_control, which servers use among themselves for sources,",
    ),
    _set("direct"),
    _set("sourcing"),
)


def find_unsupported(config: ConsumerConfig) -> Iterator[tuple[Path, str]]:
    """Yield path and message of what a consumer asks for in vain. `config` as written, without filled-in defaults."""
    return ((row.path, row.message) for row in _CONSUMER if row.asks(config))
