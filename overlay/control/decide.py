"""Decisions on requests: the records that a request adds to the control topic, and its answer. Pure
except for `Host`.

A decision without a response is answered later: a create once the consumer is served, a delete once
its state is dropped, a pull request by the consumer itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from overlay.config import LogEnds
from overlay.config.service import WORKER_NAME
from overlay.consumer.effects import Advisory
from overlay.consumer.info import ConsumerInfo
from overlay.consumer.pulls import PullRequest, StatusText
from overlay.kafka.own_topics import shard_of
from overlay.output.record import Record

from .changes import find_missing, judge_create, judge_delete, judge_pause
from .records import (
    ConsumerId,
    Definition,
    Origin,
    Subject,
    make_key,
    write_definition,
    write_drain,
    write_pause,
)
from .registry import PENDING_BYTES, Registry
from .requests import MOST_LISTED, TOO_BUSY, Op, Request, RequestRefusal, refuse, respond, respond_refused
from .responses import describe_consumer, describe_pause, describe_stream, read_pull

MOST_BOOT = 100
"""Most characters of what tells the starts of a worker apart."""
Body = dict[str, object]


class Host(Protocol):
    """What the worker tells and does for decisions on requests. `owned`: the shards that the group assigns to it, of
    `count`."""

    owned: frozenset[int]
    count: int

    def report_consumer(self, id: ConsumerId) -> Mapping[str, Any]:
        """Return what the service's HTTP endpoint /consumers says of one consumer, empty if it is
        unknown.
        """

    def report_stream(self, name: str) -> Mapping[str, Any]:
        """Return what the service's HTTP endpoint /streams says of one stream, empty if it is unknown."""

    def find_info(self, id: ConsumerId) -> ConsumerInfo | None:
        """Return the ConsumerInfo of a consumer's machine, None if it has no machine here."""

    def pull(self, id: ConsumerId, request: PullRequest | StatusText, reply: str) -> bool:
        """Hand a pull request, or the status that refuses it, to a consumer's machine, which
        answers at the address `reply`. Return False if no machine takes requests for it here.
        """


@dataclass(frozen=True, slots=True)
class Decision:
    """What a request leads to.

    `response`: None if the answer comes later; `records`: for the control topic; `advisory`: for
    the events topic; `is_settled`: whether the request can be dropped from the control topic
    without an answer.
    """

    response: Body | None = None
    records: tuple[Record, ...] = ()
    advisory: Advisory | None = None
    is_settled: bool = False


def decide(
    registry: Registry,
    host: Host,
    request: Request,
    now: int,
    ends: LogEnds | None = None,
    *,
    lacks_output: bool = False,
) -> Decision:
    """Return what a request leads to. Nothing is written here; only a pull request is handed to its
    consumer's machine.

    `now`: ns since 1970. `ends`: the ends of the stream's logs, for a consumer that is to be
    created; None if not needed or unknown. `lacks_output`: whether its output topic is not there.
    """
    if request.is_excess:
        most = registry.files.service.requests.pending
        hint = f"{most} requests wait, or {PENDING_BYTES >> 20} MiB of them. Ask again later, or raise requests.pending"
        return _refuse(request, refuse(TOO_BUSY, hint))
    if request.fault or request.op is None:
        return _refuse(request, refuse(10025, err=request.fault))
    if request.op in (Op.CREATE, Op.UPDATE):
        return _create(registry, host, request, now, ends, lacks_output=lacks_output)
    return _RULES[request.op](registry, host, request, now)


def describe(registry: Registry, host: Host, id: ConsumerId, now: int) -> Body:
    """Return the ConsumerInfo of a consumer in the registry, as the fields of a response. `now`: ns
    since 1970. Raises KeyError for a consumer that is not to be served.
    """
    definition = Definition(registry.effective().consumers[id], registry.find_created(id), registry.find_origin(id))
    return describe_consumer(definition, host.report_consumer(id), host.find_info(id), now)


def delete(definition: Definition) -> Record:
    """Return the record that marks a consumer as deleted; its state is still to be dropped."""
    return write_definition(replace(definition, is_deleted=True, ends=None))


def _create(
    registry: Registry, host: Host, request: Request, now: int, ends: LogEnds | None, *, lacks_output: bool
) -> Decision:
    """Decide a create or update. The answer comes later, unless it is a refusal. There are no records if nothing changes."""
    info = host.find_info(request.about)
    is_bound = info is not None and info.push_bound
    found = judge_create(registry, request, now, is_bound=is_bound, ends=ends, lacks_output=lacks_output)
    if isinstance(found, RequestRefusal):
        return _refuse(request, found)
    known = registry.definitions.get(found.id)
    if found == known or found.origin is Origin.FILE:
        return Decision()
    return Decision(records=(write_definition(found),), advisory=None if known else Advisory.CREATED)


