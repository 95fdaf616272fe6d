"""The index of the skip bench, made by the product: `overlay run` over the two streams until both are indexed to the end."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.errors import PeerUnavailable
from bench.meters import STREAMS, Meters
from bench.peers.confluent_scan import open_consumer
from bench.service import run_service, write_files
from overlay.config import Loaded, load
from overlay.index.topic import Index
from overlay.kafka.admin import connect
from overlay.kafka.own_topics import index_topic
from overlay.waits import comes_true

DEADLINE_S = 300.0
LOOK_S = 0.5
READ_S = 10.0


@contextmanager
def index_meters(meters: Meters) -> Iterator[Loaded]:
    """A config folder whose streams are indexed. Raises PeerUnavailable when that takes too long."""
    with tempfile.TemporaryDirectory(prefix="bench-index-") as name:
        folder = Path(name)
        files: dict[str, object] = {
            f"streams/{stream.lower()}.yaml": {"name": stream, "topics": [meters.topic], **more}
            for stream, more in STREAMS.items()
        }
        # `overlay run` wants a consumer to serve; to this one nothing is ever delivered
        files["consumers/idle.yaml"] = {
            "stream": "METERS",
            "durable_name": "idle",
            "deliver_subject": f"{meters.topic}-idle",
            "filter_subject": "plant.none.none",
            "ack_policy": "none",
        }
        url = write_files(folder, meters.bootstrap, files)
        loaded = load(folder)
        with run_service(folder, url):
            if not comes_true(lambda: _are_indexed(loaded, meters), DEADLINE_S, pause_s=LOOK_S):
                raise PeerUnavailable(f"{meters.topic} is not indexed after {DEADLINE_S:.0f} s")
        yield loaded


def _are_indexed(loaded: Loaded, meters: Meters) -> bool:
    """Whether the index of every stream reaches the end of the topic."""
    indexes = [read_index(loaded, stream).of((meters.topic, 0)) for stream in STREAMS]
    return all(len(chunks) > 0 and int(chunks.next_offset[-1]) == meters.records for chunks in indexes)


def read_index(loaded: Loaded, stream: str) -> Index:
    """A stream's index as it stands."""

    async def read() -> Index:
        topic, index = index_topic(loaded.service.topics.prefix, stream), Index(loaded.streams[stream])
        async with connect(loaded.service.kafka) as (admin, client):
            if await admin.find_topics([topic], with_config=False):
                index.position, end = (await admin.find_bounds([(topic, 0)]))[topic, 0]
                await index.read(client, topic, end)
        return index

    return asyncio.run(read())


def read_values(loaded: Loaded, stream: str) -> list[bytes]:
    """The headers of a stream as its index topic holds them once it is compacted: the last one under each key."""
    topic, last = index_topic(loaded.service.topics.prefix, stream), dict[bytes, bytes]()
    with open_consumer(loaded.service.kafka["bootstrap.servers"], topic, **{"enable.partition.eof": True}) as consumer:
        while (message := consumer.poll(READ_S)) is not None:
            if message.error() is not None:
                break
            last[message.key() or b""] = message.value() or b""
    return [last[key] for key in sorted(last, key=lambda key: int(key.split()[-1]))]
