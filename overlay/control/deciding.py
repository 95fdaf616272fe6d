"""Deciding requests: which of our shards' requests are decided together, and carrying the decisions out.

A decision needs a registry that contains every earlier one that it depends on. So after something is written, the next
request waits until it has been read back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from overlay.clock import monotonic, now_ns
from overlay.config import DeliverPolicy, LogEnds
from overlay.consumer.effects import Advise
from overlay.kafka.admin import Admin
from overlay.logs import get_logger
from overlay.metrics import Metrics
from overlay.output.entry import Entry
from overlay.output.record import Record
from overlay.replies.event_topic import encode_notices
from overlay.waits import Slices

from . import answering
from .answering import OF_KAFKA, Answers, ServedAnswers, settle
from .brokertime import Age
from .changes import find_temporary, has_room
from .creation import find_log_ends, is_missing
from .decide import Decision, Host, decide
from .grouping import MOST as MOST_TOGETHER
from .grouping import group_requests, is_independent
from .records import Subject, make_key
from .registry import Registry
from .requests import Op, Request
from .shard_journals import ShardJournals

log = get_logger(__name__)


@dataclass(slots=True)
class Decider:
    """Decides the requests of this worker's shards. Set `host` before the first use. `served_answers`: answer creates and
    updates once they are in effect.
    """

    registry: Registry
    admin: Admin
    journals: ShardJournals
    answers: Answers
    served_answers: ServedAnswers
    metrics: Metrics
    host: Host = field(init=False)
    _alone: set[str] = field(default_factory=set)
    """Requests that could not be decided together with others."""

    async def decide_waiting(self) -> bool:
        """Decide the requests for whose answers clients wait, and remove the others. Return False if it stopped early because
        something that was written has to be read back first.
        """
        if self.journals.is_read_back:
            await self._pass_over()
        # each decision needs a registry that contains every earlier one it depends on
        slices = Slices(answering.SLICE_S)
        for shard, requests in self._group_requests():
            if not self.journals.is_read_back:
                return False
            if not await self._handle(requests, shard):
                return False
            await slices.rest()
        return True

    def _group_requests(self) -> Iterator[tuple[int, list[Request]]]:
        """Yield each shard of ours with requests to decide together, in their order."""
        waiting = [request for request in self.registry.requests.values() if request.id not in self.served_answers]
        self._alone.intersection_update(self.registry.requests)
        sources = {topic for stream in self.registry.files.streams.values() for topic in stream.topic_names}
        fresh = sum(
            request.op is Op.CREATE
            and not request.is_excess
            and request.about not in self.registry.definitions
            and self.journals.host.find_shard(request.about) is not None
            for request in waiting
        )
        # decided together they would all see the same free places; after one group the registry is looked at again
        is_scarce = not has_room(self.registry, min(fresh, MOST_TOGETHER))
        return group_requests(
            waiting,
            self.journals.host.find_shard,
            lambda request: (
                request.id in self._alone
                or (not request.is_excess and (is_scarce or not is_independent(request, sources)))
            ),
        )

    async def _pass_over(self) -> None:
        """Remove our shards' requests whose clients do not wait any more, unanswered, in one
        transaction for each shard.

        A worker that was suspended for hours may find hundreds. One transaction for each of them
        would take minutes, and newer requests would wait behind them.
        """
        past: dict[int, list[Request]] = {}
        for request in self.registry.requests.values():
            shard = self.journals.host.find_shard(request.about)
            if shard is None or request.id in self.served_answers:
                continue
            if self.journals.tail.brokers.judge(request.expires_at, now_ns(), monotonic()) is Age.PAST:
                past.setdefault(shard, []).append(request)
        for requests in past.values():
            log.info("requests are passed over: their clients wait no more", count=len(requests), first=requests[0].id)
            await self.journals.write(requests[0].about, [settle(request) for request in requests])

    async def _handle(self, requests: Sequence[Request], shard: int) -> bool:
        """Decide requests of one shard together, except requests whose clients do not wait any
        more: the next turn passes them over. First measure the brokers' time if that is needed to
        tell. Return False if those behind them must wait for the next turn.
        """
        due: list[Request] = []
        for request in requests:
            age = self.journals.tail.brokers.judge(request.expires_at, now_ns(), monotonic())
            if age is Age.UNKNOWN:
                await self.journals.write(request.about, [Record(make_key(Subject.REQUEST, f"$time-{shard}"), None)])
                self.journals.tail.brokers.measure(monotonic())
                return False
            if age is not Age.PAST:
                due.append(request)
        if any(request.expires_at <= now_ns() for request in due):
            self._tell_ahead()
        if not due:
            return True
        if not await self.journals.knows_all(shard):
            return False
        if len(due) > 1:
            return await self._decide_together(due)
        async with self.answers.answer_failure(due[0]):
            await self._decide(due)
        return True

    async def _decide_together(self, requests: Sequence[Request]) -> bool:
        """Decide requests that do not depend on each other, and return True. If that fails because
        of one of them, return False: the next turns decide each alone.
        """
        try:
            await self._decide(requests)
            return True
        except OF_KAFKA:
            raise
        except Exception as error:  # noqa: BLE001 - the request that causes it is answered when it is alone
            log.warning("requests are decided one by one", count=len(requests), reason=str(error))
            self._alone.update(request.id for request in requests)
            self.journals.tail.wake()
            return False

    def _tell_ahead(self) -> None:
        ahead = self.journals.tail.brokers.tell_ahead(now_ns(), monotonic())
        if ahead is not None:
            self.metrics.clock_ahead_seconds.set(ahead)
            log.warning(
                "this machine's clock is ahead of the brokers': set it. Requests are judged by the brokers' time, but deadlines"
                " and pauses go by this clock",
                seconds=round(ahead, 3),
            )

    async def _decide(self, requests: Sequence[Request]) -> None:
        """Decide requests of one shard, and carry the decisions out in one transaction. Creates and
        updates are answered by a task once the consumers are served."""
        records: list[Record] = []
        entries: list[Entry] = []
        later: list[Request] = []
        ends: dict[str, LogEnds | None] = {}
        slices = Slices(answering.SLICE_S)
        for request in requests:
            found = await self._find_ends(request, ends)
            topic = find_temporary(request, self.journals.prefix)
            lacks_output = topic != "" and await is_missing(self.admin, topic)
            decision = decide(self.registry, self.host, request, now_ns(), found, lacks_output=lacks_output)
            more = self._carry_out(request, decision)
            records += more[0]
            entries += more[1]
            if decision.response is None and request.op in (Op.CREATE, Op.UPDATE):
                later.append(request)
            await slices.rest()
        if records or entries:
            await self.journals.write(requests[0].about, records, entries, decided=True, is_whole=len(requests) > 1)
        if later:
            self.served_answers.begin(later)

    async def _find_ends(self, request: Request, known: dict[str, LogEnds | None]) -> LogEnds | None:
        """Return the ends of the stream's logs for a request that may create a consumer, None if
        they are not needed or unknown. `known`: by stream, those that were found for requests that
        are decided together; they are added."""
        stream, config = self.registry.files.streams.get(request.stream), request.body.get("config")
        is_new = request.op is Op.CREATE and request.about not in self.registry.definitions
        policy = config.get("deliver_policy") if isinstance(config, dict) else None
        if stream is None or not is_new or not any(policy == each for each in DeliverPolicy if each.begins_at_end):
            return None
        if stream.name not in known:
            known[stream.name] = await find_log_ends(self.admin, stream)
        return known[stream.name]

    def _carry_out(self, request: Request, decision: Decision) -> tuple[list[Record], list[Entry]]:
        """Return what a decision writes: its records to the control topic, and its advisory and its answer, if there is one
        now."""
        entries: list[Entry] = []
        if decision.advisory is not None:
            entries += encode_notices([Advise(decision.advisory)], *request.about, now_ns(), self.journals.prefix)
        if decision.response is not None:
            entries += self.answers.answer(request, decision.response)
        return [*decision.records, *([settle(request)] if decision.is_settled else [])], entries
