"""What a consumer's file may say with `engine: spark`.

A Spark job delivers what matches as it reads it, in batches. Acks, and whatever needs a clock within a
batch or the readers of the output, are the service's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from .consumer import AckPolicy, ConsumerConfig, Engine, Interest, OnUndeliverable, ReplayPolicy
from .document import Path


class _Refusal(NamedTuple):
    """A test whether a config asks for something that a job cannot do, and what to write instead.

    `field`: its path in the file, with dots.
    """

    field: str
    asks: Callable[[ConsumerConfig], object]
    instead: str


_TABLE = (
    _Refusal("deliver_subject", lambda c: not c.is_push, "is missing: a job writes to an output topic. Name one"),
    _Refusal(
        "ack_policy",
        lambda c: c.ack_policy is not AckPolicy.NONE,
        "acks are the service's. Write ack_policy: none",
    ),
    _Refusal("replay_policy", lambda c: c.replay_policy is ReplayPolicy.ORIGINAL, "write instant"),
    _Refusal("interest", lambda c: c.interest is Interest.ALWAYS, "has no meaning without acks. Leave it out"),
    _Refusal("inactive_threshold", lambda c: c.inactive_threshold, "is the service's. Leave it out"),
    _Refusal(
        "name",
        lambda c: not c.durable_name,
        "alone is for consumers that end without readers, which a job does not look at. Write durable_name instead",
    ),
    _Refusal("output.temporary", lambda c: c.output.temporary, "goes with inactive_threshold. Leave it out"),
    _Refusal("flow_control", lambda c: c.flow_control, "is the service's. Leave it out"),
    _Refusal("idle_heartbeat", lambda c: c.idle_heartbeat, "is the service's. Leave it out"),
    _Refusal(
        "dead_letter",
        lambda c: c.dead_letter and c.on_undeliverable is OnUndeliverable.STOP,
        "has a use only with on_undeliverable: dead_letter, as nothing is acked. Write that, or leave it out",
    ),
)


def check_engine(config: ConsumerConfig) -> Iterator[tuple[Path, str]]:
    """Yield the path and message of each thing in a file with `engine: spark` that a job cannot do. Nothing for other
    engines.
    """
    if config.engine is Engine.SPARK:
        for field, asks, instead in _TABLE:
            if asks(config):
                yield tuple(field.split(".")), f"{instead}, or engine: service"
