"""JetStream's JSON of a create request as a ConsumerConfig, to compare the rules of a NATS server with the overlay's."""

from __future__ import annotations

from collections.abc import Mapping

from overlay.config import ConsumerConfig
from overlay.config.consumer import JETSTREAM_FIELDS

_DURATIONS = ("ack_wait", "max_expires", "idle_heartbeat", "inactive_threshold", "priority_timeout")


def from_wire(stream: str, config: Mapping[str, object]) -> ConsumerConfig:
    """Return the `config` object of a create request as a ConsumerConfig.

    ack_policy defaults to none here, as on every NATS server. Raises pydantic.ValidationError where
    servers answer with 10025.
    """
    given: dict[str, object] = {"ack_policy": "none"}
    for name, value in config.items():
        # the overlay's own fields are unknown names to a server, and its durations are integers: both are refused as unknown
        is_text = name in _DURATIONS and isinstance(value, str)
        known = name if name in JETSTREAM_FIELDS and not is_text else f"config.{name}"
        if value is not None:
            given[known] = tuple(value) if isinstance(value, list) else value
    return ConsumerConfig.model_validate({**given, "stream": stream})
