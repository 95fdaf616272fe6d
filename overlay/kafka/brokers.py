"""Connections to the brokers of a cluster, and the choice of the broker for each request.

A connection serves one question (a few requests sent together) at a time: a broker answers the
requests of a connection one after the other, so a slow question never delays another. After an
answer the connection is kept for the next question. After a failure it is closed.

The caller sets the deadline (`asyncio.timeout`). Until then, whenever a connection breaks, the
question is sent again to the broker that is responsible by then. No single broker is waited for
while another one may answer. `send` and `order_once` are exceptions: they send a request once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from typing import Any, TypeVar

from aiokafka import client as aiokafka_client
from aiokafka.conn import AIOKafkaConnection, collect_hosts

from overlay.chance import choose, shuffle
from overlay.clock import monotonic
from overlay.credentials import Stamp, stamp
from overlay.errors import SourceUnavailable
from overlay.waits import Backoff

from .connection import FAILURES, describe_failure, for_aiokafka
from .properties import Properties, list_servers
from .protocol import TopicsRequest, Unsupported

T = TypeVar("T")

Address = tuple[str, int]
Locate = Callable[[Collection[T], bool], Awaitable[Mapping[T, int]]]
"""Returns the id of the responsible broker for each item, and leaves out items that need no answer.
If the flag is set, it asks the cluster now instead of using what was known before.
"""
Ask = Callable[[Address, list[T]], Coroutine[Any, Any, None]]
"""Asks one broker about items and keeps the answers. It may be called again for items that got no
answer.
"""

AT_ONCE = 8
"""Most connections to one broker. Further questions to it wait."""
IDLE_MS = 60_000
PAUSE_S = 0.1
"""Pause between two tries after a failure; it doubles up to LONGEST_PAUSE_S."""
LONGEST_PAUSE_S = 1.0
HURRY_S = 1.0
"""Time without an answer after which a second broker is asked as well, if any broker can answer."""
LOOK_S = 2.0
"""Time without an answer after which the cluster is asked whether the same broker is still
responsible.
"""
REREAD_S = 1.0
"""After a failure certificates are read again, but not more often than once in this time."""
CLOSE_S = 2.0


class BrokerLost(Exception):
    """A broker that did not answer: the connection could not be opened, or it broke."""


class Brokers:
    """Connections to the brokers of one cluster, opened when they are needed. An object belongs to
    the event loop of its first request, until `close`.
    """

    def __init__(self, kafka: Properties) -> None:
        self._kafka = kafka
        self._settings: dict[str, Any] = {}
        self._stamp: Stamp | None = None
        """Of the files that the settings were read from; None if they are to be read again in any case."""
        self._read_at = 0.0
        self._reading = asyncio.Lock()
        self._bootstrap: list[Address] = []
        self._nodes: dict[int, Address] = {}
        self._preferred: Address | None = None
        self._idle: dict[Address, list[AIOKafkaConnection]] = {}
        self._slots: dict[Address, asyncio.Semaphore] = {}
        self._closing: set[Awaitable[None]] = set()
        self.failure = ""
        """Text of the last failure since a broker answered; "" if there is none."""

    async def close(self) -> None:
        """Close the idle connections, and wait for that at most CLOSE_S. A connection that is in
        use is closed once it is free; that is not waited for. The next request opens new ones.
        """
        for address in self._idle:
            self._hang_up_idle(address)
        self._idle.clear()
        self._slots.clear()
        self._reading = asyncio.Lock()  # the next question may come from another event loop
        closing, self._closing = self._closing, set()
        if closing:
            await asyncio.wait({asyncio.ensure_future(one) for one in closing}, timeout=CLOSE_S)

    def doubt(self) -> None:
        """Ask another broker first next time, since the answers of the one that answered last may
        be outdated.
        """
        others = [address for address in self._nodes.values() if address != self._preferred]
        self._preferred = choose(others) if others else None

    def learn(self, node: int, address: Address) -> None:
        """Remember the address of a broker, as another broker reported it."""
        self._nodes[node] = address

    async def find_topics(self, topics: Iterable[str] | None, *, operations: bool = False) -> Any:
        """Return the metadata of the cluster and of these topics (all for None), from the first
        broker that answers. The brokers' addresses in it replace those known before. A topic that
        does not exist has an error code in it. `operations`: with what this user may do with each topic.

        Tries without end; the caller sets the deadline. Raises Unsupported, or SourceUnavailable if
        credentials cannot be read.
        """
        (found,) = await self.ask_any([TopicsRequest(topics, operations=operations)])
        self._nodes = {node: (host, port) for node, host, port, *_ in found.brokers}
        return found

    async def ask_controller(self, request: Any) -> Any:
        """Return the answer to a request for the controller. If the controller fails or does not
        answer within 4 s, other brokers are asked too: they may forward the request. So the request
        may be carried out more than once.

        Tries without end; the caller sets the deadline.
        """
        controller = (await self.find_topics(())).controller_id
        (answer,) = await self.ask_any([request], first=self._nodes.get(controller), hurry_s=2 * LOOK_S)
        return answer

    async def order_once(self, request: Any) -> Any:
        """Send the controller a request that must not be sent twice, and return the answer.

        The controller first has to answer a harmless request, which is repeated without end; the
        real one follows at once. Raises BrokerLost if the answer to that does not arrive: the request
        may have been carried out, or may be carried out later. The caller sets the deadline.
        """
        backoff = Backoff(PAUSE_S, LONGEST_PAUSE_S)
        while True:
            controller = (await self.find_topics(())).controller_id
            if (address := self._nodes.get(controller)) is not None:
                try:
                    async with asyncio.timeout(LOOK_S):
                        await self.send(address, [TopicsRequest(())])
                except (BrokerLost, TimeoutError):
                    # next time the metadata names another controller, or a broker that forwards
                    pass
                else:
                    (answer,) = await self.send(address, [request])
                    return answer
            await backoff.rest()

    async def ask_any(
        self, requests: Collection[Any], *, first: Address | None = None, hurry_s: float = HURRY_S
    ) -> list[Any]:
        """Return the answers of the first broker that answers all requests, in the order of the requests. Tries
        without end; the caller sets the deadline. Raises Unsupported, or SourceUnavailable if credentials cannot be
        read.

        `first`: the broker to begin with. After `hurry_s` without an answer the next broker is asked as well, and
        after a failure at once.
        """
        asked: dict[asyncio.Task[list[Any]], Address] = {}
        backoff = Backoff(PAUSE_S, LONGEST_PAUSE_S)
        try:
            while True:
                waiting = [address for address in self._rank(first) if address not in asked.values()]
                for address in waiting:
                    asked[asyncio.create_task(self.send(address, requests))] = address
                    if (answers := await self._await_first(asked, hurry_s)) is not None:
                        return answers
                if not asked:
                    await backoff.rest()
                elif (answers := await self._await_first(asked, hurry_s)) is not None:
                    return answers
        finally:
            await _cancel(asked)

    async def _await_first(self, asked: dict[asyncio.Task[list[Any]], Address], seconds: float) -> list[Any] | None:
        """Wait until a task has ended, at most `seconds`. Return the answers of a task that has ended with answers,
        None if there is none. Removes the tasks that ended without answers from `asked`, and the one whose answers
        are returned. The broker that answered is preferred from then on.
        """
        done, _ = await asyncio.wait(asked, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            address = asked.pop(task)
            try:
                answers = task.result()
            except BrokerLost:
                continue
            self._preferred = address
            return answers
        return None

    def _rank(self, first: Address | None) -> list[Address]:
        """Return all known addresses, each once, in the order in which to ask them: `first` if
        given, the preferred one (it answered last, or `doubt` chose it), the other brokers in
        random order, and then the bootstrap addresses that are not among these.
        """
        if not self._bootstrap:
            self._bootstrap = [(host, port) for host, port, _ in collect_hosts(list_servers(self._kafka))]
        nodes = shuffle([*self._nodes.values()])
        preferred = [address for address in (first, self._preferred) if address is not None]
        return list(dict.fromkeys([*preferred, *nodes, *self._bootstrap]))

    async def ask_each(
        self,
        items: Iterable[T],
        locate: Locate[T],
        ask: Ask[T],
    ) -> None:
        """Ask the responsible broker about each item, all brokers at the same time, until every
        item that `locate` returns has its answer. `ask` keeps the answers. Tries without end; the
        caller sets the deadline.
        """
        pending, is_again = list(items), False
        backoff = Backoff(PAUSE_S, LONGEST_PAUSE_S)
        while pending:
            at: dict[int, list[T]] = {}
            for item, node in (await locate(pending, is_again)).items():
                at.setdefault(node, []).append(item)
            works = [self._ask_at(node, found, locate, ask) for node, found in at.items()]
            pending = [item for left in await run_all(works) for item in left]
            if pending:
                is_again = True
                await backoff.rest()

    async def _ask_at(
        self,
        node: int,
        items: list[T],
        locate: Locate[T],
        ask: Ask[T],
    ) -> list[T]:
        """Ask broker `node` about items. Return those that have to be asked about again: all of them if the broker is
        unknown or failed, or if the cluster says meanwhile that it has another address or is not responsible for each
        of them any more; otherwise none.
        """
        if node not in self._nodes:
            await self.find_topics(())
        if node not in self._nodes:
            return items
        address = self._nodes[node]
        asking = asyncio.create_task(ask(address, items))
        looking: asyncio.Future[Mapping[T, int]] | None = None
        try:
            while not (await asyncio.wait({asking}, timeout=LOOK_S))[0]:
                looking = asyncio.ensure_future(locate(items, True))
                await asyncio.wait({asking, looking}, return_when=asyncio.FIRST_COMPLETED)
                if not asking.done() and (
                    looking.result() != dict.fromkeys(items, node) or self._nodes.get(node) != address
                ):
                    return items
            await asking
        except BrokerLost:
            return items
        finally:
            await _cancel([asking] if looking is None else [asking, looking])
        return []

    async def send(self, address: Address, requests: Iterable[Any]) -> list[Any]:
        """Send requests over one connection to a broker, and return the answers in their order.
        Waits while AT_ONCE connections to it are busy. Raises BrokerLost if the connection cannot be
        opened or breaks, Unsupported, or SourceUnavailable if credentials cannot be read. The caller
        sets the deadline.
        """
        async with self._slots.setdefault(address, asyncio.Semaphore(AT_ONCE)):
            idle = self._idle.setdefault(address, [])
            connection = self._take(idle)
            began, is_usable, is_lost = monotonic(), False, False
            try:
                connection = connection or await self._open(address)
                sent = [connection.send(request) for request in requests]
                answers = [await sent[0]] if len(sent) == 1 else await asyncio.gather(*sent)
                is_usable, self.failure = True, ""
            except Unsupported:  # nothing was sent
                is_usable = True
                raise
            except FAILURES as error:
                is_lost = True
                self.failure = f"{address[0]}:{address[1]}: {describe_failure(error)}"
                raise BrokerLost(self.failure) from error
            except asyncio.CancelledError:
                is_lost = monotonic() - began >= HURRY_S
                raise
            finally:
                # What broke this connection has probably broken the idle ones, and each of them
                # would cost a deadline.
                if is_lost:
                    self._hang_up_idle(address)
                if connection is not None and is_usable and self._idle.get(address) is idle:
                    idle.append(connection)
                elif connection is not None:
                    # a late answer would be taken for the answer to the next request; or `close`
                    # was called meanwhile
                    self._hang_up(connection)
            return answers

    def _take(self, idle: list[AIOKafkaConnection]) -> AIOKafkaConnection | None:
        while idle:
            connection = idle.pop()
            if connection.connected():
                return connection
            self._hang_up(connection)
        return None

    async def _open(self, address: Address) -> AIOKafkaConnection:
        settings = await self._read_settings()
        try:
            return await aiokafka_client.create_conn(*address, max_idle_ms=IDLE_MS, **settings)
        except FAILURES:
            # certificates may have been replaced; these settings serve until the others can be read
            if self._settings is settings and monotonic() - self._read_at >= REREAD_S:
                self._stamp = None
            raise

    async def _read_settings(self) -> dict[str, Any]:
        """Return aiokafka's connection settings. They are read in a thread, since certificates take tens of
        milliseconds, and again when one of their files was replaced, or after a connection could not be opened
        (REREAD_S). Raises SourceUnavailable if they cannot be read and were not read before.
        """
        async with self._reading:
            found = stamp(self._kafka)
            if self._settings and found == self._stamp:
                return self._settings
            try:
                settings = await asyncio.to_thread(for_aiokafka, self._kafka)
            except SourceUnavailable:
                # in the middle of a replacement the former content goes on
                if not self._settings:
                    raise
            else:
                del settings["bootstrap_servers"]
                self._settings, self._read_at, self._stamp = settings, monotonic(), found
            return self._settings

    def _hang_up_idle(self, address: Address) -> None:
        idle = self._idle.get(address, [])
        while idle:
            self._hang_up(idle.pop())

    def _hang_up(self, connection: AIOKafkaConnection) -> None:
        closed = connection.close()
        if not closed.done():
            self._closing.add(closed)
            closed.add_done_callback(self._closing.discard)


async def run_all(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines at the same time and return their results, in the order of `works`. If one
    raises, cancel the rest, wait for their end, and raise its error.
    """
    coroutines = list(works)
    if len(coroutines) == 1:
        return [await coroutines[0]]
    tasks = [asyncio.create_task(work) for work in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await _cancel(tasks)


async def _cancel(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel tasks and wait for their end. Their errors are dropped."""
    ending: list[asyncio.Future[Any]] = []
    for task in tasks:
        if task.cancel():
            ending.append(task)
        elif not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not report it
    if ending:
        await asyncio.gather(*ending, return_exceptions=True)
