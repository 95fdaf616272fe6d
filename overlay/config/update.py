"""What may change in a consumer that exists: JetStream's update rules (end of facts/jetstream.md b).

The whole config is replaced, so both sides come with their defaults filled in and a field that the new one leaves out
counts as changed back. `pause_until` is not looked at: updates ignore it. The overlay's own fields may all change; a
changed filter holds for the messages from the consumer's position on, as a changed filter subject does, and what lies
before is not looked at again.
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
    """Yield what forbids replacing `old` by `new`, beyond what check_consumer says about `new` alone.

    `has_interest`: somebody reads old's deliver_subject; then it may not change (10013).
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
