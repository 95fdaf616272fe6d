"""Consumer groups of the classic protocol: joining, assignments, heartbeats.

A group goes from EMPTY or STABLE to PREPARING when its members have to join again, to COMPLETING when all of them have (or when
the rebalance timeout is over and the others are removed), and to STABLE with the leader's assignment. One object stands for
the coordinators of all groups, as with transactions. Committed offsets are in group_offsets.py.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

from .codes import Code
from .group_offsets import Offsets
from .session import Answer
from .timers import Timer

if TYPE_CHECKING:
    from .cluster import Cluster

GROUP = 0


class State(Enum):
    """States of a group, by the names that DescribeGroups answers with."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class Member:
    """A member of a group. `joining` and `syncing` are the requests that wait for the others."""

    __slots__ = (
        "assignment",
        "client_id",
        "id",
        "joining",
        "protocols",
        "rebalance_s",
        "session_s",
        "syncing",
        "timer",
    )

    def __init__(self, id: str, client_id: str) -> None:
        self.id = id
        self.client_id = client_id
        self.protocols: list[tuple[str, bytes]] = []
        self.session_s = self.rebalance_s = 0.0
        self.assignment = b""
        self.joining: Answer | None = None
        self.syncing: Answer | None = None
        self.timer: Timer | None = None

    def metadata(self, protocol: str) -> bytes:
        return next((found for name, found in self.protocols if name == protocol), b"")


