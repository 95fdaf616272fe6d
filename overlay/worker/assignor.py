"""How the group of workers deals out the shards: round robin, but none to workers that are drained.

The member that leads the group deals out for all. A member says that it is drained in the user data of its
subscription. Leaders of a version that does not know this deal shards to it as to any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from aiokafka.cluster import ClusterMetadata
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata

DRAINED = b"drained"
"""User data of a member that wants no shards."""


def make_assignor(is_drained: Callable[[], bool]) -> type[RoundRobinPartitionAssignor]:
    """Return the assignor of one member. `is_drained`: whether that member wants no shards, asked when it joins."""

    class Assignor(RoundRobinPartitionAssignor):  # type: ignore[misc]
        @classmethod
        def metadata(cls, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:
            return ConsumerProtocolMemberMetadata(cls.version, list(topics), DRAINED if is_drained() else b"")

        @classmethod
        def assign(
            cls, cluster: ClusterMetadata, members: Mapping[str, ConsumerProtocolMemberMetadata]
        ) -> dict[str, ConsumerProtocolMemberAssignment]:
            willing = {name: told for name, told in members.items() if told.user_data != DRAINED}
            # a shard without an owner is worse than a worker that is not drained
            found = super().assign(cluster, willing or members)
            nothing = ConsumerProtocolMemberAssignment(cls.version, [], b"")
            return {name: found.get(name, nothing) for name in members}

    return Assignor
