"""Changes of a shard's consumers that its running session takes up, so that their neighbours are served without a
pause: consumers without machines that come, want something else, or are deleted.

A change has three steps. `find_step` compares the configs, without IO. `prepare` asks Kafka what a new session would ask
for these consumers alone: their topics, and where new ones begin. It runs beside the session. Then the session's reading
loop takes the change up between two rounds (session.py), when no consumer is in the middle of anything: what was read
before is in units that are queued already, and the unit of the change follows them. So a deleted consumer is in no unit
behind the one that drops its state, and a new one is in none before the one that records where it begins.

Whatever is not sure is left to a new session: machines, positions that have to be searched for, streams that have just
come, topics that Spark jobs or former sessions may have written to, and corrupt batches.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from overlay.config import ConsumerConfig, DeliverPolicy, Loaded
from overlay.config.consumer import Delivery
from overlay.errors import OverlayError
from overlay.kafka.admin import Admin, TopicFacts
from overlay.output.side_topics import list_side_topics
from overlay.state.shard_state import ConsumerId, ConsumerState, Delta

from .assignment import Assignment, prepare_readers
from .round.deliveries import keep_output
from .round.task import Reader

if TYPE_CHECKING:
    from .session import Session

LIGHT = {
    "description", "metadata", "ack_wait", "max_deliver", "backoff", "max_ack_pending", "nak_delay_frees_pending",
    "sample_freq", "rate_limit_bps", "max_batch", "max_expires", "max_bytes", "inactive_threshold", "pause_until",
}  # fmt: skip
"""Config fields that a running machine can take over. All other fields say what is read or where it
goes."""
WANTS = LIGHT | {"filter_subject", "filter_subjects", "filter", "deliver_subject", "deliver_group", "headers_only"}
"""Config fields of a consumer without a machine that a running session can take over."""
SOON = {DeliverPolicy.ALL, DeliverPolicy.NEW, DeliverPolicy.BY_START_SEQUENCE}
"""Where a consumer may begin without a search of the log."""
MOST_APART = 64
"""Consumers of a session that have come or got another output while it ran. Each has batches of its own; a new session
has them share those of the others."""


@dataclass(frozen=True, slots=True)
class Step:
    """What changes in a shard. `ordered`: configs for running machines. `changed`, `added`: configs of consumers without
    machines. `removed`: the former configs of those that were deleted. `forget`: consumers whose state is dropped: those
    of `removed`, and others that are not served.
    """

    ordered: Mapping[ConsumerId, ConsumerConfig]
    changed: Mapping[ConsumerId, ConsumerConfig]
    added: Mapping[ConsumerId, ConsumerConfig]
    removed: Mapping[ConsumerId, ConsumerConfig]
    forget: Collection[ConsumerId]

    @property
    def renewed(self) -> dict[ConsumerId, ConsumerConfig]:
        """The configs of the consumers that get a new reader."""
        return {**self.changed, **self.added}

    def describe(self) -> dict[str, int]:
        """Return how many consumers there are of each kind, for the log."""
        return {"changed": len(self.changed), "added": len(self.added), "removed": len(self.forget)}

    @property
    def touches_session(self) -> bool:
        """Whether the session itself has to take something up, besides its machines."""
        return bool(self.changed or self.added or self.removed or self.forget)


@dataclass(frozen=True, slots=True)
class Change:
    """A step with what the session needs for it. `readers`: of the changed and added consumers. `begun`: the state of each
    added one. `outputs`: the topics that only they need. `unused`: topics that no consumer of the shard needs any more."""

    step: Step
    readers: Mapping[ConsumerId, Reader] = field(default_factory=dict)
    begun: Mapping[ConsumerId, ConsumerState] = field(default_factory=dict)
    outputs: Mapping[str, TopicFacts] = field(default_factory=dict)
    unused: Collection[str] = ()


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
    ordered = {id: each for id, each in other.items() if id in light and each.needs_machine}
    changed = {id: each for id, each in other.items() if id not in light}
    added = {id: each for id, each in after.items() if id not in before}
    removed = {id: each for id, each in before.items() if id not in after}
    may_stay = (
        # a consumer whose file is gone keeps its state, and one that is made again begins anew
        removed.keys() <= set(forget)
        and after.keys().isdisjoint(forget)
        and all(_is_renewable(before[id], each) for id, each in changed.items())
        and all(_is_plain(each) and each.deliver_policy in SOON for each in added.values())
        and all(_is_plain(each) for each in removed.values())
    )
    return Step(ordered, changed, added, removed, forget) if may_stay else None


def _find_differing(before: ConsumerConfig, after: ConsumerConfig) -> set[str]:
    return {name for name in ConsumerConfig.model_fields if getattr(before, name) != getattr(after, name)}


def _is_renewable(before: ConsumerConfig, after: ConsumerConfig) -> bool:
    """Return whether a session can take over the config `after` of a consumer without a machine."""
    has_machine = before.needs_machine or after.needs_machine
    differing = _find_differing(before, after)
    return not has_machine and differing <= WANTS and ("deliver_subject" not in differing or _is_plain(after))


def _is_plain(config: ConsumerConfig) -> bool:
    """Return whether a consumer has no machine, and its deliveries are in the shard's transactions."""
    return not config.needs_machine and config.delivery is Delivery.EXACTLY_ONCE


