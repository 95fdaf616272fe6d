"""A ConsumerConfig in JetStream's JSON.

Durations are nanoseconds, times are RFC 3339, and most zero values are left out.
"""

from __future__ import annotations

from overlay.units import format_time

from .consumer import JETSTREAM_FIELDS, ConsumerConfig

_TIMES = ("opt_start_time", "pause_until")
_ALWAYS = ("deliver_policy", "ack_policy", "replay_policy", "num_replicas")


def to_wire(config: ConsumerConfig) -> dict[str, object]:
    """Return the config as INFO replies show it: JetStream's fields by name, without those of zero value,
    except for the deliver, ack and replay policies and num_replicas, which are always there.
    """
    wire: dict[str, object] = {}
    for name in JETSTREAM_FIELDS:
        value = getattr(config, name)
        if name in _TIMES and value is not None:
            value = format_time(value)
        if name == "priority_policy" and value == "none":
            continue
        if value or name in _ALWAYS:
            wire[name] = list(value) if isinstance(value, tuple) else value
    return wire
