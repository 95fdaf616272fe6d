"""Batches made by hand, sent to a broker as they are: what a client other than ours, or one that means harm, may write."""

from __future__ import annotations

import asyncio

from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.structs import TopicPartition

from overlay.kafka.connection import open_client

ACKS_ALL = -1
TIMEOUT_MS = 30_000
PASSING = (3, 5, 6)
"""Of a topic that was made a moment ago: unknown, no leader, not the leader."""


def send_batch(bootstrap: str, topic: str, batch: bytes, partition: int = 0) -> int:
    """Write one batch (tests/support/batches.py) and return Kafka's error code, 0 for none."""

    async def send() -> int:
        client: AIOKafkaClient = await open_client({"bootstrap.servers": bootstrap})
        try:
            await client.set_topics([topic])
            request = ProduceRequest(None, ACKS_ALL, TIMEOUT_MS, [(topic, [(partition, batch)])])
            async with asyncio.timeout(TIMEOUT_MS / 1000):
                while True:
                    node = client.cluster.leader_for_partition(TopicPartition(topic, partition))
                    if node is not None and node >= 0:
                        code = int((await client.send(node, request)).topics[0][1][0][1])
                        if code not in PASSING:
                            return code
                    await asyncio.sleep(0.05)
                    await client.force_metadata_update()
        finally:
            await client.close()

    return asyncio.run(send())