def can_take_up(session: Session, step: Step) -> bool:
    """Return whether a session is as it was when the step was found, and none of the consumers is in the middle of
    something that only a new session can end."""
    assignment, cursors = session.assignment, session.cursors
    here = {*step.changed, *step.removed}
    streams = {stream for stream, _ in (*here, *step.added)}
    halted = {stream for stream, _ in cursors.halts}
    return (
        streams <= assignment.sources.keys()
        and streams.isdisjoint(halted)
        and here <= assignment.readers.keys()
        and not any(cursors.standing(consumer).snapshot for consumer in here)
        and len(assignment.apart | step.renewed.keys()) <= MOST_APART
        and not any(id in session.commits.state.consumers or id in assignment.stalled for id in step.added)
        # the pipeline's thread may append to a ledger while a sequence is looked up in it
        and not any(
            config.deliver_policy is DeliverPolicy.BY_START_SEQUENCE and config.stream in assignment.ledgers
            for config in step.added.values()
        )
        and not any(id in assignment.readers and id not in step.removed for id in step.forget)
    )


async def prepare(
    session: Session,
    admin: Admin,
    loaded: Loaded,
    mine: Mapping[ConsumerId, ConsumerConfig],
    former: Iterable[ConsumerConfig],
    step: Step,
) -> Change | None:
    """Ask Kafka what the session needs to take up the step. Return None if a new session has to take it up.

    `mine`: the shard's consumers after it. `former`: the former configs of those that change or go. Creates the topics
    that the consumers lack. Raises OverlayError.
    """
    if not can_take_up(session, step):
        return None
    unused = _find_unused(loaded, mine, former, step)
    if not step.renewed:
        return Change(step, unused=unused)
    assignment, state, delta = session.assignment, session.commits.state, Delta()
    lacking = {t for c in step.renewed.values() for t in _list_topics(loaded, c)} - assignment.outputs.keys()
    denied: dict[str, str] = {}
    # a former owner's transaction may be open in a topic that exists
    if lacking and (await admin.find_topics(lacking, with_config=False, denied=denied) or denied):
        return None
    scratch = await _begin(admin, assignment, step)
    await prepare_readers(session.client, admin, loaded, step.renewed, state, scratch, delta, _refuse)
    if scratch.readers.keys() != step.renewed.keys() or not _is_as_before(assignment.outputs, scratch.outputs):
        return None
    outputs = {name: facts for name, facts in scratch.outputs.items() if name not in assignment.outputs}
    if outputs:
        await session.commits.transactions.look_up(outputs)
    readers = {
        id: keep_output(old, new) if (old := assignment.readers.get(id)) else new for id, new in scratch.readers.items()
    }
    return Change(step, readers, {id: delta.consumers[id] for id in step.added}, outputs, unused)


def _find_unused(
    loaded: Loaded, mine: Mapping[ConsumerId, ConsumerConfig], former: Iterable[ConsumerConfig], step: Step
) -> set[str]:
    """Return the topics that only configs in `former` need, and none in `mine`."""
    left = {topic for config in former for topic in _list_topics(loaded, config)}
    for config in (*step.renewed.values(), *mine.values()):
        if not left:
            break
        left -= _list_topics(loaded, config)
    return left


async def _begin(admin: Admin, assignment: Assignment, step: Step) -> Assignment:
    """Return an assignment for the step's consumers alone, with the streams of a session's `assignment` and what Kafka
    says now of the logs in which consumers begin."""
    own = Assignment(
        streams=assignment.streams,
        sources=assignment.sources,
        topics=assignment.topics,
        indexes=assignment.indexes,
        ledgers=assignment.ledgers,
    )
    for stream in {stream for stream, _ in step.added}:
        bounds = await admin.find_bounds(assignment.sources[stream].partitions, committed=False)
        own.starts.update({source: first for source, (first, _) in bounds.items()})
        own.ends.update({source: end for source, (_, end) in bounds.items()})
    return own


async def _refuse(delta: Delta) -> None:
    raise OverlayError("a Spark job has had the consumer: a new session takes it back")


def _list_topics(loaded: Loaded, config: ConsumerConfig) -> set[str]:
    """Return the topics that a consumer needs besides those of its stream."""
    return {config.deliver_subject} - {""} | list_side_topics(loaded.service.topics.prefix, config)


def _is_as_before(before: Mapping[str, TopicFacts], now: Mapping[str, TopicFacts]) -> bool:
    """Return whether the topics that a session knew are still the same."""
    return all(
        (was.identity, was.partitions) == (facts.identity, facts.partitions)
        for name, facts in now.items()
        if (was := before.get(name)) is not None
    )
