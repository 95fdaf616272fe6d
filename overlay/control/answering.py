"""Answers to requests: what ends a request in Kafka, and answers that wait until consumers are served.

Slow answers do not hold up other requests. A create or update is answered once all shards of this
worker have taken it up and the consumer is being served, so that the client can produce the next
record and be sure that it is delivered; or after SERVED_S, with the consumer's present state. A
delete is answered once the consumer's state is dropped. Until then the request stays in the topic.
If this worker dies, its successor finds the request there and comes to the same answer. Only the
answer itself may be lost, if the worker dies between the commit and the sending. The client then
asks again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain

from aiokafka.errors import KafkaError

from overlay.clock import monotonic, now_ns
from overlay.errors import CredentialsRefused, DeliveryFailed, Fenced, SourceUnavailable
from overlay.logs import get_logger
from overlay.output.entry import Entry
from overlay.output.record import Record
from overlay.replies.answers import answer
from overlay.replies.event_topic import encode_audit
from overlay.waits import Slices

from .decide import Body, Host, describe
from .records import ConsumerId, Subject, make_key, write_json
from .registry import Registry
from .requests import CONSUMER_NOT_FOUND, Request, refuse, respond, respond_refused
from .shard_journals import ShardJournals

log = get_logger(__name__)

SERVED_S = 8.0
"""Seconds for which the answer to a create or update waits until the consumer is served as it says: less than clients
wait."""
LOOK_S = 0.02
"""Seconds between two looks at whether a consumer is served."""
SLICE_S = 0.02
"""Seconds of deciding or answering requests before the event loop does other work."""
DELETED = "it was deleted meanwhile"
OF_KAFKA = (Fenced, SourceUnavailable, CredentialsRefused, KafkaError)
"""Errors that no request has caused."""


@dataclass(frozen=True, slots=True)
class Answers:
    """What ends requests. `name`: the worker's name, for audits. `journals`: where it is written."""

    name: str
    journals: ShardJournals

    def answer(self, request: Request, response: Body) -> list[Entry]:
        """Return the records that end a request: the answer, the tombstone of the request, and the
        audit if the request may change something.
        """
        value, prefix = write_json(response), self.journals.prefix
        entries = [answer(request.reply, value), Entry(self.journals.tail.topic, settle(request))]
        if request.op is not None and request.op.changes:
            entries.append(
                encode_audit(self.name, request.subject, request.text, response, now_ns(), prefix, request.client)
            )
        return entries

    @contextlib.asynccontextmanager
    async def answer_failure(self, request: Request) -> AsyncIterator[None]:
        """Run a block for a request. If it raises an unexpected error, log that and answer the
        request with an internal error. Errors of Kafka are raised.

        If such a request stayed in the topic, it would end every worker in turn.
        """
        try:
            yield
        except OF_KAFKA:
            raise
        except Exception:  # noqa: BLE001 - logged with the answer
            await self.journals.write(request.about, [], self.answer(request, _refuse_failed(request)))


@dataclass(slots=True)
class ServedAnswers:
    """Answers to creates and updates, each of which waits until its consumer is served. Set `host` before the first
    use. `taken_up`: returns the offset up to which the host serves what the topic says.
    """

    registry: Registry
    journals: ShardJournals
    answers: Answers
    taken_up: Callable[[], int]
    host: Host = field(init=False)
    tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    """By the ids of requests that wait. Requests that were decided together have one task."""

    def __contains__(self, request_id: str) -> bool:
        return request_id in self.tasks

    def begin(self, requests: Sequence[Request]) -> None:
        """Answer requests of one shard later, by a task. Call it once their definitions were written."""
        task = asyncio.create_task(self._answer_served(requests, self.journals.hold))
        self.tasks.update((request.id, task) for request in requests)
        task.add_done_callback(lambda _: self._forget(requests))

    def _forget(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self.tasks.pop(request.id, None)

    async def cancel(self) -> None:
        """Cancel open answers, and wait for their end. Their requests stay in the topic."""
        tasks = list(self.tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _answer_served(self, requests: Sequence[Request], written: int) -> None:
        """Answer creates and updates of one shard once their consumers are served, or after SERVED_S
        with their present state. Errors of Kafka are logged; then the requests stay, and are decided
        again.

        `written`: the offset behind the definitions, which the host must have taken up. Mostly all
        consumers are served at once. So each look is at one of them, and at the others only
        once that one is served.
        """
        waiting, deadline, tail = deque(requests), monotonic() + SERVED_S, self.journals.tail
        try:
            while waiting:
                # what is not read back yet is not deleted
                is_late = monotonic() >= deadline and tail.seen >= written and not tail.is_behind
                if not is_late and not self._is_made(waiting[0].about, written):
                    waiting.rotate(-1)  # one that is not served holds up no other
                    await asyncio.sleep(LOOK_S)
                    continue
                made = [request for request in waiting if is_late or self._is_made(request.about, written)]
                await self._answer_made(made)
                answered = {request.id for request in made}
                waiting = deque(request for request in waiting if request.id not in answered)
        except OF_KAFKA as error:
            log.warning("requests are answered later", count=len(waiting), reason=str(error))
            await self.journals.drop()

    async def _answer_made(self, requests: Sequence[Request]) -> None:
        """End creates and updates that were carried out: write their tombstones and audits in one
        transaction, and send the answers after it. If the events topic refuses it, perhaps because
        of one audit, or the control topic does so for good, end each in a transaction of its own.
        Raises errors of Kafka.
        """
        slices = Slices(SLICE_S)
        entries: list[list[Entry]] = []
        for request in requests:
            entries.append(self.answers.answer(request, self._describe_made(request)))
            await slices.rest()
        if len(requests) > 1:
            try:
                await self.journals.write(requests[0].about, [], list(chain.from_iterable(entries)), is_whole=True)
            except DeliveryFailed as error:
                log.warning("requests are answered one by one", count=len(requests), reason=str(error))
            else:
                return
        for request, its_own in zip(requests, entries, strict=True):
            async with self.answers.answer_failure(request):
                await self.journals.write(request.about, [], its_own)

    def _describe_made(self, request: Request) -> Body:
        """Return the answer to a create or update that was carried out."""
        try:
            if request.about in self.registry.effective().consumers:
                return respond(request, describe(self.registry, self.host, request.about, now_ns()))
            return refuse_deleted(request)
        except Exception:  # noqa: BLE001 - logged with the answer
            return _refuse_failed(request)

    def _is_made(self, id: ConsumerId, written: int) -> bool:
        """Return whether the host serves what the topic says up to offset `written`, and the consumer is not starting any
        more, or is not to be served.
        """
        if self.taken_up() < written:
            return False
        is_served = self.host.report_consumer(id).get("state", "starting") != "starting"
        return is_served or id not in self.registry.effective().consumers


def settle(request: Request) -> Record:
    """Return the tombstone that removes a request from the control topic."""
    return Record(make_key(Subject.REQUEST, request.id), None)


def refuse_deleted(request: Request) -> Body:
    """Return the answer to a request whose consumer was deleted before the answer."""
    return respond_refused(request, refuse(CONSUMER_NOT_FOUND, DELETED))


def _refuse_failed(request: Request) -> Body:
    """Log the present exception, which a request has caused, and return the answer to the request."""
    log.exception("a request fails", request=request.id, subject=request.subject)
    refusal = refuse(10012, "the log of the service says more", err="internal error")
    return respond_refused(request, refusal)
