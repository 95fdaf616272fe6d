"""Conversion of a ConsumerConfig from and to JetStream's JSON.

Durations are nanoseconds, times are RFC 3339, and zero values are left out.
"""

from __future__ import annotations

from collections.abc import Mapping

from overlay.units import WIRE, format_time

from .consumer import JETSTREAM_FIELDS, ConsumerConfig

_TIMES = ("opt_start_time", "pause_until")
_ALWAYS = ("deliver_policy", "ack_policy", "replay_policy", "num_replicas")


def from_wire(stream: str, config: Mapping[str, object]) -> ConsumerConfig:
    """Return the `config` object of a create request as a ConsumerConfig.

    ack_policy defaults to none here, as on every NATS server. Raises pydantic.ValidationError where
    servers answer with 10025.
    """
    given: dict[str, object] = {"ack_policy": "none"}
    for name, value in config.items():
        # on the wire the overlay's own fields are unknown names, like any other
        known = name if name in JETSTREAM_FIELDS else f"config.{name}"
        if value is not None:
            given[known] = tuple(value) if isinstance(value, list) else value
    return ConsumerConfig.model_validate({**given, "stream": stream}, context=WIRE)


def to_wire(config: ConsumerConfig) -> dict[str, object]:
    """Return the config as INFO replies show it: JetStream's fields without zero values."""
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
