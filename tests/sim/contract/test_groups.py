"""Consumer groups: both sides answer alike."""

from __future__ import annotations

from typing import Any

from aiokafka.protocol.admin import DeleteGroupsRequest, ListGroupsRequest
from aiokafka.protocol.commit import OffsetCommitRequest, OffsetFetchRequest
from aiokafka.protocol.group import HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest

from overlay.kafka.protocol import ConsumerGroupDescribeRequest, DescribeGroupsRequest

from .sides import Compare, Connection, Side

RANGE = [("range", b"meta")]


class Member:
    """A member of a group, on a connection of its own."""

    def __init__(self, side: Side, connection: Connection, group: str) -> None:
        self.side, self.connection, self.group = side, connection, group
        self.id = ""
        self.generation = -1

    @classmethod
    async def connect(cls, side: Side, group: str) -> Member:
        return cls(side, await side.connect(), group)

    async def join(
        self, protocols: list[tuple[str, bytes]] = RANGE, *, session_ms: int = 6_000, rebalance_ms: int = 5_000
    ) -> dict[str, Any]:
        """Join, and note nothing: the answer may be awaited later. An id that is required is taken."""
        request = JoinGroupRequest(self.group, session_ms, rebalance_ms, self.id, None, "consumer", protocols)
        found = await self.connection.ask(request)
        self.id = found.member_id or self.id
        if found.error_code == 79:
            again = await self.join(protocols, session_ms=session_ms, rebalance_ms=rebalance_ms)
            return {"first": 79, **again}
        self.generation = found.generation_id
        alias = self.side.alias
        return {
            "code": found.error_code,
            "generation": found.generation_id,
            "protocol": found.group_protocol,
            "leads": found.leader_id == found.member_id,
            "members": sorted((alias("member", id), instance, metadata) for id, instance, metadata in found.members),
        }

    async def sync(self, assignments: dict[str, bytes] | None = None) -> tuple[int, bytes]:
        given = list((assignments or {}).items())
        request = SyncGroupRequest(self.group, self.generation, self.id, None, given)
        found = await self.connection.ask(request)
        return found.error_code, found.member_assignment

    async def beat(self, generation: int | None = None, id: str | None = None) -> int:
        request = HeartbeatRequest(
            self.group, self.generation if generation is None else generation, self.id if id is None else id
        )
        return int((await self.connection.ask(request)).error_code)

    async def leave(self) -> int:
        return int((await self.connection.ask(LeaveGroupRequest(self.group, self.id))).error_code)

    async def commit(
        self, topic: str, offset: int, *, generation: int | None = None, id: str | None = None
    ) -> list[Any]:
        request = OffsetCommitRequest(
            self.group,
            self.generation if generation is None else generation,
            self.id if id is None else id,
            -1,
            [(topic, [(0, offset, "m")])],
        )
        found = await self.connection.ask(request)
        return [list(map(tuple, codes)) for _, codes in found.topics]


async def note_group(side: Side, what: str, group: str) -> None:
    found = await side.main.ask(DescribeGroupsRequest([group]))
    code, _, state, kind, protocol, members, operations, _ = found.groups[0]
    shown = sorted((side.alias("member", one[0]), *one[1:6]) for one in members)
    side.note(what, (code, state, kind, protocol, shown, operations))


async def note_offsets(side: Side, what: str, group: str, topics: Any) -> None:
    found = await side.main.ask(OffsetFetchRequest(group, topics))
    shown = sorted((topic, sorted(map(tuple, one))) for topic, one in found.topics)
    side.note(what, (found.error_code, shown))


async def test_one_member_and_then_a_second(compare: Compare) -> None:
    async def script(side: Side) -> None:
        group = side.name("g")
        topic = await side.make_topic("t")
        side.note("coordinator", await side.find_coordinator(group, 0))
        await note_group(side, "not there", group)
        one, two = await Member.connect(side, group), await Member.connect(side, group)
        side.note("join", await one.join())
        await note_group(side, "joined", group)
        side.note("commit", await one.commit(topic, 3))
        side.note("beat", await one.beat())
        side.note("sync", await one.sync({one.id: b"all"}))
        await note_group(side, "stable", group)
        side.note("beat", await one.beat())
        side.note("old generation", await one.beat(one.generation - 1))
        side.note("new generation", await one.beat(one.generation + 1))
        side.note("unknown", await one.beat(id="unknown"))
        side.note("commit", await one.commit(topic, 4))
        joining = await side.start(two.join())
        await note_group(side, "preparing", group)
        side.note("beat", await one.beat())
        side.note("commit", await one.commit(topic, 5))
        side.note("sync", await one.sync({one.id: b"all"}))
        side.note("join", await one.join())
        side.note("second", await joining)
        waiting = await side.start(two.sync())
        await note_group(side, "completing", group)
        side.note("waits", waiting.done())
        side.note("commit", await one.commit(topic, 6))
        side.note("sync", await one.sync({one.id: b"left", two.id: b"right"}))
        side.note("second", await waiting)
        await note_group(side, "stable", group)
        side.note("leave", await one.leave())
        side.note("leave again", await one.leave())
        side.note("beat", await two.beat())
        side.note("join", await two.join())
        side.note("sync", await two.sync({two.id: b"rest"}))
        side.note("leave", await two.leave())
        await note_group(side, "empty", group)
        side.note("beat", await two.beat())
        await note_offsets(side, "offsets", group, [(topic, [0, 1]), (side.name("none"), [0])])
        await note_offsets(side, "all offsets", group, None)

    await compare(script)


