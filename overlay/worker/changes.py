"""Changes of a shard's consumers that its running session takes up, so that their neighbours are served without a
pause: consumers that come, want something else, or are deleted.

A change has three steps. `find_step` compares the configs, without IO. `prepare` (change_setup.py) asks Kafka what a new
session would ask for these consumers alone: their topics, and where new ones begin. It runs beside the session. Then the
session's reading loop takes the change up between two rounds, and between two steps of the dispatcher if one of the consumers
has a machine (change_queue.py), when no consumer is in the middle of anything:
what was read before is in units that are queued already, and the unit of the change follows them. So a deleted consumer
is in no unit behind the one that drops its state, and a new one is in none before the one that records where it begins.

Whatever is not sure is left to a new session: the first machine of a stream, whose ack topic is not read yet, another output
for what machines have pending, positions that have to be searched for, streams that have just come, topics that Spark jobs or
former sessions may have written to, and corrupt batches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from overlay.config import ConsumerConfig, DeliverPolicy
from overlay.config.consumer import Delivery
from overlay.dispatch.served_consumer import ConsumerSlot
from overlay.kafka.admin import TopicFacts
from overlay.state.shard_state import ConsumerId, ConsumerState, ShardState

from .assignment import Assignment
from .cursors.cursors import Cursors
from .round.task import Reader

LIGHT = {
    "description", "metadata", "ack_wait", "max_deliver", "backoff", "max_ack_pending", "nak_delay_frees_pending",
    "sample_freq", "rate_limit_bps", "max_batch", "max_expires", "max_bytes", "inactive_threshold", "pause_until",
}  # fmt: skip
"""Config fields that a running machine can take over. All other fields say what is read or where it
goes."""
FILTERS = {"filter_subject", "filter_subjects", "filter"}
WANTS = LIGHT | FILTERS | {"deliver_subject", "deliver_group", "headers_only"}
"""Config fields of a consumer without a machine that a running session can take over. With a machine, these without
`deliver_subject`: what is pending has to go out again there."""
SOON = {DeliverPolicy.ALL, DeliverPolicy.NEW, DeliverPolicy.BY_START_SEQUENCE}
"""Where a consumer may begin without a search of the log."""
MOST_APART = 64
"""Consumers of a session that have come or got another output while it ran, and are not the only ones that deliver there.
Each has batches of its own; a new session has them share those of the others."""


@dataclass(frozen=True, slots=True)
class Step:
    """What changes in a shard. `orders`: configs that machines take over by themselves. `changed`, `added`: configs of
    consumers that want something else or are new. `removed`: the former configs of those that were deleted. `replaced`:
    those of `changed`. `forget`: consumers whose state is dropped: those of `removed`, and others that are not served.
    """

    orders: Mapping[ConsumerId, ConsumerConfig]
    changed: Mapping[ConsumerId, ConsumerConfig]
    added: Mapping[ConsumerId, ConsumerConfig]
    removed: Mapping[ConsumerId, ConsumerConfig]
    replaced: Mapping[ConsumerId, ConsumerConfig]
    forget: Collection[ConsumerId]

    @property
    def renewed(self) -> dict[ConsumerId, ConsumerConfig]:
        """The configs of the consumers that get a new reader."""
        return {**self.changed, **self.added}

    @property
    def with_machines(self) -> set[ConsumerId]:
        """The consumers with machines that come, want something else, or were deleted."""
        return {id for id, config in {**self.renewed, **self.removed}.items() if config.needs_machine}

    def describe(self) -> dict[str, int]:
        """Return how many consumers there are of each kind, for the log."""
        return {"changed": len(self.changed), "added": len(self.added), "removed": len(self.forget)}

    @property
    def touches_readers(self) -> bool:
        """Whether the session is to read for other consumers, or in another way."""
        return bool(self.changed or self.added or self.removed)

    @property
    def touches_session(self) -> bool:
        """Whether the session itself has to take something up, besides its machines."""
        return bool(self.touches_readers or self.forget)


@dataclass(frozen=True, slots=True)
class Change:
    """A step with what the session needs for it. `readers`: of the changed and added consumers. `begun`: the state of each
    added one. `slots`: of the added consumers with machines. `outputs`: the topics of these consumers that the session
    does not have yet. `unused`: topics that no consumer of the shard needs any more. `names`: of all consumers, by stream
    in which one with a machine comes or goes."""

    step: Step
    readers: Mapping[ConsumerId, Reader] = field(default_factory=dict)
    begun: Mapping[ConsumerId, ConsumerState] = field(default_factory=dict)
    slots: Mapping[ConsumerId, ConsumerSlot] = field(default_factory=dict)
    outputs: Mapping[str, TopicFacts] = field(default_factory=dict)
    unused: Collection[str] = ()
    names: Mapping[str, Collection[str]] = field(default_factory=dict)


def is_light(before: ConsumerConfig, after: ConsumerConfig) -> bool:
    """Return whether a running machine can take over the config `after` without a new session: it differs
    from `before` only in fields in LIGHT, and both need a machine or neither does."""
    return before.needs_machine == after.needs_machine and _find_differing(before, after) <= LIGHT


def find_step(
    before: Mapping[ConsumerId, ConsumerConfig],
    after: Mapping[ConsumerId, ConsumerConfig],
    forget: Collection[ConsumerId],
) -> Step | None:
    """Return what changes between the configs of a shard's consumers; None if that takes a new session, whatever the
    running one is like. `forget`: consumers that were deleted."""
    other = {id: each for id, each in after.items() if id in before and before[id] is not each and before[id] != each}
    light = {id for id, each in other.items() if is_light(before[id], each)}
    orders = {id: each for id, each in other.items() if id in light and each.needs_machine}
    changed = {id: each for id, each in other.items() if id not in light}
    added = {id: each for id, each in after.items() if id not in before}
    removed = {id: each for id, each in before.items() if id not in after}
    may_stay = (
        # a consumer whose file is gone keeps its state, and one that is made again begins anew
        removed.keys() <= set(forget)
        and after.keys().isdisjoint(forget)
        and all(_is_renewable(before[id], each) for id, each in changed.items())
        and all(_is_transacted(each) and each.deliver_policy in SOON for each in added.values())
        and all(_is_transacted(each) for each in removed.values())
    )
    replaced = {id: before[id] for id in changed}
    return Step(orders, changed, added, removed, replaced, forget) if may_stay else None


def _find_differing(before: ConsumerConfig, after: ConsumerConfig) -> set[str]:
    return {name for name in ConsumerConfig.model_fields if getattr(before, name) != getattr(after, name)}


def _is_renewable(before: ConsumerConfig, after: ConsumerConfig) -> bool:
    """Return whether a session can take over the config `after` of a consumer."""
    differing = _find_differing(before, after)
    is_same_kind = before.needs_machine == after.needs_machine
    stays = "deliver_subject" not in differing or (_is_transacted(after) and not after.needs_machine)
    return is_same_kind and differing <= WANTS and stays


def _is_transacted(config: ConsumerConfig) -> bool:
    """Return whether a consumer's deliveries are in the shard's transactions."""
    return config.delivery is Delivery.EXACTLY_ONCE


def can_take_up(assignment: Assignment, cursors: Cursors, state: ShardState, step: Step) -> bool:
    """Return whether a session with this assignment, these cursors and this state is as it was when the step was found, and
    none of the consumers is in the middle of something that only a new session can end. `state`: as the last transaction
    made it, which may not be committed yet."""
    here = {*step.changed, *step.removed}
    streams = {stream for stream, _ in (*here, *step.added)}
    halted = {stream for stream, _ in cursors.halts}
    return (
        streams <= assignment.sources.keys()
        and streams.isdisjoint(halted)
        and here <= assignment.readers.keys()
        and {stream for stream, _ in step.with_machines} <= assignment.heard
        and not any(cursors.standing(consumer).snapshot for consumer in here)
        and _count_apart(assignment, step) <= MOST_APART
        and not any(id in state.consumers or id in assignment.stalled for id in step.added)
        and not any(id in assignment.readers and id not in step.removed for id in step.forget)
    )


def _count_apart(assignment: Assignment, step: Step) -> int:
    """Return how many consumers would have batches of their own after the step that they could share with others."""
    # with another filter alone, a consumer stays among those that share its output
    moved = {id for id, each in step.changed.items() if not _find_differing(step.replaced[id], each) <= LIGHT | FILTERS}
    apart = assignment.apart - step.removed.keys() | moved | step.added.keys()
    apart -= step.with_machines  # they share with none in a new session either
    if len(apart) <= MOST_APART:
        return len(apart)  # at most, and the outputs of thousands need not be looked at
    topics = {
        id: reader.output_topic.topic
        for id, reader in assignment.readers.items()
        if reader.output_topic is not None and id not in step.removed
    }
    topics |= {id: config.deliver_subject for id, config in step.renewed.items()}
    used = Counter(topics.values())
    return sum(used[topics[id]] > 1 for id in apart & topics.keys())
