"""What each kind of user needs of Kafka, for least rights (docs/security.md). Pure.

A role is what a user does with the overlay. Each role should have a Kafka principal of its own,
with the operations that are listed here and no others.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from enum import StrEnum

from overlay.config import Loaded
from overlay.config.consumer import Engine
from overlay.kafka.own_topics import (
    control_topic,
    index_topic,
    reply_topic,
    requests_topic,
    shard_id,
    state_topic,
    workers_group,
)

from .needs import Need, ResourceKind, find_needs
from .verdict import Finding, NeedState

JOB_USER = "Spark job "
"""How the users of a need begin that is a Spark job's (needs.py)."""


class Role(StrEnum):
    """What a user does with the overlay, by the words of `--principal`."""

    SERVICE = "service"
    READER = "reader"
    ACKER = "acker"
    PULLER = "puller"
    ADMIN = "admin"
    VIEWER = "viewer"
    SCANNER = "scanner"
    JOB = "job"
    INIT = "init"


def find_role_needs(loaded: Loaded, role: Role) -> tuple[Need, ...]:
    """Return each resource that a user of this role needs, with the operations on it, for all that the config folder
    defines. Kafka is not asked.
    """
    match role:
        case Role.SERVICE:
            return tuple(_need_as_service(find_needs(loaded)))
        case Role.READER:
            return tuple(_need_as_reader(loaded))
        case Role.ACKER:
            acks = _pick(loaded, ResourceKind.ACKS)
            return tuple(replace(need, operations=("Describe", "Write")) for need in acks)
        case Role.PULLER | Role.ADMIN:
            return tuple(_need_as_asker(loaded, role))
        case Role.VIEWER:
            return tuple(_need_as_viewer(loaded))
        case Role.SCANNER:
            return (*_pick(loaded, ResourceKind.SOURCE), *_need_index(loaded, ("Describe", "Read")))
        case Role.JOB:
            return tuple(_need_as_job(loaded))
        case Role.INIT:
            return tuple(_pick(loaded, ResourceKind.SOURCE))


def write_commands(findings: Iterable[Finding], kafka: Mapping[str, str], *, is_certain: bool) -> Iterator[str]:
    """Yield a kafka-acls.sh command, quoted for a shell, for each finding that lacks operations.

    If `is_certain`, a command adds the operations that are missing, or all of the need's if Create or Describe is
    among them. Otherwise it adds those that Kafka could not be asked for, which may be granted already. `kafka`: the
    user's Kafka settings; they name the brokers and the principal.
    """
    principal = name_principal(kafka)
    for finding in findings:
        if operations := _list_lacking(finding, is_certain=is_certain):
            words = ["kafka-acls.sh", "--bootstrap-server", kafka["bootstrap.servers"], "--add"]
            words += ["--allow-principal", principal]
            words += [word for operation in operations for word in ("--operation", operation)]
            yield shlex.join([*words, *_name_resource(finding.need)])


def name_principal(kafka: Mapping[str, str]) -> str:
    """Return the principal that Kafka's default rules give to a client with these settings: `User:` with the SASL
    user name, with a placeholder for an OAuth token or a client certificate, or `User:ANONYMOUS`.
    """
    if user := kafka.get("sasl.username"):
        return f"User:{user}"
    if "sasl.oauthbearer.client.id" in kafka:
        return "User:(the subject of the token)"
    return "User:(the subject of the certificate)" if "ssl.certificate.location" in kafka else "User:ANONYMOUS"


def _list_lacking(finding: Finding, *, is_certain: bool) -> tuple[str, ...]:
    """Return the operations that a command of `write_commands` has to add for a finding; () for none.

    If `is_certain`: those that a MISSING finding lacks, or all of its need if it lacks Create or Describe. Otherwise:
    all of an UNKNOWN finding, and all but Create of a CREATED one, unless the finding has no remark, since then this
    user may do everything.
    """
    if finding.state is NeedState.MISSING:
        # a topic that is not there, or not visible: what else is missing on it cannot be known yet
        is_hidden = not {"Create", "Describe"}.isdisjoint(finding.missing)
        lacking = finding.need.operations if is_hidden else finding.missing
        return lacking if is_certain else ()
    if is_certain or not finding.remarks:
        return ()
    if finding.state is NeedState.UNKNOWN:
        return finding.need.operations
    # it is not there, and Kafka says only afterwards what this user may do with it
    is_absent = finding.state is NeedState.CREATED
    return tuple(each for each in finding.need.operations if each != "Create") if is_absent else ()


def _name_resource(need: Need) -> list[str]:
    option = {
        ResourceKind.TRANSACTION: "--transactional-id",
        ResourceKind.GROUP: "--group",
        ResourceKind.CLUSTER: "--cluster",
    }.get(need.kind, "--topic")
    if need.name.endswith(".*"):
        return [option, need.name.removesuffix("*"), "--resource-pattern-type", "prefixed"]
    return [option, need.name]


