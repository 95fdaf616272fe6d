"""JetStream's rules for changes to an existing consumer (docs/jetstream.md#updates).

An update replaces the whole config. So both sides come with their defaults filled in, and a field
that the new config leaves out counts as changed back to its default. An update by request keeps the old `pause_until`.
All of the overlay's own fields may change. A changed filter applies from the consumer's position
on, as a changed subject filter does. Earlier messages are not filtered again.
"""

from __future__ import annotations

from collections.abc import Iterator

from .checks import Violation, violate
from .consumer import ConsumerConfig

_FIXED = (
    ("deliver_policy", "deliver policy"),
    ("mem_storage", "storage type"),
    ("direct", "direct"),
    ("sourcing", "sourcing"),
    ("opt_start_seq", "start sequence"),
    ("opt_start_time", "start time"),
    ("ack_policy", "ack policy"),
    ("replay_policy", "replay policy"),
    ("idle_heartbeat", "heart beats"),
    ("flow_control", "flow control"),
)


def check_update(old: ConsumerConfig, new: ConsumerConfig, *, has_interest: bool = False) -> Iterator[Violation]:
    """Yield a Violation for each rule that forbids replacing `old` by `new`, both with their defaults filled in. If
    one is a push and the other a pull consumer, later rules are not checked. Rules about `new` alone are checked by
    check_consumer.

    `has_interest`: a client is reading old's deliver_subject, so it must not change (10013).
    """
    hint = "remove the consumer and create it again under the new config, or restore the old value"
    for field, words in _FIXED:
        if getattr(old, field) != getattr(new, field):
            yield violate(10012, field, hint, err=f"{words} can not be updated")
    if old.is_push != new.is_push:
        was, wanted = ("push", "pull") if old.is_push else ("pull", "push")
        err = f"can not update {was} consumer to {wanted} based"
        yield violate(10012, "deliver_subject", hint, err=err)
        return
    if old.max_waiting != new.max_waiting:
        yield violate(10012, "max_waiting", hint, err="max waiting can not be updated")
    if has_interest and old.deliver_subject != new.deliver_subject:
        yield violate(10013, "deliver_subject", f"{old.deliver_subject!r} is being read; stop its readers first")
