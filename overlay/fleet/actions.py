"""What an administrator may do on the fleet's page: pause and resume a consumer, replay its dead letters, begin a stream
anew, drain a worker.

An action is what a command does, by this process and with its rights in Kafka. It is carried out if it brings the
`http.admin_token` of overlay.yaml in a header of its own. A page of another site can have a browser send what it likes
to this address, but no such header: for that the browser would ask this server first, which does not answer.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from functools import partial
from http import HTTPStatus
from typing import Annotated, Protocol

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from overlay.errors import OverlayError
from overlay.logs import get_logger

from .drain import find_target
from .live import LivePicture

log = get_logger(__name__)

HEADER = "Overlay-Admin-Token"
MAX_BODY = 4_096
MAX_PAUSE_S = 366 * 86_400


class Kind(StrEnum):
    """The actions that an administrator can ask for."""

    PAUSE = "pause"
    RESUME = "resume"
    DRAIN = "drain"
    UNDRAIN = "undrain"
    RESET = "reset"
    REPLAY = "replay"

    @property
    def has_plan(self) -> bool:
        """Whether it can be asked first what the action would do."""
        return self in (Kind.RESET, Kind.REPLAY)


Name = Annotated[str, Field(min_length=1, max_length=255)]


class Action(BaseModel):
    """The body of a request to `/actions`. Pause, resume and replay need `stream` and `consumer`, a pause also
    `seconds`, how long it lasts; drain and undrain need `worker`; a reset needs `stream` and `to`. That is not checked
    here."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    action: Annotated[Kind, Field(strict=False)]
    stream: Name | None = None
    consumer: Name | None = None
    worker: Name | None = None
    seconds: Annotated[int, Field(ge=1, le=MAX_PAUSE_S)] | None = None
    to: Name | None = None
    """Of a reset `start` or `end`. Of a replay a topic of the stream, None for its only one."""
    dry_run: bool = False
    """Whether to answer with what a reset or replay would do, and do nothing."""


class Requests(Protocol):
    """What carries actions out. The methods block, and raise OverlayError."""

    def pause(self, stream: str, name: str, until: timedelta) -> bool:
        """Pause a consumer. Return whether it is paused now. `until`: for how long from now."""
        ...

    def resume(self, stream: str, name: str) -> None:
        """End a consumer's pause."""
        ...

    def drain(self, worker: str, boot: str) -> None:
        """Have a worker give its shards to the others, and take none until `undrain` or its next start. `boot`: which
        start of its process is meant (WorkerStatus.boot).
        """
        ...

    def undrain(self, worker: str) -> None:
        """Let a worker have shards again."""
        ...

    def plan_reset(self, stream: str, to: str) -> str:
        """Return what `reset` would do, as lines of text."""
        ...

    def reset(self, stream: str, to: str) -> str:
        """Have the consumers of a stream begin anew at the start or the end of its topics. Return what was done. `to`:
        `start` or `end`.
        """
        ...

    def plan_replay(self, stream: str, name: str, to: str | None) -> str:
        """Return what `replay` would do, as lines of text."""
        ...

    def replay(self, stream: str, name: str, to: str | None) -> str:
        """Produce the dead letters of a consumer since the last replay once more. Return what was done. `to`: the topic to
        produce to, None for the only one of the stream.
        """
        ...


