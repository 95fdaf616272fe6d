"""Consumers that a Spark pipeline runs: the service leaves them alone, as a pipeline leaves alone
those of the service.

A pipeline that runs a consumer is a member of the Kafka group `lease_group` (spark/lease.py). Only
consumers that the service's state gives to a Spark job, and new ones that a job could deliver, are
checked. The group tells whether a pipeline runs now, so that the service does not take a consumer
from it. What keeps two owners apart is the state (handover.py).
"""

from __future__ import annotations

from collections.abc import Iterable

from overlay.config import ConsumerConfig
from overlay.config.consumer import AckPolicy
from overlay.errors import CredentialsRefused
from overlay.kafka.admin import Admin
from overlay.kafka.own_topics import lease_group
from overlay.logs import get_logger

from .shard_state import ConsumerId, ShardState

log = get_logger(__name__)


async def find_held(
    admin: Admin, prefix: str, consumers: Iterable[ConsumerConfig], state: ShardState
) -> dict[ConsumerId, str]:
    """Return which of these consumers a Spark pipeline runs now, each with a message for the operator. Only those are
    checked that a Spark job may have delivered last (`may_be_a_jobs`). Empty, with a line in the log, if Kafka does
    not let this user see the group of one of these. Raises SourceUnavailable."""
    groups = {config.id: lease_group(prefix, config.id) for config in consumers if may_be_a_jobs(config, state)}
    try:
        members = await admin.count_members_of(groups.values())
    except CredentialsRefused as error:
        # an account that runs no pipelines need not be allowed to see their groups
        log.warning("whether Spark runs a consumer cannot be seen", reason=str(error))
        return {}
    return {
        consumer: f"a Spark pipeline runs it: group {group} has members. Stop the pipeline, or write"
        " `engine: spark` into the consumer's file"
        for consumer, group in groups.items()
        if members[group]
    }


def may_be_a_jobs(config: ConsumerConfig, state: ShardState) -> bool:
    """Return whether a consumer may have been delivered by a Spark job last: the state names a job for it,
    or the state does not have the consumer and a job could deliver it (push, without acks)."""
    if (known := state.consumers.get(config.id)) is not None:
        return known.job != ""
    return config.is_push and config.ack_policy is AckPolicy.NONE
