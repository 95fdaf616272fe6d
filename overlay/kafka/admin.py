"""Admin requests to Kafka, sent over aiokafka's connections.

confluent-kafka's admin client must not be used for groups. When the connection to a coordinator
breaks under such a request, librdkafka may end the process (its issues 3663 and 4605).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any

from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.admin import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
)

from overlay.clock import monotonic
from overlay.errors import CredentialsRefused, OverlayError, SourceUnavailable
from overlay.waits import Backoff

from .broker_facts import BrokerFacts, describe_brokers
from .brokers import Address, BrokerLost, Brokers
from .connection import open_client
from .groups import Group, GroupAnswers, Groups
from .properties import Properties
from .protocol import (
    Code,
    IncrementalAlterConfigsRequest,
    ListOffsetsRequest,
    Unsupported,
    describe_code,
    name_operations,
)
from .topics import NewTopic, OffsetSpec, Replicas, TopicFacts, count_replicas, new_topic

__all__ = ["Admin", "NewTopic", "OffsetSpec", "Replicas", "TopicFacts", "Unled", "connect", "new_topic"]

DEADLINE_S = 15.0
LEADER_S = 5.0
PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0
TOPIC = 2
"""Resource type "topic" in requests about configurations."""

# Kafka has not decided about the request yet: it may be sent again.
_PASSING = (Code.REQUEST_TIMED_OUT, Code.NOT_CONTROLLER)
_REFUSED = (Code.TOPIC_AUTHORIZATION_FAILED, Code.CLUSTER_AUTHORIZATION_FAILED, Code.GROUP_AUTHORIZATION_FAILED)
_UNLED = (
    Code.NOT_LEADER_OR_FOLLOWER,
    Code.LEADER_NOT_AVAILABLE,
    # right after an election the leader may not know yet which offsets are committed
    Code.OFFSET_NOT_AVAILABLE,
    # The client's metadata is older than the last election, or the broker that was asked has not
    # heard of that election yet.
    Code.FENCED_LEADER_EPOCH,
    Code.UNKNOWN_LEADER_EPOCH,
    # Groups are kept in partitions too, and the first request about one makes Kafka create their
    # topic.
    Code.COORDINATOR_NOT_AVAILABLE,
    Code.COORDINATOR_LOAD_IN_PROGRESS,
    Code.NOT_COORDINATOR,
)


class Admin:
    """A client for admin requests. Each request raises SourceUnavailable if Kafka does not answer
    within DEADLINE_S. If Kafka answers with an error, it raises CredentialsRefused if this user
    lacks a right, otherwise SourceUnavailable (also for a topic that does not exist), unless the
    method says something else.

    The first request opens connections in the running event loop. `close` or the end of `async
    with` closes them.
    """

    def __init__(self, kafka: Properties) -> None:
        self._brokers = Brokers(kafka)
        self._groups = Groups(self._brokers)
        self.made: dict[str, str] = {}
        """Kafka's ids of the topics that this object has created, by name, as far as Kafka said so."""

    async def __aenter__(self) -> Admin:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; one that is in use is closed once it is free, which is not waited for. A later
        request opens new ones.
        """
        await self._brokers.close()

    @asynccontextmanager
    async def _in_time(self, what: str) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(DEADLINE_S):
                yield
        except TimeoutError as error:
            reason = f": {self._brokers.failure}" if self._brokers.failure else ""
            raise SourceUnavailable(f"{what}: Kafka did not answer within {DEADLINE_S:g} s{reason}") from error
        except Unsupported as error:
            raise SourceUnavailable(
                f"{what}: the broker does not know a request that the overlay needs; see docs/your-own-kafka.md: {error}"
            ) from error

    async def find_cluster(self) -> str:
        """Return the id that Kafka gave the cluster when it was created."""
        async with self._in_time("the cluster"):
            return str((await self._brokers.find_topics(())).cluster_id)

    async def describe_brokers(self) -> list[BrokerFacts]:
        """Return what each broker of the cluster says of itself, in the order of node ids. One that
        does not answer within 5 s has a `failure`.
        """
        async with self._in_time("the brokers"):
            return await describe_brokers(self._brokers)

    async def list_topics(self, start: str) -> list[str]:
        """Return the names of all topics that begin with `start` and that this user may see, sorted."""
        async with self._in_time(f"topics {start}*"):
            found = (await self._brokers.find_topics(None)).topics
        return sorted(name for _, name, *_ in found if name.startswith(start))

    async def find_topics(
        self, names: Iterable[str], *, with_config: bool = True, denied: dict[str, str] | None = None
    ) -> dict[str, TopicFacts]:
        """Return a description of each named topic, by name. Topics that do not exist are left out.

        `with_config`: also read the configurations; that of a topic is empty if this user may not read it. `denied`:
        receives name and reason of each topic that this user may not describe, which the result leaves out. Without
        it, the first such topic raises CredentialsRefused.
        """
        wanted = sorted(set(names))
        if not wanted:
            return {}
        async with self._in_time(f"topics {_list(wanted)}"):
            found: dict[str, tuple[str, tuple[Replicas, ...]]] = {}
            for code, name, identity, _, partitions, *_ in (await self._brokers.find_topics(wanted)).topics:
                if code == Code.NONE:
                    found[name] = identity, count_replicas(partitions)
                elif code != Code.UNKNOWN_TOPIC_OR_PARTITION:
                    _refuse(name, _judge(f"topic {name}", "Describe", code), denied)
            configs = await self._read_configs(list(found)) if with_config else {}
        return {
            name: TopicFacts(name, identity, len(replicas), configs.get(name, {}), replicas)
            for name, (identity, replicas) in sorted(found.items())
            if name in configs or not with_config
        }

    async def find_readable(self, names: Iterable[str]) -> dict[str, int]:
        """Return the named topics that exist and that this user may read, with their numbers of partitions."""
        wanted = sorted(set(names))
        if not wanted:
            return {}
        async with self._in_time(f"topics {_list(wanted)}"):
            found = (await self._brokers.find_topics(wanted, operations=True)).topics
        return {
            name: len(partitions)
            for code, name, _, _, partitions, operations, *_ in found
            if code == Code.NONE and "Read" in name_operations(operations)
        }

    async def _read_configs(self, names: list[str]) -> dict[str, dict[str, str]]:
        if not names:
            return {}
        configs: dict[str, dict[str, str]] = {}
        (answer,) = await self._brokers.ask_any([DescribeConfigsRequest([(TOPIC, name, None) for name in names])])
        for code, message, _, name, entries, *_ in answer.resources:
            if code == Code.UNKNOWN_TOPIC_OR_PARTITION:
                # deleted or created just now: this broker's metadata differs from the other's
                continue
            if code not in (Code.NONE, Code.TOPIC_AUTHORIZATION_FAILED):
                raise _judge(f"topic {name}", "DescribeConfigs", code, message)
            # where access is denied, the config stays empty: every property read from it has a
            # default
            configs[name] = {key: value for key, value, *_ in entries or ()}
        return configs

    async def create_topics(self, topics: Iterable[NewTopic]) -> tuple[dict[str, TopicFacts], dict[str, str]]:
        """Create topics (made by `new_topic`), and wait until those that exist then can be described. Existing topics
        are not changed.

        Return the facts of each of these topics that exists now, created or present before, and Kafka's reason for
        each that it refused, also if this user lacks the right; both by name. Facts that are asked for later could
        come from a broker that does not know a topic yet.
        """
        wanted = {topic.name: topic for topic in topics}
        made, refused = await self._create_topics(wanted) if wanted else (set(), {})
        found = await self.await_topics(wanted.keys() - refused.keys())
        self.made |= {name: facts.identity for name, facts in found.items() if name in made}
        return found, refused

    async def _create_topics(self, wanted: Mapping[str, NewTopic]) -> tuple[set[str], dict[str, str]]:
        """Return the names of the topics that were created now, and the reason for each that was refused, by name.
        Topics that exist already are in neither. Raises SourceUnavailable if Kafka has not decided about one.
        """
        asked: list[Any] = [(t.name, t.partitions, t.replication, [], list(t.config.items())) for t in wanted.values()]
        made: set[str] = set()
        refused: dict[str, str] = {}
        async with self._in_time(f"topics {_list(wanted)}"):
            answers = await self._order(CreateTopicsRequest(asked, int(DEADLINE_S * 1000), False))
        for name, code, message, *_ in answers.topic_errors:
            if code == Code.NONE:
                made.add(name)
            if code in _PASSING or _is_starting(code, message):
                raise _judge(f"topic {name}", "Create", code, message)
            if code not in (Code.NONE, Code.TOPIC_ALREADY_EXISTS):
                refused[name] = f"topic {name} cannot be created: {message or describe_code(code)}"
        return made, refused

    async def add_partitions(self, topic: str, count: int) -> None:
        """Raise a topic's number of partitions to `count`, and wait until all can be described. Do
        nothing if it has as many or more already.
        """
        async with self._in_time(f"topic {topic}"):
            answer = await self._order(CreatePartitionsRequest([(topic, (count, None))], int(DEADLINE_S * 1000), False))
            for _, code, message in answer.topic_errors:
                # an unanswered request is sent again: the topic may have them by then
                if code not in (Code.NONE, Code.INVALID_PARTITIONS):
                    raise _judge(f"topic {topic}", "Alter", code, message)
            # no event tells when all brokers know of them; one may not know the topic yet
            while True:
                found = (await self.find_topics([topic], with_config=False)).get(topic)
                if found is not None and found.partitions >= count:
                    return
                await asyncio.sleep(PAUSE_S)

    async def _order(self, request: Any) -> Any:
        """Send a creation or deletion to the controller, and again if another broker is the
        controller by then. Return the answer.

        An unanswered creation is sent again. An unanswered deletion is not, and raises BrokerLost:
        by then the name may belong to a topic that was created anew.
        """
        is_creation = isinstance(request, CreateTopicsRequest | CreatePartitionsRequest)
        while True:
            answer = await (self._brokers.ask_controller if is_creation else self._brokers.order_once)(request)
            results = answer.topic_errors if is_creation else answer.topic_error_codes
            if all(code != Code.NOT_CONTROLLER for _, code, *_ in results):
                return answer
            await asyncio.sleep(PAUSE_S)

    async def await_topics(self, names: Iterable[str]) -> dict[str, TopicFacts]:
        """Wait until these topics can be described, and return the descriptions by name.

        Brokers learn of a new topic at different moments, shortly after its creation. Raises
        SourceUnavailable if one is still unknown after DEADLINE_S.
        """
        wanted = set(names)
        deadline = monotonic() + DEADLINE_S
        while wanted - (found := await self.find_topics(wanted)).keys():
            if monotonic() >= deadline:
                raise SourceUnavailable(
                    f"topics {', '.join(sorted(wanted))}: created, but not all brokers know of them after {DEADLINE_S:.0f} s"
                )
            await asyncio.sleep(PAUSE_S)
        return found

    async def find_offsets(
        self, sources: Iterable[tuple[str, int]], spec: OffsetSpec, *, committed: bool = True
    ) -> dict[tuple[str, int], int]:
        """Return one offset of each partition: OffsetSpec.earliest(), latest(), max_timestamp() or
        for_timestamp(ms).

        For a timestamp without a record at or after it the offset is -1, and so it is for
        max_timestamp() of an empty partition. The latest offset is the last stable offset, or the
        high watermark with `committed=False`.
        """
        (found,) = await self._find_offsets(sources, [(spec, committed)])
        return found

    async def _find_offsets(
        self, sources: Iterable[tuple[str, int]], questions: Sequence[tuple[OffsetSpec, bool]]
    ) -> list[dict[tuple[str, int], int]]:
        """Return for each question the offset of each partition, in the order of `questions`. A
        question is what `find_offsets` takes: `spec` and `committed`. All questions are sent to a
        leader together.
        """
        wanted = list(dict.fromkeys(sources))
        found: list[dict[tuple[str, int], int]] = [{} for _ in questions]

        async def ask() -> None:
            await self._ask_leaders([s for s in wanted if not all(s in each for each in found)], questions, found)

        if wanted:
            async with self._in_time(_list(f"{topic}-{partition}" for topic, partition in wanted)):
                await self._await_leaders(ask, PAUSE_S)
        return [{source: each[source] for source in wanted} for each in found]

    async def _ask_leaders(
        self,
        wanted: Collection[tuple[str, int]],
        questions: Sequence[tuple[OffsetSpec, bool]],
        found: Sequence[dict[tuple[str, int], int]],
    ) -> None:
        """Put all questions to the leaders of these partitions, again only if a broker does not answer. `found`: for
        each question a dict, which receives the offsets. Raises the error of the first partition in `wanted` that has
        one.
        """

        async def ask(address: Address, sources: list[tuple[str, int]]) -> None:
            by_topic = _by_topic(sources)
            requests = [
                ListOffsetsRequest(by_topic, spec.timestamp, committed=committed) for spec, committed in questions
            ]
            answers = await self._brokers.send(address, requests)
            for source in sources:
                codes.pop(source, None)
            for answer, offsets in zip(answers, found, strict=True):
                for topic, partitions, _ in answer.topics:
                    for partition, code, _, offset, *_ in partitions:
                        codes[topic, partition] = code or codes.get((topic, partition), Code.NONE)
                        if code == Code.NONE:
                            offsets[topic, partition] = offset

        codes: dict[tuple[str, int], int] = {}
        await self._brokers.ask_each(wanted, lambda sources, _: self._find_leaders(sources, codes), ask)
        for topic, partition in wanted:
            if code := codes.get((topic, partition), Code.UNKNOWN_TOPIC_OR_PARTITION):
                raise _judge(f"{topic}-{partition}", "Describe", code)

    async def _find_leaders(
        self, sources: Iterable[tuple[str, int]], codes: dict[tuple[str, int], int]
    ) -> dict[tuple[str, int], int]:
        """Return the id of the broker that leads each partition, by partition. A partition that has no leader, or
        that the broker asked does not know, is left out, and `codes` receives its error code.
        """
        wanted = _by_topic(sources)
        leaders: dict[tuple[str, int], int] = {}
        for code, topic, _, _, partitions, *_ in (await self._brokers.find_topics(wanted)).topics:
            at = {partition: leader for _, partition, leader, *_ in partitions}
            for partition in wanted[topic]:
                if code or partition not in at:
                    codes[topic, partition] = code or Code.UNKNOWN_TOPIC_OR_PARTITION
                elif at[partition] < 0:
                    codes[topic, partition] = Code.LEADER_NOT_AVAILABLE
                else:
                    leaders[topic, partition] = at[partition]
        return leaders

    async def find_bounds(
        self, sources: Iterable[tuple[str, int]], *, committed: bool = True
    ) -> dict[tuple[str, int], tuple[int, int]]:
        """Return (log start, log end) of each partition, as offsets. The end is the last stable
        offset, or the high watermark with `committed=False`.
        """
        first, last = await self._find_offsets(
            sources, [(OffsetSpec.earliest(), True), (OffsetSpec.latest(), committed)]
        )
        return {source: (start, last[source]) for source, start in first.items()}

    async def count_members(self, group: str) -> int:
        """Return how many members a consumer group has now; 0 if Kafka does not know the group."""
        return (await self.count_members_of([group]))[group]

    async def count_members_of(self, groups: Iterable[str], *, denied: dict[str, str] | None = None) -> dict[str, int]:
        """Return how many members each group has now, by name; 0 for a group that Kafka does not know.

        `denied`: receives name and reason of each group that this user may not describe, which the
        result leaves out. Without it, such a group raises CredentialsRefused.
        """
        found = await self.describe_groups(groups, denied=denied)
        return {name: len(group.members) for name, group in found.items()}

    async def describe_groups(
        self, groups: Iterable[str], *, denied: dict[str, str] | None = None, operations: bool = False
    ) -> dict[str, Group]:
        """Return a description of each group, by name. A group that Kafka does not know has no
        members and `is_known` False.

        `operations`: also ask which operations this user may perform on it. `denied`: receives name
        and reason of each group that this user may not describe, which the result leaves out.
        Without it, such a group raises CredentialsRefused.
        """
        found: GroupAnswers[Group] = GroupAnswers()

        async def ask(names: Collection[str]) -> None:
            await self._groups.describe(names, found, operations=operations)

        await self._ask_groups(groups, found, ask, denied)
        return found.answers

    async def find_committed(
        self, groups: Iterable[str], *, denied: dict[str, str] | None = None
    ) -> dict[str, dict[str, dict[int, int]]]:
        """Return the committed offsets of each group, by group, topic and partition; empty for a
        group that Kafka does not know. Partitions without a committed offset are left out.

        `denied`: receives name and reason of each group that this user may not describe, which the
        result leaves out. Without it, such a group raises CredentialsRefused.
        """
        found: GroupAnswers[dict[str, dict[int, int]]] = GroupAnswers()

        async def ask(names: Collection[str]) -> None:
            await self._groups.find_committed(names, found)

        await self._ask_groups(groups, found, ask, denied)
        return found.answers

    async def _ask_groups(
        self, groups: Iterable[str], found: GroupAnswers[Any], ask: Any, denied: dict[str, str] | None
    ) -> None:
        """Call `ask` with the groups that have no answer in `found` yet, until each has an answer
        or was refused. `ask` puts answers and error codes into `found`.

        `denied`: receives name and reason of each group that this user may not describe; without
        it, such a group raises CredentialsRefused. Any other error that remains is raised.
        """
        wanted = sorted(set(groups))
        refused: dict[str, str] = {}

        async def ask_rest() -> None:
            rest = [group for group in wanted if group not in found.answers and group not in refused]
            found.codes.clear()
            await ask(rest)
            faults: list[OverlayError] = []
            for group, code in found.codes.items():
                judged = _judge(f"group {group}", "Describe", code)
                if denied is not None and isinstance(judged, CredentialsRefused):
                    refused[group] = str(judged)
                else:
                    faults.append(judged)
            if faults:
                # Unled is retried by _await_leaders, so any other error is raised before it.
                raise min(faults, key=lambda fault: isinstance(fault, Unled))

        if wanted:
            async with self._in_time(f"groups {_list(wanted)}"):
                # a coordinator that loads its groups is asked about all of them again
                await self._await_leaders(ask_rest, LONGEST_PAUSE_S)
        if denied is not None:
            denied |= refused

    async def _await_leaders(self, ask: Callable[[], Awaitable[None]], longest_pause_s: float) -> None:
        """Await `ask()` again and again while it raises Unled, with pauses that grow. After
        LEADER_S, Unled is raised. Any other error is raised at once.
        """
        began, backoff = monotonic(), Backoff(PAUSE_S, longest_pause_s)
        while True:
            try:
                return await ask()
            except Unled:
                if monotonic() - began >= LEADER_S:
                    raise
                self._brokers.doubt()
            await backoff.rest()

    async def alter_topic(self, topic: str, config: Mapping[str, str]) -> str:
        """Set properties of a topic; the other properties keep their values. Return Kafka's reason
        for refusing, also if this user lacks the right, or "" if it was done. Raises
        SourceUnavailable if Kafka has not decided.
        """
        async with self._in_time(f"topic {topic}"):
            answer = await self._brokers.ask_controller(IncrementalAlterConfigsRequest(topic, config))
        for code, message, *_ in answer.resources:
            if code in _PASSING:
                raise _judge(f"topic {topic}", "AlterConfigs", code, message)
            if code != Code.NONE:
                return f"topic {topic} cannot be altered: {message or describe_code(code)}"
        return ""

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic. Do nothing if it does not exist. Raises SourceUnavailable if Kafka does
        not say whether it was deleted.
        """
        self.made.pop(topic, None)
        try:
            async with self._in_time(f"topic {topic}"):
                answer = await self._order(DeleteTopicsRequest([topic], int(DEADLINE_S * 1000)))
        except BrokerLost as error:
            raise SourceUnavailable(
                f"topic {topic}: the broker did not say whether it deletes it; look for it before you order that again: {error}"
            ) from error
        for name, code, *_ in answer.topic_error_codes:
            if code not in (Code.NONE, Code.UNKNOWN_TOPIC_OR_PARTITION):
                raise _judge(f"topic {name}", "Delete", code)

    async def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Delete the records of one partition below offset `before`. Raises ValueError if `before`
        is negative: to Kafka, -1 means the high watermark.
        """
        if before < 0:
            raise ValueError(f"{topic}-{partition}: there are no records below {before}")
        codes: dict[tuple[str, int], int] = {}

        async def ask(address: Address, _: list[tuple[str, int]]) -> None:
            request = DeleteRecordsRequest([(topic, [(partition, before)])], int(DEADLINE_S * 1000))
            (answer,) = await self._brokers.send(address, [request])
            codes[topic, partition] = answer.topics[0][1][0][2]

        async with self._in_time(f"{topic}-{partition}"):
            await self._brokers.ask_each([(topic, partition)], lambda s, _: self._find_leaders(s, codes), ask)
        if code := codes.get((topic, partition), Code.UNKNOWN_TOPIC_OR_PARTITION):
            raise _judge(f"{topic}-{partition}", "Delete", code)


@asynccontextmanager
async def connect(kafka: Properties) -> AsyncIterator[tuple[Admin, AIOKafkaClient]]:
    """Open an Admin and a connected aiokafka client for a block, and close both at its end. Raises
    SourceUnavailable.
    """
    async with Admin(kafka) as admin:
        client = await open_client(kafka)
        try:
            yield admin, client
        finally:
            await client.close()


class Unled(SourceUnavailable):
    """A partition or group without a broker that can answer for it at the moment: it has no leader, the leader is not
    ready, or the broker that was asked does not lead it. So it is right after a topic was created.
    """


def _by_topic(sources: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, partition in sources:
        topics.setdefault(topic, []).append(partition)
    return topics


def _list(names: Iterable[str], most: int = 3) -> str:
    """Return the first `most` names as text, followed by the number of the others if there are any."""
    every = list(names)
    return ", ".join(every[:most]) + (f" and {len(every) - most} more" if len(every) > most else "")


def _refuse(name: str, judged: OverlayError, denied: dict[str, str] | None) -> None:
    if denied is None or not isinstance(judged, CredentialsRefused):
        raise judged
    denied[name] = str(judged)


def _is_starting(code: int, message: str | None) -> bool:
    """Return whether Kafka refused a creation because all brokers are fenced, as at the start of a cluster.

    A broker is fenced from its start until the controller has its first heartbeats. Kafka uses the same error code if
    there are fewer brokers than the replication factor; only the message differs.
    """
    return code == Code.INVALID_REPLICATION_FACTOR and "All brokers are currently fenced" in (message or "")


def _judge(what: str, operation: str, code: int, message: str | None = None) -> OverlayError:
    """Return the error to raise for Kafka's error code: CredentialsRefused if this user lacks a right, Unled if no
    broker can answer for a partition or group at the moment, otherwise SourceUnavailable.

    `what`: the topic, partition or group, for the message. `operation`: the ACL operation. `message`: Kafka's own
    text, if there is any.
    """
    if code in _REFUSED:
        return CredentialsRefused(
            f"{what}: Kafka does not allow {operation}. Grant it, or see `overlay validate --kafka`"
        )
    kind = Unled if code in _UNLED else SourceUnavailable
    return kind(f"{what}: {message or describe_code(code)}")
