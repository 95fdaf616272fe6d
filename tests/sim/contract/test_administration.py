"""Topics, metadata, configuration and deleted records: both sides answer alike."""

from __future__ import annotations

from typing import Any

from aiokafka.protocol.admin import (
    AlterConfigsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
)
from aiokafka.protocol.fetch import FetchRequest, FetchRequest_v11
from aiokafka.protocol.metadata import MetadataRequest

from overlay.kafka.protocol import (
    NO_TAGS,
    IncrementalAlterConfigsRequest,
    ListOffsetsRequest,
    MetadataRequest_v10,
    TopicsRequest,
)

from .requests import COMMITTED, UNCOMMITTED, fetch, list_offset, make_batch, note_fetch, produce, read_partition
from .sides import Compare, Side

TOPIC = 2
FOREIGN = "Zm9yZWlnbi10b3BpYy1pZA"


class AsBuilt:
    """A versioned request that is sent as it is: clients build other ones."""

    def __init__(self, request: Any) -> None:
        self.API_KEY = request.API_KEY
        self._request = request

    def prepare(self, _: Any) -> Any:
        return self._request


async def create(side: Side, *topics: Any, validate_only: bool = False) -> list[Any]:
    answer = await side.main.ask(CreateTopicsRequest(list(topics), 10_000, validate_only))
    return sorted(map(tuple, answer.topic_errors))


async def note_topics(side: Side, what: str, *names: str) -> None:
    """Note what metadata says, in both versions."""
    found = await side.main.ask(TopicsRequest(names))
    shown = [
        (code, name, side.alias("topic", id), internal, sorted(tuple(one) for one in partitions), operations)
        for code, name, id, internal, partitions, operations, _ in sorted(found.topics, key=lambda one: str(one[1]))
    ]
    side.note(what, (found.controller_id, [broker[0] for broker in found.brokers], sorted(shown)))
    older = await side.main.ask(MetadataRequest(list(names)))
    topics = [(*topic[:3], sorted(tuple(one) for one in topic[3])) for topic in older.topics]
    side.note(what, (older.controller_id, sorted(topics)))


async def test_topics_are_created_and_described(compare: Compare) -> None:
    async def script(side: Side) -> None:
        name = side.name
        await side.make_topic("there", 2)
        side.note(
            "created",
            await create(
                side,
                (name("there"), 1, 1, [], []),
                (name("a"), 3, 1, [], [("retention.ms", "12345"), ("cleanup.policy", "compact")]),
                (name("b"), -1, -1, [], []),
                (name("c"), -1, -1, [(0, [1]), (1, [1])], []),
                (name("bad/name"), 1, 1, [], []),
                ("", 1, 1, [], []),
                (".", 1, 1, [], []),
                (name("d"), 0, 1, [], []),
                (name("e"), 1, 0, [], []),
                (name("f"), 1, 2, [], []),
            ),
        )
        refused = await create(
            side,
            (name("g"), 1, 1, [], [("nope", "1")]),
            (name("h"), 1, 1, [], [("retention.ms", "soon")]),
            (name("i"), 1, 1, [], [("cleanup.policy", "none")]),
            (name("j"), 1, 1, [], [("segment.bytes", "1")]),
            (name("k"), 1, 1, [], [("min.cleanable.dirty.ratio", "2")]),
            (name("l"), 1, 1, [], [("message.timestamp.type", "x")]),
            (name("m"), 1, 1, [], [("segment.ms", "0")]),
        )
        side.note("refused", [(name, code) for name, code, _ in refused])
        side.note("only validated", await create(side, (name("n"), 1, 1, [], []), validate_only=True))
        await side.sleep(0.5)
        await note_topics(side, "described", *map(name, ("there", "a", "b", "c", "n", "missing")))
        found = await side.main.ask(MetadataRequest(None))
        side.note("all", sorted(topic[1] for topic in found.topics if topic[1].startswith(side.prefix)))
        every = await side.main.ask(TopicsRequest(None))
        side.note("all with ids", sorted(topic[1] for topic in every.topics if topic[1].startswith(side.prefix)))
        side.note("none", (await side.main.ask(TopicsRequest(()))).topics)

    await compare(script)


