"""What a server fills in where a config says nothing: the third column of facts/jetstream.md a, as one function."""

from __future__ import annotations

from .consumer import AckPolicy, ConsumerConfig, PriorityPolicy

ACK_WAIT = 30_000_000_000
EPHEMERAL_THRESHOLD = 5_000_000_000
PINNED_TIMEOUT = 120_000_000_000
FLOW_CONTROL_HEARTBEAT = 1_000_000_000
MAX_WAITING = 512
MAX_ACK_PENDING = 1000


def fill_defaults(config: ConsumerConfig) -> ConsumerConfig:
    """The config as a server stores it. Pure, idempotent; naming a nameless one is the caller's part."""
    changes: dict[str, object] = {}
    if config.durable_name and not config.name:
        changes["name"] = config.durable_name
    if config.max_deliver == 0 or config.max_deliver < -1:
        changes["max_deliver"] = -1
    if config.ack_wait == 0 and config.ack_policy in (AckPolicy.EXPLICIT, AckPolicy.ALL):
        changes["ack_wait"] = ACK_WAIT
    if config.backoff:
        changes["ack_wait"] = config.backoff[0]
    if config.max_ack_pending < -1:
        changes["max_ack_pending"] = -1
    elif config.max_ack_pending == 0 and config.ack_policy is not AckPolicy.NONE:
        changes["max_ack_pending"] = MAX_ACK_PENDING
    if not config.durable_name and config.inactive_threshold <= 0:
        changes["inactive_threshold"] = EPHEMERAL_THRESHOLD
    if config.priority_policy is PriorityPolicy.PINNED_CLIENT and config.priority_timeout == 0:
        changes["priority_timeout"] = PINNED_TIMEOUT
    if config.ack_policy is AckPolicy.FLOW_CONTROL and config.is_push:
        # seen on 2.15.1: whatever the request says, these two are set for it
        changes |= {"flow_control": True, "idle_heartbeat": FLOW_CONTROL_HEARTBEAT}
    changes = _lift_negatives(config) | _fill_pull(config) | changes
    return config.model_copy(update=changes) if changes else config


def _lift_negatives(config: ConsumerConfig) -> dict[str, object]:
    """Where zero means "none", a server takes negative numbers for it (seen on 2.15.1)."""
    fields = ("idle_heartbeat", "inactive_threshold", "max_batch", "max_expires", "max_bytes", "priority_timeout")
    return {field: 0 for field in fields if getattr(config, field) < 0}


def _fill_pull(config: ConsumerConfig) -> dict[str, object]:
    waiting = max(config.max_waiting, 0)
    if not config.is_push and waiting == 0:
        waiting = MAX_WAITING
    return {"max_waiting": waiting} if config.max_waiting != waiting else {}
