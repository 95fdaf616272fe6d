"""What JetStream and the file format know and this version cannot do yet: one table, so that nothing is ignored.

A row names a field, when it asks for something that is missing here, and what to write instead. A field at the value
it would have anyway asks for nothing. The rows of a feature are deleted when the feature arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from overlay.config.consumer import (
    AckPolicy,
    ConsumerConfig,
    OnUndeliverable,
    PriorityPolicy,
)
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


def _set(field: str, instead: str = LEAVE) -> _Row[ConsumerConfig]:
    """The field asks when it has another value than its own zero."""
    zero = ConsumerConfig.model_fields[field].default
    return _Row((field,), lambda config: getattr(config, field) != zero, instead)


def _set_acks(policy: AckPolicy) -> _Row[ConsumerConfig]:
    what = f"ack_policy {policy}" + (", the default," if policy is AckPolicy.EXPLICIT else "")
    return _Row(("ack_policy",), lambda config: config.ack_policy is policy, "Write ack_policy: none", what)


_CONSUMER: tuple[_Row[ConsumerConfig], ...] = (
    _Row(("durable_name",), lambda c: not c.durable_name, "Use durable_name instead of name", "an ephemeral consumer"),
    _set_acks(AckPolicy.FLOW_CONTROL),
    _set("inactive_threshold"),
    _set("num_replicas"),
    _set("mem_storage"),
    _set("direct"),
    _set("sourcing"),
    _Row(("priority_policy",), lambda c: c.priority_policy is not PriorityPolicy.NONE, LEAVE),
    _set("priority_groups"),
    _set("priority_timeout"),
    _Row(
        ("on_undeliverable",),
        lambda c: c.on_undeliverable is OnUndeliverable.DEAD_LETTER,
        "Use stop",
        "on_undeliverable dead_letter",
    ),
)


def find_unsupported(config: ConsumerConfig) -> Iterator[tuple[Path, str]]:
    """Yield path and message of what a consumer asks for in vain. `config` as written, without filled-in defaults."""
    return ((row.path, row.message) for row in _CONSUMER if row.asks(config))
