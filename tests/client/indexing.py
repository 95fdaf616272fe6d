"""The index of a topic, made without a service: what is committed goes through the sealer, its headers to the index topic."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from overlay.client import Client
from overlay.config.stream import StreamConfig
from overlay.index.skip.chunk_header import Header
from overlay.index.skip.contents import Contents
from overlay.index.skip.encode import encode
from overlay.index.skip.seal import Sealer
from overlay.kafka.admin import connect
from overlay.kafka.log_position import TopicPartition
from overlay.kafka.own_topics import index_topic
from overlay.kafka.range_reader import read_span
from overlay.match import Addressing
from tests.support.kafka import make_topic, produce_values


def seal(
    kafka: Mapping[str, str], stream: StreamConfig, sources: Iterable[TopicPartition], *, left: int = 0
) -> list[Header]:
    """The headers of some partitions, up to `left` offsets before their ends."""
    return asyncio.run(_seal(kafka, stream, sources, left))


async def _seal(
    kafka: Mapping[str, str], stream: StreamConfig, sources: Iterable[TopicPartition], left: int
) -> list[Header]:
    contents, found = Contents(stream), list[Header]()
    async with connect(kafka) as (admin, client):
        for source, (first, end) in (await admin.find_bounds(sources)).items():
            stop = max(first, end - left)
            headers = list[Header]()
            sealer, addressing = Sealer(contents, *source, first), Addressing(stream.subject.rule, stream.patterns)
            async for fetched in read_span(client, *source, first, stop):
                pieces = addressing.read(
                    *source, fetched.data, fetched.position, more=contents.fields, aborted=fetched.aborted
                )
                for piece in pieces:
                    headers += sealer.add(piece, fetched.batches, 0)
            headers += sealer.flush()
            found += (header for header in headers if header.next_offset <= stop)
    return found


def write_index(bootstrap: str, prefix: str, stream: str, headers: Sequence[Header], *, foreign: bool = False) -> str:
    """Write headers to the index topic of a stream, which is made; returns its name. `foreign`: among other records."""
    topic = make_topic(bootstrap, index_topic(prefix, stream))
    add_headers(bootstrap, topic, headers, foreign=foreign)
    return topic


def add_headers(bootstrap: str, topic: str, headers: Sequence[Header], *, foreign: bool = False) -> None:
    values = [encode(header)[1] for header in headers]
    produce_values(bootstrap, topic, [b"", b"\x01\x01who knows", *values, b"\x09" * 200] if foreign else values)


def index_stream(client: Client, bootstrap: str, name: str, partitions: int, *, left: int = 0) -> list[Header]:
    """Index a stream of one topic as it stands."""
    stream = client.find_stream(name)
    sources = [(stream.topic_names[0], partition) for partition in range(partitions)]
    headers = seal(client.kafka, stream, sources, left=left)
    write_index(bootstrap, client.prefix, name, headers, foreign=True)
    return headers
