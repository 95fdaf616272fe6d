"""Topics that change under producers, transactions and groups: both sides answer alike."""

from __future__ import annotations

from aiokafka.protocol.admin import CreatePartitionsRequest, DeleteRecordsRequest, DeleteTopicsRequest
from aiokafka.protocol.commit import OffsetFetchRequest
from aiokafka.protocol.group import JoinGroupRequest
from aiokafka.protocol.transaction import InitProducerIdRequest

from .requests import (
    UNCOMMITTED,
    await_end,
    fetch,
    init_producer,
    list_offset,
    make_batch,
    note_fetch,
    of_producer,
    produce,
)
from .sides import Compare, Side
from .test_groups import Member, note_group
from .test_transactions import Writer


async def delete_topic(side: Side, topic: str) -> None:
    await side.main.ask(DeleteTopicsRequest([topic], 10_000))
    await side.sleep(0.6)


async def delete_records(side: Side, topic: str, before: int) -> None:
    answer = await side.main.ask(DeleteRecordsRequest([(topic, [(0, before)])], 5_000))
    side.note(f"deleted before {before}", [tuple(part[:3]) for part in answer.topics[0][1]])


async def note_bounds(side: Side, topic: str) -> None:
    side.note("bounds", [(await list_offset(side, topic, when))[2:] for when in (-2, -1)])
    side.note("end", (await list_offset(side, topic, -1, committed=False))[2:])


async def test_a_topic_is_deleted_in_an_open_transaction(compare: Compare) -> None:
    async def script(side: Side) -> None:
        topic, other = await side.make_topic("t"), await side.make_topic("other")
        a = await Writer.begin(side, "a")
        await a.add(topic, other)
        await a.send(topic)
        await a.send(other)
        await delete_topic(side, topic)
        await a.send(topic)
        await a.end(commit=True)
        await a.settled(other)
        await side.make_topic("t")
        await note_bounds(side, topic)
        await a.send(topic)
        await a.add(topic)
        await a.send(topic)
        await a.end(commit=True)
        await a.settled(topic)
        await note_fetch(side, "all", topic, 0)
        await a.add(topic)
        await a.send(topic)
        await delete_topic(side, topic)
        await side.make_topic("t")
        await a.send(topic, sequence=0)
        await side.sleep(0.3)
        await note_bounds(side, topic)
        await a.end(commit=False)
        await a.settled(topic)
        await note_fetch(side, "all", topic, 0)
        await note_fetch(side, "other", other, 0)

    await compare(script)


async def test_records_of_an_open_transaction_are_deleted(compare: Compare) -> None:
    async def script(side: Side) -> None:
        topic = await side.make_topic("t")
        a, b = await Writer.begin(side, "a"), await Writer.begin(side, "b")
        await produce(side.main, topic, make_batch(1, side.wall_ms))
        await a.add(topic)
        await a.send(topic, 3)
        await b.add(topic)
        await b.send(topic)
        await note_bounds(side, topic)
        await delete_records(side, topic, 3)
        await note_bounds(side, topic)
        for offset in (0, 3, 4):
            await note_fetch(side, f"from {offset}", topic, offset)
        await delete_records(side, topic, -1)
        await note_bounds(side, topic)
        await note_fetch(side, "at the end", topic, 6)
        await produce(side.main, topic, make_batch(2, side.wall_ms))
        await note_fetch(side, "at the end", topic, 6)
        await b.end(commit=False)
        await await_end(side, topic, 9)
        await note_bounds(side, topic)
        await a.end(commit=True)
        await a.settled(topic)
        await note_bounds(side, topic)
        await note_fetch(side, "all", topic, 6)
        await note_fetch(side, "all", topic, 6, isolation=UNCOMMITTED)

    await compare(script)


async def test_aborted_transactions_that_were_deleted_in_part(compare: Compare) -> None:
    async def script(side: Side) -> None:
        topic = await side.make_topic("t")
        a = await Writer.begin(side, "a")
        for commit in (False, True, False, False):
            await a.add(topic)
            await a.send(topic)
            await a.send(topic, 1)
            await a.end(commit=commit)
            await a.settled(topic)
        for before in (1, 4, 9):
            await delete_records(side, topic, before)
            await note_bounds(side, topic)
            await note_fetch(side, "from the start", topic, before)
            await note_fetch(side, "later", topic, 10)

    await compare(script)


