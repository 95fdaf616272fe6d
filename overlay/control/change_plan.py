"""What `overlay apply` has to ask of a service, so that it has the consumers of a folder. Pure.

Consumers of a service come from two places: from the files that its workers read, and from requests. A plan
is about the second kind. A consumer that a file of the workers defines stays that file's: requests cannot
change it, and a plan never tries.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from overlay.config import ConsumerConfig, check_update, fill_defaults
from overlay.config.consumer import AckPolicy, Engine
from overlay.units import format_duration, format_time

from .records import ConsumerId, Origin

DURATIONS = ("ack_wait", "backoff", "max_expires", "idle_heartbeat", "inactive_threshold", "priority_timeout")
TIMES = ("opt_start_time",)
"""Fields of a config that are ns, and that files write as texts."""
_LEFT_OUT = ("stream", "durable_name", "name", "pause_until")
"""Fields that an update does not change: the names, and what `overlay consumer pause` says."""


class Verb(Enum):
    """What is to be done about a consumer. The values are in the JSON of `overlay apply`."""

    ADD = "add"
    CHANGE = "change"
    REMOVE = "remove"
    KEEP = "keep"
    """It is as the folder says."""
    LEAVE = "leave"
    """It is another's: of a file of the workers, of a Spark job, or not in the folder."""
    REFUSE = "refuse"
    """The service would refuse it."""

    @property
    def changes(self) -> bool:
        """Whether the service is asked to do something."""
        return self in (Verb.ADD, Verb.CHANGE, Verb.REMOVE)


@dataclass(frozen=True, slots=True)
class FieldChange:
    """A field with its old and new value, as files write them, None if it is not set. `field`: its name; a dot leads into
    a mapping, as in `output.partitions`.
    """

    field: str
    old: object
    new: object


@dataclass(frozen=True, slots=True)
class Step:
    """One consumer of a plan. `config`: what it is to be, None if the folder does not have it.
    `changes`: the fields that are set or changed, empty for other verbs than ADD, CHANGE and
    REFUSE. `reason`: why it is left or refused, else "".
    """

    verb: Verb
    id: ConsumerId
    config: ConsumerConfig | None = None
    changes: tuple[FieldChange, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Held:
    """A consumer as the service has it. `origin`: None if a service of an older version does not say.

    `is_bound`: whether its output is being read.
    """

    config: ConsumerConfig
    origin: Origin | None = Origin.REQUEST
    is_bound: bool = False


def make_plan(
    wanted: Mapping[ConsumerId, ConsumerConfig],
    held: Mapping[ConsumerId, Held],
    ours: Collection[str],
    known: Collection[str],
    *,
    prune: bool,
) -> list[Step]:
    """Return a step for each consumer of the folder, then one for each durable consumer of our
    streams that was made by request and that only the service has. Both parts are sorted by stream
    and name.

    `wanted`: the consumers of the folder, with defaults. `held`: those of the service. `ours`,
    `known`: the streams of the folder, and of the service. `prune`: whether durable consumers of
    our streams that are not in the folder are removed.
    """
    steps = [_judge(config, held.get(id), known) for id, config in sorted(wanted.items())]
    rest = ((id, found) for id, found in sorted(held.items()) if id not in wanted and id[0] in ours)
    return [*steps, *_judge_rest(rest, prune=prune)]


def _judge(config: ConsumerConfig, held: Held | None, known: Collection[str]) -> Step:
    id = config.id
    if config.engine is Engine.SPARK:
        return Step(Verb.LEAVE, id, config, reason="a Spark job runs it by its file")
    if held is None:
        if id[0] not in known:
            reason = f"the service has no stream {id[0]}: streams come from the files of its workers. Add it there"
            return Step(Verb.REFUSE, id, config, reason=reason)
        return Step(Verb.ADD, id, config, tuple(_list_fields(config)))
    changes = tuple(compare(held.config, config))
    if held.origin is Origin.FILE:
        reason = "a file of the workers defines it"
        if not changes:
            return Step(Verb.LEAVE, id, config, reason=reason)
        return Step(Verb.REFUSE, id, config, changes, f"{reason}. Change that file, or remove it and apply again")
    if not changes:
        return Step(Verb.KEEP, id, config)
    for violation in check_update(held.config, config, has_interest=held.is_bound):
        reason = f"{violation.field}: {violation.description}" + (f": {violation.hint}" if violation.hint else "")
        return Step(Verb.REFUSE, id, config, changes, reason)
    return Step(Verb.CHANGE, id, config, changes)


def _judge_rest(rest: Iterable[tuple[ConsumerId, Held]], *, prune: bool) -> Iterator[Step]:
    """Yield a step for each durable consumer of `rest` that was made by request: REMOVE if `prune`, else LEAVE. Ephemeral
    ones end by themselves: they are those of clients at work. `rest`: consumers that are not in the folder.
    """
    for id, held in rest:
        if held.origin is Origin.REQUEST and held.config.durable_name:
            if prune:
                yield Step(Verb.REMOVE, id)
            else:
                yield Step(Verb.LEAVE, id, reason="it is not in the folder; --prune removes it")


def _list_fields(config: ConsumerConfig) -> Iterator[FieldChange]:
    """Yield the fields that the file of a new consumer sets: those that would have another value if the file did not name
    them. `old` of each is None."""
    given = {
        name: getattr(config, name) for name in ("stream", "durable_name", "name", "deliver_subject", "ack_policy")
    }
    plain = fill_defaults(ConsumerConfig.model_construct(**given))
    bare = plain.model_copy(update={"deliver_subject": "", "ack_policy": AckPolicy.EXPLICIT})
    yield from (FieldChange(change.field, None, change.new) for change in compare(bare, config))


def compare(old: ConsumerConfig, new: ConsumerConfig) -> Iterator[FieldChange]:
    """Yield the fields in which two configs of one consumer differ, in the order of the fields of ConsumerConfig; keys
    of mappings that only `new` has come last. Names and pauses are left out.
    """
    before, after = _flatten(old), _flatten(new)
    for field in dict.fromkeys([*before, *after]):
        if before.get(field) != after.get(field):
            yield FieldChange(field, before.get(field), after.get(field))


def _flatten(config: ConsumerConfig) -> dict[str, object]:
    """Return the fields as files write them, those of mappings by their path with dots, without names and pauses."""
    found: dict[str, object] = {}
    for name, value in config.model_dump(mode="json").items():
        if name in DURATIONS:
            found[name] = list(map(format_duration, value)) if isinstance(value, list) else format_duration(value)
        elif name in TIMES and value is not None:
            found[name] = format_time(value)
        elif name not in _LEFT_OUT:
            found |= _spread(name, value)
    return found


def _spread(path: str, value: object) -> dict[str, object]:
    """Return a value by its path, or if it is a mapping, the values in it by theirs."""
    if not isinstance(value, dict):
        return {path: value}
    return {name: each for key, inner in value.items() for name, each in _spread(f"{path}.{key}", inner).items()}