async def test_topics_by_id(compare: Compare) -> None:
    async def script(side: Side) -> None:
        topic = await side.make_topic("t")
        id = (await side.main.ask(TopicsRequest([topic]))).topics[0][2]
        wanted = [(id, None, NO_TAGS), (FOREIGN, None, NO_TAGS)]
        answer = await side.main.ask(AsBuilt(MetadataRequest_v10(wanted, False, False, False, NO_TAGS)))
        shown = [(code, name, id_, len(partitions)) for code, name, id_, _, partitions, *_ in answer.topics]
        named = [(code, name, side.alias("topic", id_), count) for code, name, id_, count in shown]
        side.note("by id", sorted(named, key=lambda one: one[0]))
        await side.main.ask(DeleteTopicsRequest([topic], 10_000))
        await side.sleep(0.5)
        answer = await side.main.ask(AsBuilt(MetadataRequest_v10(wanted[:1], False, False, False, NO_TAGS)))
        side.note("deleted", [(one[0], one[1], side.alias("topic", one[2])) for one in answer.topics])

    await compare(script)


async def test_a_topic_that_is_created_again_is_another_one(compare: Compare) -> None:
    async def script(side: Side) -> None:
        topic = await side.make_topic("t", 2)
        await produce(side.main, topic, make_batch(3, side.wall_ms))
        await note_topics(side, "first", topic)
        other = await side.connect()
        waiting = await side.start(fetch(other, topic, 3, wait_ms=5_000))
        codes = await side.main.ask(DeleteTopicsRequest([topic, side.name("missing")], 10_000))
        side.note("deleted", sorted(map(tuple, codes.topic_error_codes)))
        side.note("waited", (await waiting)["code"])
        await side.sleep(0.5)
        await note_topics(side, "deleted", topic)
        side.note("fetch", (await fetch(side.main, topic, 0))["code"])
        side.note("produce", (await produce(side.main, topic, make_batch(3, side.wall_ms)))[0])
        await side.make_topic("t", 1)
        await note_topics(side, "second", topic)
        await note_fetch(side, "old offset", topic, 3)
        await note_fetch(side, "start", topic, 0)
        side.note("produce", await produce(side.main, topic, make_batch(2, side.wall_ms)))

    await compare(script)


async def test_partitions_are_added(compare: Compare) -> None:
    async def script(side: Side) -> None:
        topic = await side.make_topic("t", 2)
        for count in (2, 1, 0, 4):
            wanted = [(topic, (count, None)), (side.name("missing"), (3, None))]
            answer = await side.main.ask(CreatePartitionsRequest(wanted, 10_000, False))
            side.note(f"to {count}", sorted(map(tuple, answer.topic_errors)))
        await side.sleep(0.5)
        await note_topics(side, "now", topic)
        side.note("produce", await produce(side.main, topic, make_batch(2, side.wall_ms), partition=3))

    await compare(script)


async def test_configuration(compare: Compare) -> None:
    async def script(side: Side) -> None:
        topic = await side.make_topic("t", retention_ms=12345)

        async def note(what: str, keys: list[str] | None) -> None:
            wanted = [(TOPIC, topic, keys), (TOPIC, side.name("missing"), None)]
            answer = await side.main.ask(DescribeConfigsRequest(wanted))
            shown = []
            for code, _, kind, name, entries in answer.resources:
                # the embedded broker's own configuration says these
                own = ("segment.bytes", "min.insync.replicas")
                shown.append((code, kind, name, [tuple(one) for one in entries if one[0] not in own]))
            side.note(what, shown)

        await note("all", None)
        await note("some", ["retention.ms", "cleanup.policy", "nope"])
        for entries in (
            [("cleanup.policy", "compact"), ("max.message.bytes", "2000")],
            [("retention.ms", "x")],
            [("retention.ms", "99")],
        ):
            resources = [(TOPIC, topic, entries)]
            answer = await side.main.ask(AlterConfigsRequest(resources, False))
            side.note("altered", [(one[0], *one[2:]) for one in answer.resources])
            await side.sleep(0.3)
            await note("now", ["retention.ms", "cleanup.policy", "max.message.bytes"])
        for config in (
            {"retention.ms": "777", "retention.bytes": "-1"},
            {"cleanup.policy": "compact", "retention.ms": "x"},
            {"cleanup.policy": "compact,delete"},
        ):
            for name in (topic, side.name("missing")):
                answer = await side.main.ask(IncrementalAlterConfigsRequest(name, config))
                side.note("altered one by one", [(one[0], *one[2:]) for one in answer.resources])
            await side.sleep(0.3)
            await note("now", ["retention.ms", "retention.bytes", "cleanup.policy", "max.message.bytes"])
        await side.main.ask(AlterConfigsRequest([(TOPIC, topic, [])], False))
        await side.sleep(0.3)
        large = make_batch([(b"k", b"v" * 3_000)], side.wall_ms)
        side.note("fits", (await produce(side.main, topic, large))[0])
        await side.main.ask(AlterConfigsRequest([(TOPIC, topic, [("max.message.bytes", "2000")])], False))
        await side.sleep(0.3)
        side.note("too large", (await produce(side.main, topic, large))[0])

    await compare(script)


