"""Requests about consumer groups, each sent to the group's coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from aiokafka.protocol.commit import OffsetFetchRequest
from aiokafka.protocol.coordination import FindCoordinatorRequest

from .brokers import Address, Brokers
from .protocol import Code, ConsumerGroupDescribeRequest, DescribeGroupsRequest, Unsupported, name_operations

T = TypeVar("T")

GROUP = 0
"""Key type "group" in requests for coordinators."""
KNOWN = 10_000
"""Most coordinators that are remembered."""
PART = 500
"""Groups per request. aiokafka decodes a response in one go and blocks the event loop meanwhile."""
_MOVED = (Code.NOT_COORDINATOR, Code.COORDINATOR_NOT_AVAILABLE)


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a group: the name that its client gives itself, and the host of that client."""

    client: str
    host: str


@dataclass(frozen=True, slots=True)
class Group:
    """The description of a group. `operations`: what this user may do with it, None if that was not
    asked.
    """

    members: tuple[GroupMember, ...] = ()
    operations: frozenset[str] | None = None
    is_known: bool = True
    """False if Kafka has no such group."""


@dataclass(slots=True)
class GroupAnswers(Generic[T]):
    """Answers by group, and the error codes of groups without an answer."""

    answers: dict[str, T] = field(default_factory=dict)
    codes: dict[str, int] = field(default_factory=dict)

    def note(self, group: str, code: int, answer: T) -> None:
        """Keep the answer for a group, or its error code if that is not 0. Either one replaces what
        was kept of the group before.
        """
        if code:
            self.fail(group, code)
        else:
            self.codes.pop(group, None)
            self.answers[group] = answer

    def fail(self, group: str, code: int) -> None:
        """Keep the error code of a group and drop its answer."""
        self.answers.pop(group, None)
        self.codes[group] = code


class Groups:
    """Requests to group coordinators, with a cache of which broker coordinates which group."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._coordinators: dict[str, int] = {}

    async def describe(self, groups: Collection[str], found: GroupAnswers[Group], *, operations: bool = False) -> None:
        """Ask for the members of groups, and put a description or an error code of each into `found`.
        A group that Kafka does not know gets a description with `is_known` False. Groups with an
        answer in `found` are not asked for again.
        """

        async def ask(address: Address, names: list[str]) -> None:
            (answer,) = await self._brokers.send(address, [DescribeGroupsRequest(names, operations=operations)])
            dead: dict[str, Group] = {}
            for code, name, state, _, _, members, bits, _ in answer.groups:
                allowed = name_operations(bits) if operations and not code else None
                if not code and state == DescribeGroupsRequest.DEAD:
                    dead[name] = Group(operations=allowed, is_known=False)
                else:
                    found.note(name, code, Group(tuple(GroupMember(m[2], m[3]) for m in members), allowed))
            if dead:
                await self._describe_others(address, dead, found, operations)

        await self._ask(groups, found, ask)

    async def _describe_others(
        self, address: Address, dead: Mapping[str, Group], found: GroupAnswers[Group], operations: bool
    ) -> None:
        """Ask again about groups that DescribeGroups reported as dead: most of them do not exist, the
        others use the newer consumer protocol. Put the answers into `found`.

        `dead`: by name, the description to use if the group does not exist. Only this answer
        decides that, so none of these groups may have an answer before.
        """
        request = ConsumerGroupDescribeRequest(dead, operations=operations)
        try:
            (answer,) = await self._brokers.send(address, [request])
        except Unsupported:  # before Kafka 4.0 all groups are classic ones
            for name, group in dead.items():
                found.note(name, Code.NONE, group)
            return
        for code, _, name, _, _, _, _, members, bits, _ in answer.groups:
            if code in (Code.GROUP_ID_NOT_FOUND, Code.UNSUPPORTED_VERSION):
                found.note(name, Code.NONE, dead[name])
            else:
                allowed = name_operations(bits) if operations else None
                found.note(name, code, Group(tuple(GroupMember(m[4], m[5]) for m in members), allowed))

    async def find_committed(self, groups: Collection[str], found: GroupAnswers[dict[str, dict[int, int]]]) -> None:
        """Ask for the committed offsets of groups. Put them, by topic and partition, or an error
        code for each group into `found`. A group that Kafka does not know gets an empty answer, and
        a partition without a committed offset is left out.
        """

        async def ask(address: Address, names: list[str]) -> None:
            answers = await self._brokers.send(address, [OffsetFetchRequest(name, None) for name in names])
            for name, answer in zip(names, answers, strict=True):
                code = Code.NONE if answer.error_code == Code.GROUP_ID_NOT_FOUND else answer.error_code
                found.note(name, code, _collect(answer.topics))

        await self._ask(groups, found, ask)

    async def _ask(self, groups: Collection[str], found: GroupAnswers[Any], ask: Any) -> None:
        async def locate(names: Collection[str], is_again: bool) -> dict[str, int]:
            return await self._locate(names, found, is_again)

        async def ask_parts(address: Address, names: list[str]) -> None:
            # After a broken connection some groups already have their answer.
            for part in _cut([name for name in names if name not in found.answers]):
                await ask(address, part)
                await asyncio.sleep(0)

        await self._brokers.ask_each(groups, locate, ask_parts)
        for group in groups:
            if group not in found.answers and group not in found.codes:
                found.codes[group] = Code.UNKNOWN_SERVER_ERROR
        for group, code in found.codes.items():
            if code in _MOVED:
                self._coordinators.pop(group, None)

    async def _locate(self, groups: Collection[str], found: GroupAnswers[Any], is_again: bool) -> dict[str, int]:
        """Return the node id of each group's coordinator, by group. Groups without a coordinator are
        left out, and `found` receives their error codes. `is_again`: ask Kafka also for coordinators
        that are in the cache.
        """
        while len(self._coordinators) > KNOWN:
            del self._coordinators[next(iter(self._coordinators))]
        known = {} if is_again else self._coordinators
        at = {group: known[group] for group in groups if group in known}
        for part in _cut([group for group in groups if group not in at]):
            answers = await self._brokers.ask_any([FindCoordinatorRequest(group, GROUP) for group in part])
            for group, answer in zip(part, answers, strict=True):
                self._coordinators.pop(group, None)
                if answer.error_code:
                    found.fail(group, answer.error_code)
                else:
                    self._brokers.learn(answer.coordinator_id, (answer.host, answer.port))
                    at[group] = self._coordinators[group] = answer.coordinator_id
        return at


def _cut(groups: Sequence[str]) -> Iterator[list[str]]:
    return (list(groups[at : at + PART]) for at in range(0, len(groups), PART))


def _collect(topics: Iterable[Any]) -> dict[str, dict[int, int]]:
    by_topic: dict[str, dict[int, int]] = {}
    for topic, partitions in topics:
        for partition, offset, *_ in partitions:
            if offset >= 0:
                by_topic.setdefault(topic, {})[partition] = offset
    return by_topic