async def test_a_member_that_joins_again(compare: Compare) -> None:
    async def script(side: Side) -> None:
        group = side.name("g")
        await side.find_coordinator(group, 0)
        one, two = await Member.connect(side, group), await Member.connect(side, group)
        side.note("join", await one.join())
        side.note("join again", await one.join())
        side.note("sync", await one.sync({one.id: b"1"}))
        side.note("the leader again", await one.join())
        side.note("sync", await one.sync({one.id: b"2"}))
        side.note("sync again", await one.sync())
        joining = await side.start(two.join())
        side.note("join", await one.join())
        side.note("second", await joining)
        waiting = await side.start(two.sync())
        side.note("sync", await one.sync({one.id: b"3", two.id: b"4"}))
        side.note("second", await waiting)
        side.note("a follower again", await two.join())
        side.note("its sync", await two.sync())
        joining = await side.start(two.join([("range", b"other")]))
        side.note("beat", await one.beat())
        side.note("join", await one.join([("range", b"meta"), ("sticky", b"x")]))
        side.note("changed", await joining)

    await compare(script)


async def test_joins_that_are_refused(compare: Compare) -> None:
    async def script(side: Side) -> None:
        group = side.name("g")
        await side.find_coordinator(group, 0)
        one, two = await Member.connect(side, group), await Member.connect(side, group)
        for session_ms in (0, 5_999, 1_800_001):
            side.note(f"session {session_ms}", await one.join(session_ms=session_ms))
        one.id = "unknown"
        side.note("unknown", await one.join())
        one.id = ""
        side.note("no protocols", await one.join([]))
        side.note("join", await one.join())
        side.note("other protocols", await two.join([("sticky", b"")]))
        nameless = await Member.connect(side, "")
        side.note("no name", await nameless.join())
        side.note("no name", await nameless.beat())
        side.note("unknown group", await (await Member.connect(side, side.name("other"))).beat(0, "x"))
        side.note("unknown group", await (await Member.connect(side, side.name("other"))).leave())

    await compare(script)


async def test_a_member_that_is_not_heard_of(compare: Compare) -> None:
    async def script(side: Side) -> None:
        group = side.name("g")
        await side.find_coordinator(group, 0)
        one, two = await Member.connect(side, group), await Member.connect(side, group)
        await one.join()
        joining = await side.start(two.join(rebalance_ms=1_500))
        await one.join(rebalance_ms=1_500)
        await joining
        waiting = await side.start(two.sync())
        await one.sync({one.id: b"1", two.id: b"2"})
        await waiting
        # the first stays away from the next rebalance
        three = await Member.connect(side, group)
        coming = await side.start(three.join(rebalance_ms=1_500))
        side.note("beat", await one.beat())
        joined = [await two.join(rebalance_ms=1_500), await coming]
        # which of them leads is the broker's choice
        side.note("leaders", sorted(one.pop("leads") for one in joined))
        side.note("members", sorted(one.pop("members") for one in joined))
        side.note("joined", [one.pop("first", 0) for one in joined])
        side.note("joined", joined)
        side.note("beat", await one.beat())
        assignments = {two.id: b"2", three.id: b"3"}
        syncs = [await side.start(one.sync(assignments)) for one in (two, three)]
        side.note("syncs", [await one for one in syncs])
        # the second is not heard of within its session
        side.note("beat", await side.until(three.beat, bool, 10.0))
        side.note("alone", await three.join())
        side.note("gone", await two.beat())

    await compare(script)


async def test_offsets_without_members(compare: Compare) -> None:
    async def script(side: Side) -> None:
        group = side.name("g")
        topic = await side.make_topic("t")
        await side.find_coordinator(group, 0)
        one = await Member.connect(side, group)
        await note_offsets(side, "none", group, None)
        side.note("commit", await one.commit(topic, 7))
        await note_group(side, "made", group)
        await note_offsets(side, "one", group, None)
        side.note("missing topic", await one.commit(side.name("missing"), 7))
        side.note("generation", await one.commit(topic, 8, generation=3, id="x"))
        await one.join()
        await one.sync({one.id: b"1"})
        side.note("without one", await one.commit(topic, 9, generation=-1, id=""))
        side.note("other member", await one.commit(topic, 9, id="x"))
        side.note("old generation", await one.commit(topic, 9, generation=0))
        side.note("delete", [tuple(found) for found in (await side.main.ask(DeleteGroupsRequest([group]))).results])
        await one.leave()
        await note_offsets(side, "kept", group, None)
        listed = await side.main.ask(ListGroupsRequest())
        side.note("listed", [tuple(found) for found in listed.groups if found[0] == group])
        found = await side.main.ask(ConsumerGroupDescribeRequest([group, side.name("none")]))
        side.note("described", sorted((one[2], one[0], *one[3:7], one[8]) for one in found.groups))
        names = [group, side.name("none")]
        side.note("delete", sorted(map(tuple, (await side.main.ask(DeleteGroupsRequest(names))).results)))
        await note_offsets(side, "deleted", group, None)
        await note_group(side, "deleted", group)

    await compare(script)
