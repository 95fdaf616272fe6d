"""What a request changes, by JetStream's rules for create, update, pause and delete
(docs/jetstream.md#updates). Pure.

A consumer that a file defines belongs to the file: requests may look at it and pause it, but
neither change nor delete it. A request for what is already there succeeds. So a request that is
sent twice, or is answered by the next owner after a crash, has the same result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from overlay.config import LogEnds, check_update, fill_defaults
from overlay.config.consumer import ConsumerConfig, Engine
from overlay.errors import ConfigError
from overlay.kafka.own_topics import is_ordered_topic
from overlay.units import parse_time

from .records import Definition, Origin, Pause, read_config
from .registry import Registry, find_fault
from .requests import CONSUMER_NOT_FOUND, Op, Request, RequestRefusal, refuse, refuse_violation

ACTIONS = ("", "create", "update")
MAX_TOPIC = 249
"""Most characters of a topic's name."""
MAX_FIELDS = 100
"""Most fields of a requested config: each unknown field is compared with all known ones."""
MAX_ITEMS = 1_000
"""Most items of a list in a requested config: each filter subject is compared with all others, on
the service's event loop. A file may have more, since its author controls the service anyway."""


def judge_create(
    registry: Registry,
    request: Request,
    now: int,
    *,
    is_bound: bool,
    ends: LogEnds | None = None,
    lacks_output: bool = False,
) -> RequestRefusal | Definition:
    """Return the definition that a create or update asks for, or a refusal. If nothing changes, it is
    the existing definition, or one with Origin.FILE for a consumer of a file: nothing is to be
    written then.

    `now`: ns since 1970; `is_bound`: whether the consumer's output has readers; `ends`: the ends of
    the stream's logs, for a new consumer, None if not needed or unknown; `lacks_output`: whether its
    output topic is not there.
    """
    action = "update" if request.op is Op.UPDATE else request.body.get("action", "")
    # first what is wrong with the request itself
    if action not in ACTIONS:
        return refuse(10025, err=f"action: found {action!r}, known are {', '.join(filter(None, ACTIONS))}")
    if excess := _find_excess(request.body.get("config")):
        return refuse(10025, err=excess)
    try:
        # then its config: the name may be in the request alone, but both must agree
        written = read_config(request.stream, request.body.get("config", {}))
    except ConfigError as error:
        return refuse(10025, err=_word(error))
    if not written.id[1]:
        written = written.model_copy(update={"name": request.consumer})
    if written.id != request.about:
        return refuse(10017, f"the request names {request.consumer!r}, its config {written.id[1]!r}")
    config = fill_defaults(written)
    if config.engine is Engine.SPARK:
        return refuse(10025, err="engine: a Spark job runs the files of its folder. Write a file, or leave this out")
    if refusal := find_fault(config, registry.effective()):
        return refusal
    found = _judge_existing(registry, config, str(action), now, ends, is_bound=is_bound)
    if isinstance(found, RequestRefusal) or found == registry.definitions.get(found.id) or found.origin is Origin.FILE:
        return found
    return find_quota(registry, config) or replace(
        found, makes_output=makes_output(registry, config, lacks_output=lacks_output)
    )


def find_quota(registry: Registry, config: ConsumerConfig) -> RequestRefusal | None:
    """Return a refusal if a consumer made or changed by request would go over a limit of `requests` in overlay.yaml, else
    None. What it has already is allowed, also over a limit."""
    limits, known = registry.files.service.requests, registry.definitions.get(config.id)
    # what is over a limit that has been lowered since may stay as it is
    if _is_over(limits.output_partitions, config, known, lambda each: each.output.partitions if each.is_push else 0):
        most = limits.output_partitions
        hint = f"output.partitions: ask for {most} at most, have the topic created before, or raise requests.output_partitions"
        return refuse(10012, hint, err=f"output.partitions is {config.output.partitions}, over the limit of {most}")
    if _is_over(limits.max_waiting, config, known, lambda each: each.max_waiting):
        most = limits.max_waiting
        hint = f"max_waiting: ask for {most} at most, or raise requests.max_waiting in overlay.yaml"
        return refuse(10012, hint, err=f"max_waiting is {config.max_waiting}, over the limit of {most}")
    if known is not None and known.origin is Origin.REQUEST:
        return None
    made = registry.made
    for name, count, allowed in (
        ("consumers", made.total(), limits.consumers),
        ("consumers_per_stream", made[config.stream], limits.consumers_per_stream),
    ):
        if count >= allowed:
            hint = f"there are {count} by request. Delete some, write a file, or raise requests.{name} in overlay.yaml"
            return refuse(10026, hint)
    return None


def has_room(registry: Registry, count: int) -> bool:
    """Return whether `count` more consumers may be made by request, also if all of them are on one stream."""
    limits, made = registry.files.service.requests, registry.made
    largest = max(made.values(), default=0)
    return made.total() + count <= limits.consumers and largest + count <= limits.consumers_per_stream


def _is_over(
    most: int, config: ConsumerConfig, known: Definition | None, measure: Callable[[ConsumerConfig], int]
) -> bool:
    """Return whether a config asks for more than `most` of what `measure` returns, and not for as much as `known`, the
    consumer's definition, has already."""
    asked = measure(config)
    return asked > most and (known is None or measure(known.config) != asked)


def find_temporary(request: Request, prefix: str) -> str:
    """Return the name of the temporary output topic that a create or update asks for, if Kafka has to be asked whether the
    topic exists. "" for another request, for a config that is malformed or has no such topic, and for a topic of
    ordered consumers, which is the overlay's own in any case.
    """
    if request.op not in (Op.CREATE, Op.UPDATE):
        return ""
    config = request.body.get("config")
    output, topic = (config.get("output"), config.get("deliver_subject")) if isinstance(config, dict) else (None, "")
    is_temporary = isinstance(output, dict) and output.get("temporary") is True
    if not is_temporary or not isinstance(topic, str) or len(topic) > MAX_TOPIC:
        return ""
    return "" if is_ordered_topic(prefix, topic) else topic


