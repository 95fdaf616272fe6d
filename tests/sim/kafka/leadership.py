"""Brokers that stop and start, leaders that move, and brokers that have not heard of it.

The controller notices a broker that is gone `Settings.failover_s` later. Until then it is a leader that cannot be reached, and
a follower that holds up all producers with acks=all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .administration import View
from .settings import TOPIC_DEFAULTS
from .topics import NO_LEADER, Partition

if TYPE_CHECKING:
    from .cluster import Cluster

GROUP = 0
_UNCLEAN = "unclean.leader.election.enable"


def stop(cluster: Cluster, broker: int) -> None:
    """Stop a broker as a crash does: its connections break, and what only it had is lost."""
    if broker not in cluster.up:
        return
    cluster.up.discard(broker)
    refresh(cluster, broker)
    for session in [one for one in cluster.sessions if one.broker == broker]:
        cluster.hang_up(session)
    delay_s = cluster.settings.failover_s
    if delay_s:
        cluster.timers.at(cluster.now + delay_s, lambda: None if broker in cluster.up else fence(cluster, broker))
    else:
        fence(cluster, broker)


def fence(cluster: Cluster, broker: int) -> None:
    """Let others lead and coordinate what a broker did that is gone."""
    if broker not in cluster.alive:
        return
    cluster.announce()
    cluster.alive.discard(broker)
    for partition in list_partitions(cluster):
        if broker not in partition.isr:
            continue
        others = [node for node in partition.isr if node in cluster.alive]
        if others:
            partition.isr = others
            partition.behind[broker] = partition.log.high_watermark
        if partition.leader == broker:
            move(cluster, partition, others[0] if others else NO_LEADER)
            if not others:
                _elect_unclean(cluster, partition)
        elif partition.leader != NO_LEADER and not partition.is_stalled:
            # the followers that are left have everything
            partition.raise_watermark(partition.log.end)
    moved = [name for name in cluster.groups.known if cluster.coordinator(name, GROUP) == broker]
    survivors = [node for node in cluster.brokers if node in cluster.alive]
    for i, node in enumerate(cluster.coordinators):
        if node == broker:
            cluster.coordinators[i] = survivors[i % len(survivors)] if survivors else NO_LEADER
    for name in moved:
        cluster.groups.move(name)


def start(cluster: Cluster, broker: int) -> None:
    """Start a broker. It leads what has no leader and was in sync here last, and follows the rest.

    A topic that allows unclean elections takes it as a leader even if it was not in sync; the rest is lost.
    """
    if broker in cluster.up:
        return
    fence(cluster, broker)  # the controller knows it by another epoch now
    cluster.up.add(broker)
    _admit(cluster, broker)


def rejoin(cluster: Cluster, broker: int) -> None:
    """Let the controller hear a broker again that runs."""
    if broker in cluster.up and broker not in cluster.alive:
        _admit(cluster, broker)


def _admit(cluster: Cluster, broker: int) -> None:
    """Let a broker lead what has no leader and was in sync here last, and follow the rest."""
    cluster.announce()
    cluster.alive.add(broker)
    for partition in list_partitions(cluster):
        if broker not in partition.replicas:
            continue
        if partition.leader in cluster.up:
            if broker not in partition.isr:
                partition.isr.append(broker)
            partition.behind.pop(broker, None)
        elif partition.leader == NO_LEADER and broker in partition.isr:
            partition.isr = [broker]
            partition.lead(broker)
        elif partition.leader == NO_LEADER:
            _elect_unclean(cluster, partition)
    for i, node in enumerate(cluster.coordinators):
        if node == NO_LEADER:
            cluster.coordinators[i] = broker


def _elect_unclean(cluster: Cluster, partition: Partition) -> None:
    """Let a replica lead that was not in sync, if the topic allows it. The rest of the log is lost."""
    if partition.topic.config.overrides.get(_UNCLEAN, TOPIC_DEFAULTS[_UNCLEAN]) != "true":
        return
    for broker in partition.replicas:
        if broker in cluster.alive:
            lost = partition.log.end - partition.behind.pop(broker, 0)
            move(cluster, partition, broker, is_unclean=True, lose=lost)
            return


def move(cluster: Cluster, partition: Partition, broker: int, *, is_unclean: bool = False, lose: int = 0) -> None:
    """Let a partition have another leader, in a new leader epoch.

    Records above the high watermark are lost: followers may not have had them. An unclean election loses the last `lose`
    offsets as well, even if a producer was told that they are safe.
    """
    log = partition.log
    keep = min(log.high_watermark, log.end - lose if is_unclean else log.end)
    if keep < log.end and broker != NO_LEADER:
        log.truncate(max(keep, log.start), partition.topic.config, cluster.wall_ms)
        partition.cuts += 1
    if is_unclean:
        partition.isr = [broker]
    partition.lead(broker)
    if broker != NO_LEADER:
        log.high_watermark = max(log.high_watermark, log.end)
        partition.wake()


def list_partitions(cluster: Cluster) -> list[Partition]:
    return [partition for topic in cluster.topics.values() for partition in topic.partitions]


def make_stale(cluster: Cluster, broker: int) -> None:
    """Let a broker answer with what it knows now, whatever changes, until `refresh`."""
    if broker not in cluster.views:
        cluster.views[broker] = View(cluster, is_kept=True)


def refresh(cluster: Cluster, broker: int) -> None:
    """Let a stale broker hear what has changed."""
    view = cluster.views.pop(broker, None)
    if view is not None:
        for call in view.deposed:
            call(False)
        for partition in list_partitions(cluster):
            partition.wake()
