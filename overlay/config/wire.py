"""ConsumerConfig from and to JetStream's JSON: durations in nanoseconds, times as RFC 3339, zero values absent."""

from __future__ import annotations

from collections.abc import Mapping

from overlay.units import WIRE, format_time

from .consumer import JETSTREAM_FIELDS, ConsumerConfig

_TIMES = ("opt_start_time", "pause_until")
_ALWAYS = ("deliver_policy", "ack_policy", "replay_policy", "num_replicas")


def from_wire(stream: str, config: Mapping[str, object]) -> ConsumerConfig:
    """The `config` object of a create request. ack_policy defaults to none here, as on every NATS server.

    Raises pydantic.ValidationError for what servers answer with 10025.
    """
    given: dict[str, object] = {"ack_policy": "none"}
    for name, value in config.items():
        # a name of the overlay's own fields is as unknown on the wire as any other
        known = name if name in JETSTREAM_FIELDS else f"config.{name}"
        if value is not None:
            given[known] = tuple(value) if isinstance(value, list) else value
    return ConsumerConfig.model_validate({**given, "stream": stream}, context=WIRE)


def to_wire(config: ConsumerConfig) -> dict[str, object]:
    """What INFO replies echo: JetStream's fields, those at their zero value left out as Go's omitempty does."""
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