def makes_output(registry: Registry, config: ConsumerConfig, *, lacks_output: bool) -> bool:
    """Return whether the overlay creates the output topic of a new or changed consumer, or has created it. Only such a
    topic is deleted when inactive_threshold ends its consumer; a delete request leaves it. `lacks_output`: whether the
    topic is not there, or was not before the consumer.

    Always False for an output that is not temporary, which is never deleted. An ordered client makes one consumer after
    the other for its topic, whose name is the overlay's own.
    """
    topic = config.deliver_subject
    if not config.output.temporary or not topic:
        return False
    others = (each for each in registry.definitions.values() if each.config.deliver_subject == topic)
    return lacks_output or is_ordered_topic(registry.prefix, topic) or any(each.makes_output for each in others)


def _find_excess(config: object) -> str:
    """Return, as a text for the refusal, what a requested config has too much of; "" for nothing."""
    if not isinstance(config, dict):
        return ""
    if len(config) > MAX_FIELDS:
        return f"config: has {len(config)} fields; at most {MAX_FIELDS} are read"
    for name, value in config.items():
        if isinstance(value, list) and len(value) > MAX_ITEMS:
            return f"{name}: has {len(value)} items; a request may have {MAX_ITEMS}, a file in the folder more"
    return ""


def _judge_existing(
    registry: Registry, config: ConsumerConfig, action: str, now: int, ends: LogEnds | None, *, is_bound: bool
) -> RequestRefusal | Definition:
    """Return what a valid config leads to, given the consumer that exists under its name: as `judge_create` does, but
    without a look at limits and at the output topic.
    """
    known = registry.definitions.get(config.id)
    if known is not None and known.is_deleted:
        return refuse(10012, "ask again", err="consumer is being deleted")
    # a file's consumer cannot be changed, but a create with the same config succeeds
    if (owner := _find_file(registry, config.id)) is not None:
        if _is_same(registry.files.consumers[config.id], config):
            return Definition(config, registry.find_created(config.id), Origin.FILE)
        return refuse(10148, owner) if action == "create" else refuse(10012, owner, err="consumer has a file")
    # as in JetStream: an update needs a consumer, a create none or an equal one
    is_there = config.id in registry.effective().consumers
    if not is_there and action == "update":
        return refuse(10149)
    if known is None:
        return Definition(config, now, ends=ends if config.deliver_policy.begins_at_end else None)
    if is_there and _is_same(known.config, config):
        return known
    if is_there and action == "create":
        return refuse(10148)
    # also for a consumer whose file is gone: its state exists, and is continued if the rules allow
    # the change
    for violation in check_update(known.config, config, has_interest=is_bound):
        return refuse_violation(violation)
    paused = config.model_copy(update={"pause_until": known.config.pause_until})
    return Definition(paused, known.created, ends=known.ends)


def judge_delete(registry: Registry, request: Request) -> RequestRefusal | Definition:
    """Return the definition to delete, or a refusal. If the definition is marked as deleted
    already, an earlier request has begun the deletion, and nothing is to be written for this one.
    """
    known = registry.definitions.get(request.about)
    owner = _find_file(registry, request.about)
    if owner is not None:
        return refuse(10012, owner, err="consumer has a file")
    return refuse(CONSUMER_NOT_FOUND) if known is None else known


def judge_pause(registry: Registry, request: Request, now: int) -> RequestRefusal | Pause:
    """Return the pause that a pause or resume request asks for, or a refusal. The pause is Pause(None), which ends one, for
    a resume and for a time that is missing or past. `now`: ns since 1970."""
    if refusal := find_missing(registry, request):
        return refusal
    if registry.effective().consumers[request.about].engine is Engine.SPARK:
        return refuse(
            10025, "write pause_until into its file", err="a Spark job delivers this consumer, by its file alone"
        )
    wanted = request.body.get("pause_until") if request.op is Op.PAUSE else None
    if wanted is None:
        return Pause(None)
    try:
        until = parse_time(wanted)
    except (TypeError, ValueError) as error:
        return refuse(10025, err=f"pause_until: {error}")
    return Pause(until if until > now else None)


def find_missing(registry: Registry, request: Request) -> RequestRefusal | None:
    """Return a refusal if the stream or the consumer that a request names does not exist, else None. An empty name names
    none.
    """
    if request.stream and request.stream not in registry.files.streams:
        return refuse(10059)
    if request.consumer and request.about not in registry.effective().consumers:
        return refuse(CONSUMER_NOT_FOUND)
    return None


def _is_same(known: ConsumerConfig, config: ConsumerConfig) -> bool:
    """Return whether two configs are equal apart from `pause_until`, which requests of their own
    set."""
    unpaused = {"pause_until": None}
    return known.model_copy(update=unpaused) == config.model_copy(update=unpaused)


def _find_file(registry: Registry, id: tuple[str, str]) -> str | None:
    """Return what a client has to do to change or remove a consumer that a file defines; None for any
    other, and for one that inactive_threshold has ended.
    """
    if id not in registry.files.consumers or id in registry.lapsed:
        return None
    return f"it is defined in {registry.files.files[id].file}: change or remove that file"


def _word(error: ConfigError) -> str:
    """Return a config error as a description, without its JetStream error number."""
    message = error.message.removesuffix(" (JetStream 10025)")
    return f"{error.field}: {message}" if error.field else message
