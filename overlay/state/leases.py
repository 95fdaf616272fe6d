"""Consumers that a Spark pipeline runs: the service leaves them alone, as a pipeline leaves alone
those of the service.

A pipeline that runs a consumer is a member of the Kafka group `lease_group` (spark/lease.py). It
never begins with a consumer that the service's state contains. So only consumers that are new to
the service are checked. A pipeline that begins between the check and the service's first commit
finds the consumer in the state soon afterwards, and ends.
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
    """Return the consumers that a pipeline runs, each with a message for the operator. Takes one
    request for all. Raises SourceUnavailable."""
    groups = {
        config.id: lease_group(prefix, config.id)
        for config in consumers
        if _may_be_a_pipeline(config) and config.id not in state.consumers
    }
    try:
        members = await admin.count_members_of(groups.values())
    except CredentialsRefused as error:
        # an account that runs no pipelines need not be allowed to see their groups
        log.warning("whether Spark runs a consumer cannot be seen", reason=str(error))
        return {}
    return {
        consumer: f"a Spark pipeline runs it: group {group} has members. Stop the pipeline, or take the file out of this folder"
        for consumer, group in groups.items()
        if members[group]
    }


def _may_be_a_pipeline(config: ConsumerConfig) -> bool:
    """Return whether a pipeline could run a consumer with this config."""
    return config.is_push and config.ack_policy is AckPolicy.NONE