def _delete(registry: Registry, host: Host, request: Request, now: int) -> Decision:
    """Decide a delete. The answer comes later, unless it is a refusal."""
    found = judge_delete(registry, request)
    if isinstance(found, RequestRefusal):
        return _refuse(request, found)
    return Decision(records=() if found.is_deleted else (delete(found),))


def _pause(registry: Registry, host: Host, request: Request, now: int) -> Decision:
    """Decide a pause or resume, and answer it."""
    found = judge_pause(registry, request, now)
    if isinstance(found, RequestRefusal):
        return _refuse(request, found)
    same = found == registry.pauses.get(request.about)
    records = () if same else (write_pause(request.about, found),)
    return Decision(respond(request, describe_pause(found, now)), records)


def _info(registry: Registry, host: Host, request: Request, now: int) -> Decision:
    """Answer a consumer info request."""
    if refusal := find_missing(registry, request):
        return _refuse(request, refusal)
    return Decision(respond(request, describe(registry, host, request.about, now)))


def _list(registry: Registry, host: Host, request: Request, now: int) -> Decision:
    """Answer a consumer list request, MOST_LISTED consumers from the requested `offset` on: those of the shard that it names,
    else those of all shards, of which this worker knows its own. The answer says which these are."""
    if refusal := find_missing(registry, request):
        return _refuse(request, refusal)
    if request.shard is not None and request.shard >= host.count:
        return _refuse(request, refuse(10025, err=f"shard: found {request.shard}, there are {host.count}"))
    ids = [
        id
        for id in sorted(registry.effective().consumers)
        if request.stream in ("", id[0]) and request.shard in (None, shard_of(id, host.count))
    ]
    offset = request.body.get("offset", 0)
    if not isinstance(offset, int) or offset < 0:
        return _refuse(request, refuse(10025, err=f"offset: found {offset!r}, wants a number of consumers"))
    shown = [describe(registry, host, id, now) for id in ids[offset : offset + MOST_LISTED]]
    own = {"shards": sorted(host.owned), "shard_count": host.count}
    return Decision(
        respond(
            request, {"total": len(ids), "offset": offset, "limit": MOST_LISTED, "consumers": shown, "overlay": own}
        )
    )


def _next(registry: Registry, host: Host, request: Request, now: int) -> Decision:
    """Hand a pull request to its consumer's machine, which answers it, and return that the request
    can be dropped. If no machine takes it yet, the request stays. Refuse it here for a missing or a
    push consumer.
    """
    if refusal := find_missing(registry, request):
        return _refuse(request, refusal)
    if registry.effective().consumers[request.about].is_push:
        hint = f"{'/'.join(request.about)} delivers to an output topic; read that"
        return _refuse(request, refuse(10012, hint, err="consumer is push based"))
    # if the shard is just beginning, the request stays and is handed over later
    return Decision(is_settled=host.pull(request.about, read_pull(request.body), request.reply))


def _stream(registry: Registry, host: Host, request: Request, now: int) -> Decision:
    """Answer a stream info or stream list request."""
    if refusal := find_missing(registry, request):
        return _refuse(request, refusal)
    streams = registry.effective().streams
    if request.op is Op.STREAM_INFO:
        name = request.stream
        return Decision(respond(request, describe_stream(streams[name], host.report_stream(name), now)))
    shown = [describe_stream(streams[name], host.report_stream(name), now) for name in sorted(streams)]
    return Decision(respond(request, {"total": len(shown), "offset": 0, "limit": len(shown), "streams": shown}))


def _drain(registry: Registry, host: Host, request: Request, now: int) -> Decision:
    """Decide and answer a request to drain a worker, or to undrain it. The worker acts when it reads the record."""
    worker, boot = request.body.get("worker"), request.body.get("boot")
    if not isinstance(worker, str) or not WORKER_NAME.fullmatch(worker):
        return _refuse(request, refuse(10025, err=f"worker: found {worker!r}, wants a worker's name"))
    if request.op is Op.UNDRAIN:
        records = (Record(make_key(Subject.WORKER, worker), None),) if worker in registry.drained else ()
        return Decision(respond(request, {"worker": worker, "drained": False}), records)
    if not isinstance(boot, str) or not 0 < len(boot) <= MOST_BOOT:
        return _refuse(request, refuse(10025, err=f"boot: found {boot!r}, wants that of the worker's status"))
    records = () if registry.drained.get(worker) == boot else (write_drain(worker, boot),)
    return Decision(respond(request, {"worker": worker, "drained": True}), records)


def _refuse(request: Request, refusal: RequestRefusal) -> Decision:
    return Decision(respond_refused(request, refusal))


_RULES: dict[Op, Callable[[Registry, Host, Request, int], Decision]] = {
    Op.DELETE: _delete,
    Op.PAUSE: _pause,
    Op.RESUME: _pause,
    Op.INFO: _info,
    Op.LIST: _list,
    Op.NEXT: _next,
    Op.DRAIN: _drain,
    Op.UNDRAIN: _drain,
    Op.STREAM_INFO: _stream,
    Op.STREAM_LIST: _stream,
}