async def test_records_are_deleted(compare: Compare) -> None:
    async def script(side: Side) -> None:
        topic = await side.make_topic("t")
        compacted = await side.make_topic("compacted", cleanup_policy="compact")
        at = side.wall_ms
        for name in (topic, compacted):
            for i in range(3):
                await produce(side.main, name, make_batch(3, at + 10 * i))

        async def delete(name: str, before: int, partition: int = 0) -> None:
            answer = await side.main.ask(DeleteRecordsRequest([(name, [(partition, before)])], 5_000))
            found = [(one[0], [tuple(part[:3]) for part in one[1]]) for one in answer.topics]
            side.note(f"before {before}", found)
            for when in (-1, -2, -3, at):
                code, found_at, *rest = await list_offset(side, topic, when)
                side.note(f"at {min(when, 0)}", (code, found_at - at if found_at >= 0 else found_at, *rest))

        await delete(topic, 2)
        for offset in (0, 1, 2, 5):
            await note_fetch(side, f"from {offset}", topic, offset)
        for before in (1, 10, -2, 6, -1):
            await delete(topic, before)
        await note_fetch(side, "at the end", topic, 9)
        await note_fetch(side, "before the end", topic, 8, isolation=UNCOMMITTED)
        side.note("goes on", await produce(side.main, topic, make_batch(2, at + 50)))
        await delete(compacted, 2)
        await delete(side.name("missing"), 0)
        await delete(topic, 0, partition=5)

    await compare(script)


async def test_leader_epochs_of_requests(compare: Compare) -> None:
    async def script(side: Side) -> None:
        topic = await side.make_topic("t")
        await produce(side.main, topic, make_batch(3, side.wall_ms))
        for epoch in (-1, 0, 1):
            wanted = [(topic, [(0, epoch, 0, -1, 1 << 20)])]
            request = FetchRequest_v11(-1, 0, 1, 1 << 20, COMMITTED, 0, -1, wanted, [], "")
            answer = await side.main.ask(AsBuilt(request))
            shown = read_partition(answer.topics[0][1][0])
            side.note(f"fetch in {epoch}", {key: value for key, value in shown.items() if key != "data"})
            built = ListOffsetsRequest({topic: [0]}, -1, committed=True).prepare({2: (0, 7)})
            built.topics = [(topic, [(0, epoch, -1, NO_TAGS)], NO_TAGS)]
            answer = await side.main.ask(AsBuilt(built))
            side.note(f"list in {epoch}", tuple(answer.topics[0][1][0][:5]))

    await compare(script)


async def test_one_fetch_of_good_and_bad_partitions(compare: Compare) -> None:
    async def script(side: Side) -> None:
        topic = await side.make_topic("t", 3)
        for i in range(3):
            await produce(side.main, topic, make_batch(i + 1, side.wall_ms), partition=i)
        wanted = [(topic, [(2, 0, 1000), (0, 5, 1000), (1, 0, 1000), (7, 0, 1000)]), (side.name("x"), [(0, 0, 1000)])]
        answer = await side.main.ask(FetchRequest(5_000, 1 << 20, 1 << 20, COMMITTED, wanted))
        for name, partitions in answer.topics:
            for entry in partitions:
                shown = read_partition(entry)
                del shown["data"]
                side.note(f"{name} {entry[0]}", shown)

    await compare(script)
