"""What brokers say of a topic's partitions. A test that waited for them in vain puts it into its message."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError
from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from overlay.kafka.transaction_requests import DescribeProducersRequest
from overlay.output.lost_markers import NO_LEADER

ASK_S = 10.0


def find_ends(
    client: AdminClient, topic: str, partitions: Iterable[int], isolation: IsolationLevel
) -> dict[int, int | None]:
    """Return the end of each partition for readers of this isolation level, None if no broker tells it."""
    asked = {TopicPartition(topic, partition): OffsetSpec.latest() for partition in partitions}
    futures = client.list_offsets(asked, isolation_level=isolation, request_timeout=ASK_S)
    ends: dict[int, int | None] = {}
    for place, future in futures.items():
        try:
            ends[place.partition] = future.result(2 * ASK_S).offset
        except (KafkaException, TimeoutError):
            ends[place.partition] = None
    return ends


def describe_partitions(bootstrap: str, topic: str) -> str:
    """Return a line for each partition: its leader, its ends, and the transactions that are open in it.

    A question that no broker answers is answered with the reason.
    """
    client = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    try:
        found = client.list_topics(topic, timeout=ASK_S).topics[topic].partitions
    except KafkaException as error:
        return f"{topic}: no broker tells its partitions: {error.args[0].str()}"
    leaders = {partition: int(each.leader) for partition, each in found.items()}
    committed = find_ends(client, topic, leaders, IsolationLevel.READ_COMMITTED)
    written = find_ends(client, topic, leaders, IsolationLevel.READ_UNCOMMITTED)
    with ThreadPoolExecutor(1) as thread:  # the caller may have a running loop
        transactions = thread.submit(asyncio.run, _describe_transactions(bootstrap, topic, leaders)).result()
    return "\n".join(
        f"{topic}-{partition}: leader {leader}, committed up to {committed[partition]} of {written[partition]}"
        f", {transactions[partition]}"
        for partition, leader in sorted(leaders.items())
    )


async def _describe_transactions(bootstrap: str, topic: str, leaders: Mapping[int, int]) -> dict[int, str]:
    """Return for each partition which producers have a transaction open there, or why this is not known."""
    described = dict.fromkeys(leaders, "no leader to ask for transactions")
    client = AIOKafkaClient(bootstrap_servers=bootstrap)
    try:
        await client.bootstrap()
        for leader in set(leaders.values()) - {NO_LEADER}:
            led = [partition for partition, node in leaders.items() if node == leader]
            response = await client.send(leader, DescribeProducersRequest({topic: led}))
            for _, rows, _ in response.topics:
                for partition, code, _, producers, _ in rows:
                    is_open = [
                        f"producer {id} (epoch {epoch}) since offset {since}"
                        for id, epoch, _, _, _, since, _ in producers
                        if since >= 0
                    ]
                    described[partition] = f"error {code}" if code else f"open: {', '.join(is_open) or 'nothing'}"
    except (KafkaError, OSError) as error:
        return described | dict.fromkeys(leaders, f"transactions not told: {error!r}")
    finally:
        await client.close()
    return described
