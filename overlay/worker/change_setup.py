"""Setup of a change that a running session is to take up (changes.py): asks Kafka what a new session would ask for the
consumers that change, while the session runs.
"""

from __future__ import annotations

from collections.abc import Mapping

from overlay.config import ConsumerConfig, Loaded
from overlay.errors import OverlayError
from overlay.kafka.admin import Admin, TopicFacts
from overlay.kafka.log_position import TopicPartition
from overlay.output.side_topics import list_side_topics
from overlay.state.shard_state import ConsumerId, ConsumerState, Delta

from .assignment import Assignment, prepare_readers
from .changes import Change, Step, can_take_up
from .dispatch_setup import make_slot
from .round.deliveries import keep_output
from .session import Session


async def prepare(
    session: Session,
    admin: Admin,
    loaded: Loaded,
    mine: Mapping[ConsumerId, ConsumerConfig],
    step: Step,
) -> Change | None:
    """Ask Kafka what the session needs to take up the step. Return None if a new session has to take it up.

    `mine`: the shard's consumers after it. Creates the topics that the consumers lack. Raises OverlayError.
    """
    if not can_take_up(session.assignment, session.cursors, session.commits.state, step):
        return None
    unused = _find_unused(loaded, mine, step)
    names = _list_names(loaded, step)
    if not step.renewed:
        return Change(step, unused=unused, names=names)
    assignment, state, delta = session.assignment, session.commits.state, Delta()
    lacking = {t for c in step.renewed.values() for t in _list_topics(loaded, c)} - assignment.outputs.keys()
    denied: dict[str, str] = {}
    # a former owner's transaction may be open in a topic that exists
    if lacking and (await admin.find_topics(lacking, with_config=False, denied=denied) or denied):
        return None
    # the session's client knows the topics in which it has read
    for topic in {topic for stream, _ in step.added for topic in assignment.streams[stream].topic_names}:
        await session.client.add_topic(topic)
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
    begun = {id: delta.consumers[id] for id in step.added}
    slots = {
        id: make_slot(scratch, config, begun[id], _list_starts(begun[id]), (), session.commits.transactions.owner)
        for id, config in step.added.items()
        if config.needs_machine
    }
    return Change(step, readers, begun, slots, outputs, unused, names)


def _list_starts(state: ConsumerState) -> dict[TopicPartition, int]:
    """Return the offset in each partition of its stream at which a new consumer begins."""
    return {source: log_position.position for source, log_position in state.own.items()}


def _list_names(loaded: Loaded, step: Step) -> dict[str, list[str]]:
    """Return the names of all consumers of each stream in which one with a machine comes or goes."""
    changed = {stream for stream, name in step.with_machines if (stream, name) not in step.changed}
    return {each: [name for stream, name in loaded.consumers if stream == each] for each in changed}


def _find_unused(loaded: Loaded, mine: Mapping[ConsumerId, ConsumerConfig], step: Step) -> set[str]:
    """Return the topics that consumers have needed that change or go, and that none in `mine` needs."""
    former = (*step.replaced.values(), *step.removed.values())
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
