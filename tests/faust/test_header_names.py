"""Batches that aiokafka cannot read, and the same ones without the headers that are the reason."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from aiokafka.record.memory_records import MemoryRecords
from structlog.testing import capture_logs

import overlay
from overlay.faust.header_names import leave_out_names, mend_batch
from overlay.scan.codec import Arena
from overlay.scan.rows import Row, read_rows
from tests.faust.workers import FaustApp, end_all
from tests.oracle.batches import Header, Record
from tests.support.batches import build, end_marker
from tests.support.kafka import NewTopicFixture
from tests.support.raw import send_batch
from tests.support.waiting import wait_until
from tests.worker.scenes import Scene, serve

GOOD: list[Header] = [(b"to", b"a"), (b"\xc3\xa9", None)]
BAD: list[Header] = [(b"\xff", b"x"), *GOOD, (b"\xed\xa0\x80", None)]
ROWS = [Record(7, 1_000, b"k", b"v", GOOD), Record(9, 1_003, None, None, BAD), Record(10, 990, b"", b"x" * 300, [])]


def read_by_aiokafka(data: bytes) -> list[tuple[Any, ...]]:
    found, records = [], MemoryRecords(data)
    while records.has_next():
        batch = records.next_batch()
        assert batch.validate_crc()
        found += [(each.offset, each.timestamp, each.key, each.value, list(each.headers)) for each in batch]
    return found


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("log_append_time", [False, True])
def test_a_mended_batch_has_all_but_those_headers(codec: int, log_append_time: bool) -> None:
    wanted: dict[str, Any] = {"base_offset": 5, "log_append_time": log_append_time, "last_offset_delta": 8}
    batch = build(ROWS, codec=codec, transactional=True, producer_id=77, producer_epoch=3, base_sequence=4, **wanted)
    with pytest.raises(Exception, match=r"utf-8|Unicode"):
        read_by_aiokafka(batch)
    mended, counts = mend_batch(batch)
    assert counts == {9: 2}
    good = [(name.decode(), value) for name, value in GOOD]
    times = [1_003] * 3 if log_append_time else [1_000, 1_003, 990]
    assert read_by_aiokafka(mended) == [
        (7, times[0], b"k", b"v", good), (9, times[1], None, None, good), (10, times[2], b"", b"x" * 300, [])
    ]  # fmt: skip
    # all that readers of transactions go by is as before: ids, sequences, offsets, flags
    assert mended[23:61] == batch[23:61]
    assert (mended[21:23], mended[:8]) == (bytes([batch[21], batch[22] & ~7]), batch[:8])


@pytest.mark.parametrize(
    "batch", [build(ROWS[:1]), end_marker(3, 77, commit=True), build(ROWS, crc=0), build(ROWS, payload=b"\xff" * 40)]
)
def test_other_batches_stay_as_they_are(batch: bytes) -> None:
    assert mend_batch(batch) == (batch, {})


async def test_fetch_responses_are_mended() -> None:
    sound, bad, cut = build(ROWS[:1]), build(ROWS), build(ROWS)[:40]
    response = SimpleNamespace(
        API_KEY=1, topics=[("t", [(0, 0, 11, sound + bad + cut), (1, 0, 11, sound), (2, 0, 9, None)])]
    )
    other = SimpleNamespace(API_KEY=3)

    class Client:
        async def send(self, node_id: int, request: Any, **options: Any) -> Any:
            return response if node_id else other

    client = cast(Any, Client())
    leave_out_names(client)
    request = SimpleNamespace(topics=[("t", [(0, 0, 1), (1, 0, 1), (2, 0, 1)])])
    with capture_logs() as logs:
        assert (await client.send(1, request, group=1)) is response
        assert (await client.send(0, SimpleNamespace())) is other
    ((_, parts),) = response.topics
    assert [part[:-1] for part in parts] == [(0, 0, 11), (1, 0, 11), (2, 0, 9)]
    assert parts[0][-1] == sound + mend_batch(bad)[0] + cut
    assert [part[-1] for part in parts[1:]] == [sound, b""]
    assert [(entry["topic"], entry["partition"], entry["offset"]) for entry in logs] == [("t", 0, 9)]


def test_an_application_gets_the_record_without_that_header(
    scene: Scene, new_topic: NewTopicFixture, tmp_path: Path
) -> None:
    topic, now = new_topic(), int(time.time() * 1000)
    scene.add_stream("S", topic, properties={"doubled": {"type": "long", "from": "{header:to}"}})
    scene.add_consumer("S", "c", "t.>", ack_policy="explicit", ack_wait="60s", deliver_group=scene.prefix)
    headers: list[Header] = [(b"\xff\xfe", b"x"), (b"to", b"1")]
    batch = build([Record(number, now, b"k", b"%d" % number, headers if number == 1 else []) for number in range(3)])
    app = FaustApp(scene.prefix, scene.bootstrap, scene.folder, "c", "each", tmp_path)
    with serve(scene), overlay.open(scene.folder) as client:
        assert send_batch(scene.bootstrap, topic, batch) == 0
        try:
            app.start()
            found = wait_until(app.read, 120, "the message is recorded")
            wait_until(lambda: client.control.info("S", "c").ack_floor.stream_seq == 2, 60, "it is acked")
        finally:
            end_all(app)
    assert [(line["value"], line["subject"]) for line in found] == [("1", "t.1")]


def test_rows_are_the_same_but_for_those_headers() -> None:
    rows = [
        list(read_rows(np.frombuffer(each, np.uint8), arena=Arena()))
        for each in (build(ROWS), mend_batch(build(ROWS))[0])
    ]
    assert all(isinstance(row, Row) for row in rows[1])
    assert [row._replace(headers=[]) for row in rows[0] if isinstance(row, Row)] == [
        row._replace(headers=[]) for row in rows[1] if isinstance(row, Row)
    ]