class Group:
    """A group as it stands. `expected` are ids that were given out and have not joined with yet."""

    __slots__ = (
        "expected",
        "generation",
        "leader",
        "members",
        "name",
        "offsets",
        "protocol",
        "protocol_type",
        "rebalance",
        "state",
        "syncs",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = State.EMPTY
        self.generation = 0
        self.members: dict[str, Member] = {}
        self.expected: dict[str, Timer] = {}
        self.leader = ""
        self.protocol = ""
        self.protocol_type = ""
        self.offsets = Offsets()
        self.rebalance: Timer | None = None
        self.syncs: Timer | None = None

    def check(self, member_id: str, generation: int) -> Code:
        """Return whether a request comes from a member of the current generation."""
        if member_id not in self.members:
            return Code.UNKNOWN_MEMBER_ID
        return Code.NONE if generation == self.generation else Code.ILLEGAL_GENERATION


class Groups:
    """The groups of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.known: dict[str, Group] = {}
        self._made = 0

    def _refuse(self, answer: Answer, name: str) -> Code:
        if not name:
            return Code.INVALID_GROUP_ID
        return self._cluster.refuse_coordinator(answer.session.broker, name, 0)

    def get(self, name: str) -> Group:
        """Return a group, which is made if it is not there."""
        group = self.known.get(name)
        if group is None:
            group = self.known[name] = Group(name)
        return group

    def forget_empty(self) -> None:
        """Forget the groups that have neither members nor offsets, as a coordinator does every ten minutes."""
        for name, group in list(self.known.items()):
            if (
                group.state is State.EMPTY
                and not group.expected
                and not (group.offsets.committed or group.offsets.pending)
            ):
                del self.known[name]

    # joining

    def join(self, answer: Answer) -> None:
        """JoinGroup of version 0 to 5."""
        code, member_id = self._join(answer)
        if code:
            _give_join(answer, code, -1, "", "", member_id, [])

    def _join(self, answer: Answer) -> tuple[Code, str]:
        request = answer.request
        member_id: str = request.member_id
        settings = self._cluster.settings
        if code := self._refuse(answer, request.group):
            return code, member_id
        if not settings.min_session_timeout_ms <= request.session_timeout <= settings.max_session_timeout_ms:
            return Code.INVALID_SESSION_TIMEOUT, member_id
        protocols = [(name, bytes(metadata)) for name, metadata in request.group_protocols]
        group = self.known.get(request.group)
        if group is None:
            if member_id:
                return Code.UNKNOWN_MEMBER_ID, member_id
            group = self.get(request.group)
        if not protocols or not request.protocol_type or not _is_compatible(group, request.protocol_type, protocols):
            return Code.INCONSISTENT_GROUP_PROTOCOL, member_id
        if not member_id:
            self._made += 1
            member_id = f"{answer.session.client_id}-{self._made:08d}-0000-0000-0000-000000000000"
            if request.API_VERSION >= 4:
                self._expect(group, member_id, request.session_timeout / 1000)
                return Code.MEMBER_ID_REQUIRED, member_id
            member = Member(member_id, answer.session.client_id)
        elif member_id in group.expected:
            group.expected.pop(member_id).cancel()
            member = Member(member_id, answer.session.client_id)
        elif member_id in group.members:
            member = group.members[member_id]
        else:
            return Code.UNKNOWN_MEMBER_ID, member_id
        self._take(group, member, protocols, answer)
        return Code.NONE, member_id

    def _expect(self, group: Group, member_id: str, session_s: float) -> None:
        def forget() -> None:
            group.expected.pop(member_id, None)
            self._try_complete(group)

        group.expected[member_id] = self._cluster.timers.at(self._cluster.now + session_s, forget)

    def _take(self, group: Group, member: Member, protocols: list[tuple[str, bytes]], answer: Answer) -> None:
        """Let a member join that is allowed to."""
        request = answer.request
        is_known = member.id in group.members
        is_changed = not is_known or member.protocols != protocols
        if is_known and not is_changed:
            if group.state is State.COMPLETING:
                # it has not heard the answer to its last request
                self._answer_join(group, member, answer)
                return
            if group.state is State.STABLE and member.id != group.leader:
                self._answer_join(group, member, answer)
                return
        if member.joining is not None and member.joining is not answer:
            _give_join(member.joining, Code.UNKNOWN_MEMBER_ID, -1, "", "", member.id, [])
        member.protocols = protocols
        member.session_s = request.session_timeout / 1000
        member.rebalance_s = getattr(request, "rebalance_timeout", request.session_timeout) / 1000
        if not is_known:
            if not group.members:
                group.protocol_type = request.protocol_type
                group.leader = member.id
            group.members[member.id] = member
        member.joining = answer
        answer.session.held.add(answer)
        self._watch(group, member)
        if group.state is State.PREPARING:
            self._try_complete(group)
        else:
            self._prepare(group)

    def _prepare(self, group: Group) -> None:
        """Begin a rebalance: every member has to join again."""
        if group.state is State.COMPLETING:
            self._end_syncs(group, Code.REBALANCE_IN_PROGRESS)
            for member in group.members.values():
                member.assignment = b""
        is_first = group.state is State.EMPTY
        group.state = State.PREPARING
        delay_s = self._cluster.settings.initial_rebalance_delay_s if is_first else 0.0
        if delay_s:
            limit_s = min(delay_s, max(member.rebalance_s for member in group.members.values()))
            group.rebalance = self._cluster.timers.at(self._cluster.now + limit_s, lambda: self._complete(group))
            return
        limit_s = max((member.rebalance_s for member in group.members.values()), default=0.0)
        group.rebalance = self._cluster.timers.at(self._cluster.now + limit_s, lambda: self._complete(group))
        self._try_complete(group)

    def _try_complete(self, group: Group) -> None:
        if (
            group.state is State.PREPARING
            and not group.expected
            and all(member.joining is not None for member in group.members.values())
        ):
            is_waiting_first = group.generation == 0 and self._cluster.settings.initial_rebalance_delay_s
            if not (is_waiting_first and group.rebalance is not None and group.rebalance.act is not None):
                self._complete(group)

    def _complete(self, group: Group) -> None:
        """Begin the next generation with the members that have joined."""
        if group.state is not State.PREPARING:
            return
        if group.rebalance is not None:
            group.rebalance.cancel()
            group.rebalance = None
        for member in [one for one in group.members.values() if one.joining is None]:
            self._remove(group, member)
        group.generation += 1
        if not group.members:
            group.state = State.EMPTY
            group.protocol = ""
            return
        group.state = State.COMPLETING
        group.protocol = _vote(group)
        for member in list(group.members.values()):
            joining, member.joining = member.joining, None
            if joining is not None:
                self._answer_join(group, member, joining)
            self._watch(group, member)
        limit_s = max(member.rebalance_s for member in group.members.values())
        generation = group.generation

        def end_syncs() -> None:
            if group.state is State.COMPLETING and group.generation == generation:
                late = [one for one in group.members.values() if one.syncing is None]
                for member in late:
                    self._remove(group, member)
                if late:
                    self._prepare(group)

        group.syncs = self._cluster.timers.at(self._cluster.now + limit_s, end_syncs)

    def _answer_join(self, group: Group, member: Member, answer: Answer) -> None:
        members: list[Any] = []
        if member.id == group.leader:
            members = [(one.id, None, one.metadata(group.protocol)) for one in group.members.values()]
        _give_join(answer, Code.NONE, group.generation, group.protocol, group.leader, member.id, members)

    # assignments

    def sync(self, answer: Answer) -> None:
        """SyncGroup of version 0 to 3."""
        request = answer.request
        code = self._refuse(answer, request.group)
        group = self.known.get(request.group)
        if not code:
            code = Code.UNKNOWN_MEMBER_ID if group is None else group.check(request.member_id, request.generation_id)
        if code or group is None:
            _give_sync(answer, code, b"")
            return
        member = group.members[request.member_id]
        if group.state is State.PREPARING:
            _give_sync(answer, Code.REBALANCE_IN_PROGRESS, b"")
        elif group.state is State.STABLE:
            _give_sync(answer, Code.NONE, member.assignment)
            self._watch(group, member)
        else:
            member.syncing = answer
            answer.session.held.add(answer)
            self._watch(group, member)
            if member.id == group.leader:
                self._assign(group, {id: bytes(found) for id, found in request.group_assignment})

    def _assign(self, group: Group, assignments: dict[str, bytes]) -> None:
        group.state = State.STABLE
        if group.syncs is not None:
            group.syncs.cancel()
        for member in group.members.values():
            member.assignment = assignments.get(member.id, b"")
        self._end_syncs(group, Code.NONE)

    def _end_syncs(self, group: Group, code: Code) -> None:
        for member in group.members.values():
            syncing, member.syncing = member.syncing, None
            if syncing is not None:
                _give_sync(syncing, code, b"" if code else member.assignment)
                self._watch(group, member)

    # staying and leaving

    def heartbeat(self, answer: Answer) -> None:
        """Heartbeat of version 0 and 1."""
        request = answer.request
        code = self._refuse(answer, request.group)
        group = self.known.get(request.group)
        if not code:
            code = Code.UNKNOWN_MEMBER_ID if group is None else group.check(request.member_id, request.generation_id)
        if not code and group is not None:
            self._watch(group, group.members[request.member_id])
            if group.state is State.PREPARING:
                code = Code.REBALANCE_IN_PROGRESS
        _give_code(answer, code)

    def leave(self, answer: Answer) -> None:
        """LeaveGroup of version 0 and 1."""
        request = answer.request
        code = self._refuse(answer, request.group)
        group = self.known.get(request.group)
        if not code:
            if group is not None and request.member_id in group.expected:
                group.expected.pop(request.member_id).cancel()
                self._try_complete(group)
            elif group is not None and request.member_id in group.members:
                self._drop(group, group.members[request.member_id])
            else:
                code = Code.UNKNOWN_MEMBER_ID
        _give_code(answer, code)

    def _watch(self, group: Group, member: Member) -> None:
        """Expect the member's next heartbeat within its session timeout."""
        if member.timer is not None:
            member.timer.cancel()

        def expire() -> None:
            # a member whose request is held has said nothing, and is there; without a coordinator no silence counts
            is_coordinated = self._cluster.coordinator(group.name, GROUP) in self._cluster.up
            if member.joining is None and member.syncing is None and is_coordinated:
                self._drop(group, member)
            else:
                self._watch(group, member)

        member.timer = self._cluster.timers.at(self._cluster.now + member.session_s, expire)

    def _drop(self, group: Group, member: Member) -> None:
        """Go on without a member that left, or was not heard of."""
        self._remove(group, member)
        if group.state in (State.STABLE, State.COMPLETING):
            self._prepare(group)
        else:
            self._try_complete(group)

    def _remove(self, group: Group, member: Member) -> None:
        group.members.pop(member.id, None)
        if member.timer is not None:
            member.timer.cancel()
        if group.leader == member.id:
            group.leader = next(iter(group.members), "")
        for held in (member.joining, member.syncing):
            if held is not None and held is member.joining:
                _give_join(held, Code.UNKNOWN_MEMBER_ID, -1, "", "", member.id, [])
            elif held is not None:
                _give_sync(held, Code.UNKNOWN_MEMBER_ID, b"")
        member.joining = member.syncing = None

    def move(self, name: str) -> None:
        """The coordinator of a group is another broker now: requests that wait are refused."""
        group = self.known.get(name)
        if group is None:
            return
        for member in group.members.values():
            joining, member.joining = member.joining, None
            syncing, member.syncing = member.syncing, None
            if joining is not None:
                _give_join(joining, Code.NOT_COORDINATOR, -1, "", "", member.id, [])
            if syncing is not None:
                _give_sync(syncing, Code.NOT_COORDINATOR, b"")
            if group.state is not State.EMPTY:
                self._watch(group, member)

    # offsets in transactions

    def end_transaction(self, name: str, producer: int, *, is_commit: bool) -> None:
        """Let a transaction's offsets become the group's, or be forgotten."""
        if name in self.known:
            self.known[name].offsets.end_transaction(producer, is_commit=is_commit)


def _is_compatible(group: Group, kind: str, protocols: list[tuple[str, bytes]]) -> bool:
    """Return whether the group's members and a new one have a protocol in common."""
    if not group.members:
        return True
    if group.protocol_type != kind:
        return False
    names = {name for name, _ in protocols}
    for member in group.members.values():
        names &= {name for name, _ in member.protocols}
    return bool(names)


def _vote(group: Group) -> str:
    """Return the protocol that most members prefer, among those that all of them know."""
    common: set[str] | None = None
    for member in group.members.values():
        names = {name for name, _ in member.protocols}
        common = names if common is None else common & names
    votes: dict[str, int] = {}
    for member in group.members.values():
        choice = next(name for name, _ in member.protocols if name in (common or ()))
        votes[choice] = votes.get(choice, 0) + 1
    return max(votes, key=votes.__getitem__)


def _give_join(
    answer: Answer, code: Code, generation: int, protocol: str, leader: str, member_id: str, members: list[Any]
) -> None:
    version = answer.request.API_VERSION
    if version < 5:
        members = [(id, metadata) for id, _, metadata in members]
    fields = (int(code), generation, protocol, leader, member_id, members)
    answer.give(*fields) if version < 2 else answer.give(0, *fields)


def _give_sync(answer: Answer, code: Code, assignment: bytes) -> None:
    if answer.request.API_VERSION < 1:
        answer.give(int(code), assignment)
    else:
        answer.give(0, int(code), assignment)


def _give_code(answer: Answer, code: Code) -> None:
    if answer.request.API_VERSION < 1:
        answer.give(int(code))
    else:
        answer.give(0, int(code))