@dataclass(frozen=True, slots=True)
class Actions:
    """The HTTP routes by which a page's administrators act. `find_token`: returns what a request has to bring now.
    `requests`: carries actions out. `live`: tells which workers can be drained.
    """

    find_token: Callable[[], str]
    requests: Requests
    live: LivePicture

    def add_routes(self, app: web.Application) -> None:
        """Add `/actions` to an application: GET lists the actions, POST carries one out."""
        app.router.add_get("/actions", self._list)
        app.router.add_post("/actions", self._act)

    async def _list(self, _: web.Request) -> web.Response:
        return web.json_response({"actions": [kind.value for kind in Kind], "header": HEADER})

    async def _act(self, request: web.Request) -> web.Response:
        """Carry out the action in the request's body. Answers with `{"done": what}`, for a dry run with
        `{"plan": what}`, or with `{"error": reason}` and status 403, 413, 400, 409 or 502.
        """
        given = request.headers.get(HEADER, "").encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(given, self.find_token().encode()):
            return _refuse(HTTPStatus.FORBIDDEN, f"this is not the http.admin_token of overlay.yaml (header {HEADER})")
        try:
            # aiohttp counts what it reads: a chunked body has no Content-Length, and that of a compressed one says little
            body = await request.clone(client_max_size=MAX_BODY).read()
        except web.HTTPRequestEntityTooLarge:
            return _refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"an action has at most {MAX_BODY} bytes")
        except web.RequestPayloadError:
            return _refuse(HTTPStatus.BAD_REQUEST, "the body is not as its headers say, such as Content-Encoding")
        try:
            action = Action.model_validate_json(body)
            order = self._prepare(action)
        except ValidationError as error:
            found = error.errors(include_url=False, include_context=False, include_input=False)[0]
            return _refuse(HTTPStatus.BAD_REQUEST, f"{'.'.join(map(str, found['loc'])) or 'the body'}: {found['msg']}")
        except OverlayError as error:
            return _refuse(HTTPStatus.CONFLICT, str(error))
        try:
            told = await asyncio.to_thread(order)
        except OverlayError as error:
            log.warning("action refused", action=action.action.value, by=request.remote, reason=str(error))
            return _refuse(HTTPStatus.BAD_GATEWAY, str(error))
        if action.dry_run:
            return web.json_response({"plan": told})
        log.info("action", done=told, by=request.remote)
        return web.json_response({"done": told})

    def _prepare(self, action: Action) -> Callable[[], str]:
        """Return a function that carries out the action, which blocks and may raise OverlayError, and returns a text that
        says what it has done, or for a dry run what would be done. Nothing is done yet. Raises OverlayError if a field is
        missing or does not fit the action; for a worker also if there is no picture, or if `find_target` refuses it.
        """
        if action.dry_run and not action.action.has_plan:
            raise OverlayError(f"{action.action} has no dry_run")
        if action.action in (Kind.DRAIN, Kind.UNDRAIN):
            return self._prepare_drain(action)
        if action.stream is None or (action.consumer is None and action.action is not Kind.RESET):
            raise OverlayError(
                f"{action.action} wants a stream{'' if action.action is Kind.RESET else ' and a consumer'}"
            )
        requests, stream, consumer, to = self.requests, action.stream, action.consumer or "", action.to
        if action.action is Kind.REPLAY:
            return partial(requests.plan_replay if action.dry_run else requests.replay, stream, consumer, to)
        if action.action is Kind.RESET:
            if to is None or to not in ("start", "end"):
                raise OverlayError("reset wants to: start or end")
            return partial(requests.plan_reset if action.dry_run else requests.reset, stream, to)
        if action.action is Kind.RESUME:
            return _say(lambda: requests.resume(stream, consumer), f"{stream}/{consumer} is resumed")
        if action.seconds is None:
            raise OverlayError("pause wants seconds")
        span = timedelta(seconds=action.seconds)
        return _say(lambda: requests.pause(stream, consumer, span), f"{stream}/{consumer} is paused for {span}")

    def _prepare_drain(self, action: Action) -> Callable[[], str]:
        """Do what `_prepare` does, for a drain or undrain."""
        if action.worker is None:
            raise OverlayError(f"{action.action} wants a worker")
        requests, worker, picture = self.requests, action.worker, self.live.picture
        if picture is None:
            raise OverlayError(
                "this process has no picture of the workers yet, or stands by. Try again, or ask the other one"
            )
        target = find_target(picture, worker, undo=action.action is Kind.UNDRAIN)
        if action.action is Kind.DRAIN:
            return _say(lambda: requests.drain(worker, target.boot), f"worker {worker} gives its shards away")
        return _say(lambda: requests.undrain(worker), f"worker {worker} may have shards again")


def _say(order: Callable[[], object], done: str) -> Callable[[], str]:
    """Return a function that calls `order` and returns the text `done`."""

    def carry_out() -> str:
        order()
        return done

    return carry_out


def _refuse(status: HTTPStatus, reason: str) -> web.Response:
    return web.json_response({"error": reason}, status=status)
