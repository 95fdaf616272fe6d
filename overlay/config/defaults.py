"""The values that a server sets where a consumer config leaves a field out.

The table is in docs/jetstream.md#consumer-config.
"""

from __future__ import annotations

from .consumer import AckPolicy, ConsumerConfig, PriorityPolicy

ACK_WAIT = 30_000_000_000
EPHEMERAL_THRESHOLD = 5_000_000_000
PINNED_TIMEOUT = 120_000_000_000
FLOW_CONTROL_HEARTBEAT = 1_000_000_000
MAX_WAITING = 512
MAX_ACK_PENDING = 1000


def fill_defaults(config: ConsumerConfig) -> ConsumerConfig:
    """Return the config as a JetStream server stores it: with the server's values for fields that it leaves out, and
    for negative numbers that mean "none". Two things a server sets whatever the config says: `ack_wait` to the first
    of `backoff`, and, for a push consumer with ack policy flow_control, `flow_control` and `idle_heartbeat`.

    The function is pure and idempotent. If the config has no name, the caller has to choose one.
    """
    changes: dict[str, object] = {}
    if config.durable_name and not config.name:
        changes["name"] = config.durable_name
    if config.max_deliver == 0 or config.max_deliver < -1:
        changes["max_deliver"] = -1
    # when unacked deliveries are repeated, and how many may be pending
    if config.ack_wait == 0 and config.ack_policy in (AckPolicy.EXPLICIT, AckPolicy.ALL):
        changes["ack_wait"] = ACK_WAIT
    if config.backoff:
        changes["ack_wait"] = config.backoff[0]
    if config.max_ack_pending < -1:
        changes["max_ack_pending"] = -1
    elif config.max_ack_pending == 0 and config.ack_policy is not AckPolicy.NONE:
        changes["max_ack_pending"] = MAX_ACK_PENDING
    # when the consumer itself, or its pinned client, counts as inactive
    if not config.durable_name and config.inactive_threshold <= 0:
        changes["inactive_threshold"] = EPHEMERAL_THRESHOLD
    if config.priority_policy is PriorityPolicy.PINNED_CLIENT and config.priority_timeout == 0:
        changes["priority_timeout"] = PINNED_TIMEOUT
    if config.ack_policy is AckPolicy.FLOW_CONTROL and config.is_push:
        # nats-server 2.15.1 sets both fields, whatever the request says
        changes |= {"flow_control": True, "idle_heartbeat": FLOW_CONTROL_HEARTBEAT}
    changes = _lift_negatives(config) | _fill_pull(config) | changes
    return config.model_copy(update=changes) if changes else config


def _lift_negatives(config: ConsumerConfig) -> dict[str, object]:
    """Return the changes that set negative numbers to 0, where 0 means "none", as nats-server 2.15.1 does: 0 by the
    name of each of six fields that is negative in `config`.
    """
    fields = ("idle_heartbeat", "inactive_threshold", "max_batch", "max_expires", "max_bytes", "priority_timeout")
    return {field: 0 for field in fields if getattr(config, field) < 0}


def _fill_pull(config: ConsumerConfig) -> dict[str, object]:
    waiting = max(config.max_waiting, 0)
    if not config.is_push and waiting == 0:
        waiting = MAX_WAITING
    return {"max_waiting": waiting} if config.max_waiting != waiting else {}
