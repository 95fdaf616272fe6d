"""A message that is on its way to a pull request while the ack of an earlier delivery is answered.

It arrives after the answer, as it does with JetStream: nothing takes back what has been sent. No later request gets it.
"""

from __future__ import annotations

import asyncio

from overlay.kafka.header_names import TOKEN
from tests.oracle.push import parse_token

from .asking import ask
from .host import Worker, read_config, warm_up
from .kafka.codes import Code
from .reading import Found, read_topic
from .scenes import await_records, until
from .world import World
from .writing import PREFIX, ack, write

ACK_WAIT_S = 3
INBOXES = [f"{PREFIX}.replies.{number}" for number in range(3)]


async def pull(world: World, inbox: str) -> None:
    """Ask for one message in an inbox, for ten seconds."""
    await ask(world, f"pull-{inbox}", "consumer.next", "S", inbox=inbox, consumer="c", batch=1, expires="10s")


def read_messages(world: World, inbox: str) -> list[Found]:
    """Return the messages of an inbox, without statuses."""
    return [found for found in read_topic(world.cluster, inbox) if found.header(TOKEN)]


def test_a_message_in_flight_arrives_after_the_answer_to_its_ack() -> None:
    """The second inbox takes nothing for a while. Its message was handed out before the ack came."""
    warm_up()
    world = World(1, brokers=1)

    async def history(world: World) -> None:
        for topic in ("source", *INBOXES):
            world.cluster.create_topic(topic)
        worker = Worker(
            world,
            "w",
            read_config(
                {"kafka": {"bootstrap.servers": world.bootstrap}, "shards": 1, "topics": {"replication": 1}},
                [{"name": "S", "topics": ["source"], "subject": {"template": "t.{key}"}}],
                [{"stream": "S", "durable_name": "c", "ack_policy": "explicit", "ack_wait": f"{ACK_WAIT_S}s"}],
            ),
        )
        worker.start()
        await asyncio.sleep(10)
        await write(world, "source", ["0"])
        await pull(world, INBOXES[0])
        first = await await_records(world, INBOXES[0], 1)
        await pull(world, INBOXES[1])
        world.cluster.refuse_produce(INBOXES[1], Code.KAFKA_STORAGE_ERROR)
        await asyncio.sleep(ACK_WAIT_S + 1)
        await ack(world, "S", first[:1], correlation="acked")
        await until(lambda: len(read_topic(world.cluster, f"{PREFIX}.replies")) == 1, "the ack is answered")
        assert not read_messages(world, INBOXES[1]), "it is on its way still"
        world.cluster.refuse_produce(INBOXES[1], Code.NONE)
        (second,) = await await_records(world, INBOXES[1], 1)
        assert parse_token(second.header(TOKEN) or b"").deliveries == 2
        await pull(world, INBOXES[2])
        await asyncio.sleep(4 * ACK_WAIT_S)
        assert [len(read_messages(world, inbox)) for inbox in INBOXES] == [1, 1, 0]
        await worker.stop()

    world.run(history)
