"""How the group of workers deals out the shards: so that none is taken from a worker that runs it
before that worker has let go of it (docs/exactly-once.md#moving-shards).

Kafka's group protocol has two forms. In the eager one each member stops everything before it joins
anew, so each worker that comes or goes stops all shards of all workers. In the cooperative one
(KIP-429) members work on and tell the leader what they run. The leader gives a shard to its next
owner in two steps: first its present owner is no longer assigned it, lets go of it, and joins
anew; then no member runs it, and the next owner gets it. aiokafka has the eager form only. What
the cooperative one needs fits into the user data of its messages, which is where this module has it.

The member that leads the group deals out for all. Leaders of versions that do not know this deal
round robin, at once: a shard may then begin on its next owner while its former one still runs it,
which fencing ends, as it ends a worker that wakes up late.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from aiokafka.cluster import ClusterMetadata
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata

DRAINED = b"drained"
"""User data of drained members of the version before, which tell nothing else."""
MOVING = b"moving"
"""User data of all members' assignments while a shard waits for its present owner to let go of it."""


@dataclass(frozen=True, slots=True)
class Member:
    """What a member tells the group when it joins.

    `holds`: numbers of the shards that it runs or is about to. `generation`: of the group when it was
    last assigned shards. `drained`: whether it wants no shards as long as others do.
    """

    holds: frozenset[int] = frozenset()
    generation: int = -1
    drained: bool = False

    def encode(self) -> bytes:
        """Return the user data of the member's subscription; empty for a member that has nothing to
        tell, as in versions that tell nothing."""
        if self == Member():
            return b""
        told = {"holds": sorted(self.holds), "generation": self.generation, "drained": self.drained}
        return json.dumps(told).encode()

    @classmethod
    def decode(cls, data: bytes) -> Member:
        """Return what a member told in the user data of its subscription. DRAINED says only that it is drained. Data
        that is empty, or does not have the form that `encode` writes, counts as `Member()`.
        """
        if data == DRAINED:
            return cls(drained=True)
        try:
            told = json.loads(data)
            return cls(frozenset(map(int, told["holds"])), int(told["generation"]), told["drained"] is True)
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            return cls()


@dataclass(frozen=True, slots=True)
class Deal:
    """`shards`: the shards that each member is assigned now, in order. `waiting`: shards that another
    member gets once their present owner has let go of them."""

    shards: Mapping[str, list[int]]
    waiting: frozenset[int]


def deal(shards: Collection[int], members: Mapping[str, Member]) -> Deal:
    """Deal out shards so that no member that is not drained ends up with over one more than another such
    member, and as few as possible move. That counts the `waiting` ones, which are assigned to none yet.

    Drained members get none, unless all are drained: a shard without an owner is worse. A shard that
    a member holds is assigned to this member or, for now, to none. `members`: at least one, by name.
    """
    holders = _find_holders(shards, members)
    willing = sorted(name for name, member in members.items() if not member.drained) or sorted(members)
    kept = {name: [n for n in sorted(shards) if holders.get(n) == name] for name in willing}
    # who has most keeps one more than the others, where the shards do not divide evenly
    share, more = divmod(len(shards), len(willing))
    ranked = sorted(willing, key=lambda name: (-len(kept[name]), name))
    room = {name: share + (rank < more) for rank, name in enumerate(ranked)}
    kept = {name: held[: room[name]] for name, held in kept.items()}
    left = sorted(set(shards).difference(*kept.values()))
    open_places = [name for name in willing for _ in range(room[name] - len(kept[name]))]
    dealt = {name: list(kept.get(name, ())) for name in members}
    waiting = []
    for number, name in zip(left, open_places, strict=True):
        if number in holders:
            waiting.append(number)
        else:
            dealt[name].append(number)
    return Deal({name: sorted(numbers) for name, numbers in dealt.items()}, frozenset(waiting))


def keep(members: Mapping[str, Member]) -> Deal:
    """Assign each member what it holds (`_find_holders`), for a leader that has not learnt the topic's partitions
    yet.

    To deal out none would stop every shard of every worker. No shard moves: one that no member holds is assigned to
    none. The group joins anew once the leader learns the partitions.
    """
    shards: dict[str, list[int]] = {name: [] for name in members}
    held = frozenset[int]().union(*(member.holds for member in members.values()))
    for number, name in sorted(_find_holders(held, members).items()):
        shards[name].append(number)
    return Deal(shards, frozenset())


def _find_holders(shards: Collection[int], members: Mapping[str, Member]) -> dict[int, str]:
    """Return, by shard, the member that holds it; shards that no member holds are left out. Of several that say so,
    it is the one with the latest generation: the others were not heard of for a while, and the group has dealt out
    their shards since. Of equal generations, it is the last by name.
    """
    holders: dict[int, str] = {}
    for name, member in sorted(members.items(), key=lambda item: (item[1].generation, item[0])):
        holders.update((number, name) for number in member.holds if number in shards)
    return holders


def make_assignor(
    topic: str, describe: Callable[[], Member], note_moving: Callable[[bool], None]
) -> type[RoundRobinPartitionAssignor]:
    """Return the assignor of one member.

    `topic`: whose partitions are the shards; members that do not subscribe to it get none.
    `describe`: what the member tells, asked whenever it joins. `note_moving`: told at each
    assignment, before the member learns of its shards, whether shards still wait for their present
    owners.
    """

    class Assignor(RoundRobinPartitionAssignor):  # type: ignore[misc]
        @classmethod
        def metadata(cls, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:
            return ConsumerProtocolMemberMetadata(cls.version, list(topics), describe().encode())

        @classmethod
        def assign(
            cls, cluster: ClusterMetadata, members: Mapping[str, ConsumerProtocolMemberMetadata]
        ) -> dict[str, ConsumerProtocolMemberAssignment]:
            ours = {
                name: Member.decode(told.user_data or b"")
                for name, told in members.items()
                if topic in told.subscription
            }
            partitions = cluster.partitions_for_topic(topic)
            found = deal(partitions, ours) if partitions else keep(ours)
            news = MOVING if found.waiting else b""
            shards = {name: found.shards.get(name) for name in members}
            return {
                name: ConsumerProtocolMemberAssignment(cls.version, [(topic, numbers)] if numbers else [], news)
                for name, numbers in shards.items()
            }

        @classmethod
        def on_assignment(cls, assignment: ConsumerProtocolMemberAssignment) -> None:
            note_moving(assignment.user_data == MOVING)

    return Assignor
