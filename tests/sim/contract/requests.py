"""Short ways to the requests of the contract's scripts, and to what matters of the answers."""

from __future__ import annotations

from typing import Any

from aiokafka.codec import lz4_encode
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.protocol.transaction import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)

from overlay.kafka.protocol import ListOffsetsRequest
from tests.oracle.batches import Record, parse
from tests.support.batches import Fields, build, encode_record

from .sides import CONCURRENT_TRANSACTIONS, Connection, Side

ALL = -1
LZ4 = 3
COMMITTED, UNCOMMITTED = 1, 0
Producer = tuple[int, int]
"""(producer id, epoch)"""


def make_batch(values: int | list[tuple[bytes | None, bytes | None]], timestamp: int, **fields: Any) -> bytes:
    """Return a batch of so many records, or of (key, value) pairs, a ms apart."""
    pairs = [(b"k", b"v%d" % i) for i in range(values)] if isinstance(values, int) else values
    records = [Record(i, timestamp + i, key, value) for i, (key, value) in enumerate(pairs)]
    if fields.get("codec") == LZ4:
        # Kafka decompresses what it is given, and takes only frames of independent blocks
        payload = b"".join(encode_record(record, 0, timestamp) for record in records)
        fields["section"] = lz4_encode(payload)
    return build(records, **fields)


def of_producer(producer: Producer, sequence: int, *, transactional: bool = False) -> dict[str, Any]:
    """Return the fields that make a batch a producer's."""
    own: Fields = {"producer_id": producer[0], "producer_epoch": producer[1], "base_sequence": sequence}
    return {**own, "transactional": transactional}


async def produce(
    connection: Connection,
    topic: str,
    batch: bytes,
    *,
    partition: int = 0,
    transactional_id: str | None = None,
    acks: int = ALL,
) -> tuple[int, int, int, int]:
    """Return (code, offset, timestamp, log start)."""
    answer = await connection.ask(ProduceRequest(transactional_id, acks, 5_000, [(topic, [(partition, batch)])]))
    code, *rest = answer.topics[0][1][0][1:]
    return (code, *rest)


async def fetch(
    connection: Connection,
    topic: str,
    offset: int,
    *,
    partition: int = 0,
    isolation: int = COMMITTED,
    wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    partition_bytes: int = 1 << 20,
) -> dict[str, Any]:
    """Return the fields of one partition's answer, with batches as (base, last, count, leader epoch, attributes)."""
    wanted = [(topic, [(partition, offset, partition_bytes)])]
    answer = await connection.ask(FetchRequest(wait_ms, min_bytes, max_bytes, isolation, wanted))
    return read_partition(answer.topics[0][1][0])


def read_partition(entry: Any) -> dict[str, Any]:
    """Return the fields of one partition's answer by name."""
    _, code, high, stable, start, aborted, _, data = entry
    batches = [
        (one.base_offset, one.last_offset, len(one.records), one.leader_epoch, one.attributes) for one in parse(data)
    ]
    return {
        "code": code,
        "high": high,
        "stable": stable,
        "start": start,
        "aborted": aborted,
        "size": len(data),
        "batches": batches,
        "data": data,
    }


async def note_fetch(side: Side, what: str, topic: str, offset: int, **more: Any) -> dict[str, Any]:
    """Fetch, and note all but the bytes and the ids of producers."""
    found = await fetch(side.main, topic, offset, **more)
    shown = {key: value for key, value in found.items() if key != "data"}
    if shown["aborted"] is not None:
        shown["aborted"] = [(side.alias("producer", id), first) for id, first in shown["aborted"]]
    side.note(what, shown)
    return found


async def list_offset(
    side: Side, topic: str, timestamp: int, *, committed: bool = True, partition: int = 0
) -> tuple[int, int, int, int]:
    """Return (code, timestamp, offset, leader epoch)."""
    answer = await side.main.ask(ListOffsetsRequest({topic: [partition]}, timestamp, committed=committed))
    _, code, found, offset, epoch, *_ = answer.topics[0][1][0]
    return code, found, offset, epoch


async def await_end(side: Side, topic: str, end: int) -> None:
    """Wait until the log of partition 0 ends at an offset, as when a marker is written after its transaction was decided."""

    async def find() -> int:
        return (await list_offset(side, topic, -1, committed=False))[2]

    side.note("end", await side.until(find, lambda found: found == end, 10.0))


# transactions


async def init_producer(side: Side, transactional_id: str | None, timeout_ms: int = 60_000) -> tuple[int, Producer]:
    """Return (code, producer). CONCURRENT_TRANSACTIONS is tried again."""
    if transactional_id is not None:
        await side.find_coordinator(transactional_id, 1)
    request = InitProducerIdRequest(transactional_id, timeout_ms)
    found = await side.coordinated(request, lambda answer: int(answer.error_code), also=[CONCURRENT_TRANSACTIONS])
    return found.error_code, (found.producer_id, found.producer_epoch)


async def add_partitions(
    side: Side, transactional_id: str, producer: Producer, topics: dict[str, list[int]], *, retried: bool = True
) -> list[Any]:
    """Return the codes by topic and partition; the ones of a transaction that still ends are tried again."""
    request = AddPartitionsToTxnRequest(transactional_id, *producer, list(topics.items()))
    again = [CONCURRENT_TRANSACTIONS] if retried else []
    found = await side.coordinated(request, lambda answer: int(answer.errors[0][1][0][1]), also=again)
    return sorted((topic, sorted(map(tuple, codes))) for topic, codes in found.errors)


async def add_offsets(side: Side, transactional_id: str, producer: Producer, group: str) -> int:
    request = AddOffsetsToTxnRequest(transactional_id, *producer, group)
    found = await side.coordinated(request, lambda answer: int(answer.error_code), also=[CONCURRENT_TRANSACTIONS])
    return int(found.error_code)


async def commit_offsets(
    side: Side, transactional_id: str, producer: Producer, group: str, offsets: dict[tuple[str, int], int]
) -> list[Any]:
    topics = [(topic, [(partition, offset, "")]) for (topic, partition), offset in offsets.items()]
    request = TxnOffsetCommitRequest(transactional_id, group, *producer, topics)
    found = await side.coordinated(request, lambda answer: int(answer.errors[0][1][0][1]))
    return [(topic, list(map(tuple, codes))) for topic, codes in found.errors]


async def end(side: Side, transactional_id: str, producer: Producer, *, commit: bool, retried: bool = True) -> int:
    """Return the code of EndTxn."""
    request = EndTxnRequest(transactional_id, *producer, commit)
    again = [CONCURRENT_TRANSACTIONS] if retried else []
    found = await side.coordinated(request, lambda answer: int(answer.error_code), also=again)
    return int(found.error_code)
