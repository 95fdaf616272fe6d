"""Questions about consumer groups, each to the group's coordinator."""

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
"""The type of a group in requests for coordinators."""
KNOWN = 10_000
"""Coordinators that are remembered at once."""
PART = 500
"""Groups that a broker is asked about at once: aiokafka decodes an answer in one go, and nothing else runs meanwhile."""
_MOVED = (Code.NOT_COORDINATOR, Code.COORDINATOR_NOT_AVAILABLE)


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a group, as its client names itself, and where that client runs."""

    client: str
    host: str


@dataclass(frozen=True, slots=True)
class Group:
    """A group as it stands. `operations`: what this user may do with it, None if that was not asked."""

    members: tuple[Member, ...] = ()
    operations: frozenset[str] | None = None
    is_known: bool = True
    """False if Kafka has no such group."""


@dataclass(slots=True)
class Found(Generic[T]):
    """Answers by group, and error codes of groups without one."""

    answers: dict[str, T] = field(default_factory=dict)
    codes: dict[str, int] = field(default_factory=dict)

    def note(self, group: str, code: int, answer: T) -> None:
        """Keep an answer, or the code that there is instead of it."""
        if code:
            self.fail(group, code)
        else:
            self.codes.pop(group, None)
            self.answers[group] = answer

    def fail(self, group: str, code: int) -> None:
        """Keep a code, and no answer any more."""
        self.answers.pop(group, None)
        self.codes[group] = code


class Groups:
    """The coordinators of groups, and what they are asked."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._coordinators: dict[str, int] = {}

    async def describe(self, groups: Collection[str], found: Found[Group], *, operations: bool = False) -> None:
        """Find the members of groups."""

        async def ask(address: Address, names: list[str]) -> None:
            (answer,) = await self._brokers.send(address, [DescribeGroupsRequest(names, operations=operations)])
            dead: dict[str, Group] = {}
            for code, name, state, _, _, members, bits, _ in answer.groups:
                allowed = name_operations(bits) if operations and not code else None
                if not code and state == DescribeGroupsRequest.DEAD:
                    dead[name] = Group(operations=allowed, is_known=False)
                else:
                    found.note(name, code, Group(tuple(Member(m[2], m[3]) for m in members), allowed))
            if dead:
                await self._describe_others(address, dead, found, operations)

        await self._ask(groups, found, ask)

    async def _describe_others(
        self, address: Address, dead: Mapping[str, Group], found: Found[Group], operations: bool
    ) -> None:
        """Find the members of groups that are no classic ones; most of them are not there at all.

        Only this answer makes a `dead` group one without members, so none of them has an answer before.
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
                found.note(name, code, Group(tuple(Member(m[4], m[5]) for m in members), allowed))

    async def find_committed(self, groups: Collection[str], found: Found[dict[str, dict[int, int]]]) -> None:
        """Find the committed offsets of groups, by topic and partition."""

        async def ask(address: Address, names: list[str]) -> None:
            answers = await self._brokers.send(address, [OffsetFetchRequest(name, None) for name in names])
            for name, answer in zip(names, answers, strict=True):
                code = Code.NONE if answer.error_code == Code.GROUP_ID_NOT_FOUND else answer.error_code
                found.note(name, code, _collect(answer.topics))

        await self._ask(groups, found, ask)

    async def _ask(self, groups: Collection[str], found: Found[Any], ask: Any) -> None:
        async def locate(names: Collection[str], is_again: bool) -> dict[str, int]:
            return await self._locate(names, found, is_again)

        async def ask_parts(address: Address, names: list[str]) -> None:
            # some have an answer already if the connection broke after it
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

    async def _locate(self, groups: Collection[str], found: Found[Any], is_again: bool) -> dict[str, int]:
        """Return the coordinator of each group; `found` takes the code, for groups without one."""
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
