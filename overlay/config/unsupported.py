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
    FilterConfig,
    OnUndeliverable,
    PriorityPolicy,
    ReplayPolicy,
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
NO_ACKS = "Leave it out: it has a meaning only with acks, which are not supported yet either"
PULLED = "Leave it out: it has a meaning only for pull consumers, which are not supported yet either"


def _set(field: str, instead: str = LEAVE) -> _Row[ConsumerConfig]:
    """The field asks when it has another value than its own zero."""
    zero = ConsumerConfig.model_fields[field].default
    return _Row((field,), lambda config: getattr(config, field) != zero, instead)


def _set_acks(policy: AckPolicy) -> _Row[ConsumerConfig]:
    what = f"ack_policy {policy}" + (", the default," if policy is AckPolicy.EXPLICIT else "")
    return _Row(("ack_policy",), lambda config: config.ack_policy is policy, "Write ack_policy: none", what)


def _set_filter(field: str) -> _Row[ConsumerConfig]:
    zero = FilterConfig.model_fields[field].default
    return _Row(
        ("filter", field), lambda config: getattr(config.filter, field) != zero, "Use filter_subjects or filter.sql"
    )


_CONSUMER: tuple[_Row[ConsumerConfig], ...] = (
    _Row(("durable_name",), lambda c: not c.durable_name, "Use durable_name instead of name", "an ephemeral consumer"),
    _Row(("deliver_subject",), lambda c: not c.is_push, "Name an output topic in deliver_subject", "a pull consumer"),
    *(_set_acks(policy) for policy in AckPolicy if policy is not AckPolicy.NONE),
    _set("ack_wait", NO_ACKS),
    _Row(("max_deliver",), lambda c: c.max_deliver > 0, NO_ACKS),
    _set("backoff", NO_ACKS),
    _Row(
        ("replay_policy",), lambda c: c.replay_policy is ReplayPolicy.ORIGINAL, "Use instant", "replay_policy original"
    ),
    _set("rate_limit_bps"),
    _set("sample_freq", NO_ACKS),
    _Row(("max_waiting",), lambda c: c.max_waiting > 0, PULLED),
    _set("max_ack_pending", NO_ACKS),
    _set("flow_control"),
    _set("headers_only"),
    _Row(("max_batch",), lambda c: c.max_batch > 0, PULLED),
    _set("max_expires", PULLED),
    _set("max_bytes", PULLED),
    _set("deliver_group"),
    _set("idle_heartbeat"),
    _set("inactive_threshold"),
    _set("num_replicas"),
    _set("mem_storage"),
    _set("direct"),
    _set("sourcing"),
    _set("pause_until"),
    _Row(("priority_policy",), lambda c: c.priority_policy is not PriorityPolicy.NONE, LEAVE),
    _set("priority_groups"),
    _set("priority_timeout"),
    _set_filter("values"),
    _set_filter("match_unfiltered"),
    _Row(
        ("on_undeliverable",),
        lambda c: c.on_undeliverable is OnUndeliverable.DEAD_LETTER,
        "Use stop",
        "on_undeliverable dead_letter",
    ),
    _set("dead_letter"),
    _set("nak_delay_frees_pending", NO_ACKS),
    _Row(("interest",), lambda c: "interest" in c.model_fields_set, NO_ACKS),
)


def find_unsupported(config: ConsumerConfig) -> Iterator[tuple[Path, str]]:
    """Yield path and message of what a consumer asks for in vain. `config` as written, without filled-in defaults."""
    return ((row.path, row.message) for row in _CONSUMER if row.asks(config))
