"""Brokers that stop and start, leaders that move, and brokers that have not heard of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .administration import View
from .topics import NO_LEADER, Partition

if TYPE_CHECKING:
    from .cluster import Cluster

GROUP = 0


def stop(cluster: Cluster, broker: int) -> None:
    """Stop a broker as a crash does: its connections break, and what only it had is lost."""
    if broker not in cluster.up:
        return
    cluster.up.discard(broker)
    refresh(cluster, broker)
    for session in [one for one in cluster.sessions if one.broker == broker]:
        cluster.hang_up(session)
    for partition in list_partitions(cluster):
        if broker not in partition.isr:
            continue
        others = [node for node in partition.isr if node in cluster.up]
        if others:
            partition.isr = others
        if partition.leader == broker:
            move(cluster, partition, others[0] if others else NO_LEADER)
        elif partition.leader != NO_LEADER:
            # the followers that are left have everything that they are known to have
            partition.catch_up_alone()
    _move_coordinators(cluster, broker)


def start(cluster: Cluster, broker: int) -> None:
    """Start a broker. It leads what has no leader and was in sync here last, and follows the rest."""
    if broker in cluster.up:
        return
    cluster.up.add(broker)
    for partition in list_partitions(cluster):
        if broker not in partition.replicas:
            continue
        if partition.leader == NO_LEADER and broker in partition.isr:
            partition.isr = [broker]
            partition.lead(broker)
        elif partition.leader != NO_LEADER and broker not in partition.isr:
            partition.isr.append(broker)
    for i, node in enumerate(cluster.coordinators):
        if node == NO_LEADER:
            cluster.coordinators[i] = broker


def move(cluster: Cluster, partition: Partition, broker: int, *, is_unclean: bool = False, lose: int = 0) -> None:
    """Let a partition have another leader, in a new leader epoch.

    Records above the high watermark are lost: followers may not have had them. An unclean election loses the last `lose`
    offsets as well, whoever was told that they are safe.
    """
    log = partition.log
    keep = min(log.high_watermark, log.end - lose if is_unclean else log.end)
    if keep < log.end:
        log.truncate(max(keep, log.start), partition.topic.config, cluster.wall_ms)
        partition.cuts += 1
    if is_unclean:
        partition.isr = [broker]
    partition.lead(broker)
    log.high_watermark = max(log.high_watermark, log.end)
    partition.wake()


def _move_coordinators(cluster: Cluster, broker: int) -> None:
    moved = [name for name in cluster.groups.known if cluster.coordinator(name, GROUP) == broker]
    survivors = [node for node in cluster.brokers if node in cluster.up]
    for i, node in enumerate(cluster.coordinators):
        if node == broker:
            cluster.coordinators[i] = survivors[i % len(survivors)] if survivors else NO_LEADER
    for name in moved:
        cluster.groups.move(name)


def list_partitions(cluster: Cluster) -> list[Partition]:
    return [partition for topic in cluster.topics.values() for partition in topic.partitions]


def make_stale(cluster: Cluster, broker: int) -> None:
    """Let a broker answer with what it knows now, whatever changes, until `refresh`."""
    cluster.views[broker] = View(cluster, is_kept=True)


def refresh(cluster: Cluster, broker: int) -> None:
    """Let a stale broker hear what has changed."""
    view = cluster.views.pop(broker, None)
    if view is not None:
        for call in view.deposed:
            call(False)
        for partition in list_partitions(cluster):
            partition.wake()