async def test_producers_after_their_records_are_gone(compare: Compare) -> None:
    async def script(side: Side) -> None:
        topic = await side.make_topic("t")
        _, producer = await init_producer(side, None)

        async def send(what: str, sequence: int) -> None:
            batch = make_batch(2, side.wall_ms, **of_producer(producer, sequence))
            code, offset, *_ = await produce(side.main, topic, batch)
            side.note(what, (code, offset))

        await send("first", 0)
        await send("second", 2)
        await delete_records(side, topic, -1)
        await send("again", 2)
        await send("gap", 8)
        await send("next", 4)
        await delete_topic(side, topic)
        await send("missing", 6)
        await side.make_topic("t")
        await send("goes on", 6)
        await send("gap", 12)
        await send("from zero", 0)
        await send("next", 8)

    await compare(script)


async def test_partitions_are_added_in_a_transaction(compare: Compare) -> None:
    async def script(side: Side) -> None:
        topic = await side.make_topic("t", 1)
        a = await Writer.begin(side, "a")
        await a.add(topic)
        await a.send(topic)
        await a.add(topic, partition=1)
        await side.main.ask(CreatePartitionsRequest([(topic, (2, None))], 10_000, False))
        await side.await_partitions(topic, 2)
        await a.send(topic, partition=1)
        await a.add(topic, partition=1)
        await a.send(topic, partition=1)
        await a.end(commit=True)
        await a.settled(topic)
        await a.settled(topic, partition=1)
        for partition in (0, 1):
            await note_fetch(side, f"partition {partition}", topic, 0, partition=partition)

    await compare(script)


async def test_offsets_of_a_deleted_topic(compare: Compare) -> None:
    async def script(side: Side) -> None:
        topic, group = await side.make_topic("t"), side.name("g")
        await side.find_coordinator(group, 0)
        member = await Member.connect(side, group)
        side.note("commit", await member.commit(topic, 5))
        await delete_topic(side, topic)
        await side.sleep(1.0)
        found = await side.main.ask(OffsetFetchRequest(group, [(topic, [0])]))
        side.note("deleted", [list(map(tuple, one[1])) for one in found.topics])
        await side.make_topic("t")
        found = await side.main.ask(OffsetFetchRequest(group, [(topic, [0])]))
        side.note("created again", [list(map(tuple, one[1])) for one in found.topics])
        await note_group(side, "group", group)

    await compare(script)


async def test_an_id_that_was_given_out_and_left(compare: Compare) -> None:
    async def script(side: Side) -> None:
        group = side.name("g")
        await side.find_coordinator(group, 0)
        one, two = await Member.connect(side, group), await Member.connect(side, group)
        side.note("join", await one.join())
        side.note("sync", await one.sync({one.id: b"1"}))
        two.id = ""
        request = JoinGroupRequest(group, 6_000, 5_000, "", None, "consumer", [("range", b"")])
        found = await two.connection.ask(request)
        two.id = found.member_id
        side.note("required", found.error_code)
        side.note("beat", await two.beat(1))
        await note_group(side, "one", group)
        side.note("beat", await one.beat())
        joining = await side.start(one.join([("range", b"newer")]))
        side.note("waits for the other", not joining.done())
        side.note("leave", await two.leave())
        side.note("joined", await joining)

    await compare(script)


async def test_epochs_of_a_transactional_id(compare: Compare) -> None:
    async def script(side: Side) -> None:
        name = side.name("a")
        await init_producer(side, name)
        for _ in range(3):
            found = await side.main.ask(InitProducerIdRequest(name, 60_000))
            side.note("init", (found.error_code, side.alias("producer", found.producer_id), found.producer_epoch))
        topic = await side.make_topic("t")
        writer = await Writer.begin(side, "a")
        await writer.add(topic)
        found = await side.main.ask(InitProducerIdRequest(name, 60_000))
        side.note("while open", (found.error_code, found.producer_id, found.producer_epoch))
        await writer.settled(topic)
        side.note("marker", (await fetch(side.main, topic, 0, isolation=UNCOMMITTED))["batches"])
        again = await Writer.begin(side, "a")
        side.note("epoch", again.producer[1])

    await compare(script)