def _is_jobs(need: Need) -> bool:
    """Return whether all users of the need are Spark jobs, by their names. A job's leases have consumers as users, so
    they do not count.
    """
    return bool(need.users) and all(user.startswith(JOB_USER) for user in need.users)


def _pick(loaded: Loaded, *kinds: ResourceKind) -> Iterator[Need]:
    return (need for need in find_needs(loaded) if need.kind in kinds)


def _need_as_service(needs: Iterable[Need]) -> Iterator[Need]:
    """Yield those of the needs of a config (`needs`) that are the service's. To take consumers back from Spark jobs,
    it reads their state topics, describes their leases, and writes with the transactional ids of their drivers, but
    not of their writers.
    """
    leases = {need.name for need in needs if need.kind is ResourceKind.GROUP and ".spark." in need.name}
    for need in needs:
        if need.kind is ResourceKind.JOB:
            yield replace(need, operations=("Describe", "Read"))
        elif need.name in leases:
            yield replace(need, operations=("Describe",))
        elif not (_is_jobs(need) and need.name.endswith(".*")):
            yield need


def _need_as_reader(loaded: Loaded) -> Iterator[Need]:
    groups: dict[str, list[str]] = {}
    for need in _pick(loaded, ResourceKind.OUTPUT):
        yield replace(need, operations=("Describe", "Read"), consumers=())
    for config in loaded.consumers.values():
        if config.is_push:
            groups.setdefault(config.reader_group, []).append(f"consumer {config.id[1]} of {config.stream}")
    for group, users in groups.items():
        yield Need(ResourceKind.GROUP, group, ("Describe", "Read"), tuple(users))


def _need_as_asker(loaded: Loaded, role: Role) -> Iterator[Need]:
    topics, users = loaded.service.topics, (role.value,)
    prefix = topics.prefix
    if role is Role.PULLER and topics.requests:
        yield Need(ResourceKind.REQUESTS, requests_topic(prefix), ("Describe", "Write"), users)
    else:
        yield Need(ResourceKind.CONTROL, control_topic(prefix), ("Describe", "Write"), users)
    yield Need(ResourceKind.REPLIES, reply_topic(prefix), ("Describe", "Read"), users)


def _need_as_viewer(loaded: Loaded) -> Iterator[Need]:
    prefix, users = loaded.service.topics.prefix, (Role.VIEWER.value,)
    for need in _pick(loaded, ResourceKind.SOURCE):
        yield replace(need, operations=("Describe", "DescribeConfigs"))
    shards = tuple(range(loaded.service.shards))
    yield Need(ResourceKind.STATE, state_topic(prefix), ("Describe", "Read"), users, shards)
    yield Need(ResourceKind.CONTROL, control_topic(prefix), ("Describe", "Read"), users)
    yield from _need_index(loaded, ("Describe", "Read"))
    for need in _pick(loaded, ResourceKind.JOB):
        yield replace(need, operations=("Describe", "Read"))


def _need_index(loaded: Loaded, operations: tuple[str, ...]) -> Iterator[Need]:
    for name in loaded.streams:
        yield Need(ResourceKind.INDEX, index_topic(loaded.service.topics.prefix, name), operations, (f"stream {name}",))


def _need_as_job(loaded: Loaded) -> Iterator[Need]:
    """Yield what the Spark jobs of the folder need, all of them together."""
    service, prefix = loaded.service, loaded.service.topics.prefix
    delivered = {config.id: config for config in loaded.consumers.values() if config.engine is Engine.SPARK}
    streams = {stream for stream, _ in delivered}
    topics = {topic for name in streams for topic in loaded.streams[name].topic_names}
    topics |= {topic for config in delivered.values() for topic in (config.deliver_subject, config.dead_letter_topic)}
    for need in find_needs(loaded):
        is_topic = need.kind in (ResourceKind.SOURCE, ResourceKind.OUTPUT, ResourceKind.LETTERS) and need.name in topics
        is_lease = need.kind is ResourceKind.GROUP and need.name.startswith(f"{prefix}.spark.")
        is_index = need.name in {index_topic(prefix, name) for name in streams}
        if is_topic or is_lease or is_index or _is_jobs(need):
            yield need
    users = tuple(f"{JOB_USER}{name}" for name in sorted(streams))
    shards = tuple(range(service.shards))
    # to take consumers over from a service, and to keep the ledger while none runs
    yield Need(ResourceKind.STATE, state_topic(prefix), ("Describe", "Read", "Write"), users, shards)
    for shard in shards:
        yield Need(ResourceKind.TRANSACTION, shard_id(prefix, shard), ("Describe", "Write"), users)
    yield Need(ResourceKind.GROUP, workers_group(prefix), ("Describe",), users)
