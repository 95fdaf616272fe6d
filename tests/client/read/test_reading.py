"""The life of a reading: in a loop, left early, forgotten, at the interpreter's exit, and with a reader that is slow."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

import overlay
from overlay.client import Client, Progress, Reading
from overlay.client.read.reading import ROOM
from overlay.client.read.row_filter import PART_BYTES
from overlay.errors import SourceChanged
from overlay.inspect.reading import TopicNotFound
from overlay.kafka.fetcher import PARTITION_BYTES
from tests.support.kafka import NewTopicFixture, SureProducer, make_topic
from tests.support.service import write_service_file
from tests.support.waiting import wait_until

COUNT, SIZE = 60_000, 1_000


@pytest.fixture(scope="module")
def large(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """60 MB that do not compress away, in small batches."""
    topic = make_topic(bootstrap, f"large-{tmp_path_factory.getbasetemp().name}")
    producer = SureProducer(bootstrap, {"queue.buffering.max.messages": COUNT, "linger.ms": 20})
    for _ in range(COUNT):
        producer.produce(topic, b"x" * SIZE)
    assert producer.flush(60) == 0
    return topic


@pytest.fixture
def client(bootstrap: str) -> Client:
    return overlay.open(bootstrap=bootstrap)


def is_reading() -> bool:
    return any(thread.name == "overlay-read" for thread in threading.enumerate())


async def test_in_a_running_loop(client: Client, large: str) -> None:
    assert pa.table(client.read(topic=large, columns=["offset"]))["offset"].to_pylist() == list(range(COUNT))


def test_left_early(client: Client, large: str) -> None:
    for batch in client.read(topic=large, follow=True):
        assert batch.num_rows
        break
    gc.collect()
    assert not is_reading()


def test_closed_in_the_middle(client: Client, large: str) -> None:
    reading = client.read(topic=large)
    next(reading)
    reading.close()
    reading.close()
    assert not is_reading() and list(reading) == []


def test_closed_while_the_next_batch_is_in_the_making(bootstrap: str, large: str, tmp_path: Path) -> None:
    """The next reading of the stream has the same buffers: the earlier one may not write to them any more."""
    write_service_file(tmp_path, bootstrap)
    (tmp_path / "streams").mkdir()
    (tmp_path / "streams" / "s.yaml").write_text(f"name: S\ntopics: [{large}]\nsubject: {{template: s}}\n")
    client = overlay.open(tmp_path)
    for _ in range(40):
        with client.read("S", columns=["value", "offset"]) as reading:
            assert all(set(next(reading)["value"].to_pylist()) == {b"x" * SIZE} for _ in range(3))
    assert pa.table(client.read("S", columns=["offset"]))["offset"].to_pylist() == list(range(COUNT))


def test_closed_by_another_thread(client: Client, new_topic: NewTopicFixture) -> None:
    reading = client.read(topic=new_topic(), follow=True)
    found: list[pa.RecordBatch] = []
    waiting = threading.Thread(target=lambda: found.extend(reading))
    waiting.start()
    wait_until(lambda: reading.progress.total is None and is_reading(), 10, "it follows")
    reading.close()
    waiting.join(10)
    assert not waiting.is_alive() and found == []


def test_closed_before_it_began(client: Client, large: str) -> None:
    client.read(topic=large).close()
    assert not is_reading()


def test_an_error_ends_it(client: Client) -> None:
    reading = client.read(topic="there-is-no-such-topic")
    with pytest.raises(TopicNotFound):
        next(reading)
    assert list(reading) == [] and not is_reading()


def test_an_error_at_the_beginning_passes_through_arrow(client: Client) -> None:
    """Arrow's stream knows errors as text only, so what is known before the first batch is raised ahead of it."""
    for take in (pa.table, pa.RecordBatchReader.from_stream, Reading.to_table):
        with pytest.raises(TopicNotFound, match="there-is-no-such-topic"):
            take(client.read(topic="there-is-no-such-topic"))
    assert not is_reading()


class Torn:
    """Connections whose reading ends with an error after one batch."""

    batch = pa.record_batch({"offset": pa.array([1, 2], pa.int64())})

    def run(self, work: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
        asyncio.run(work(None))

    @classmethod
    async def read(cls, _: object) -> AsyncIterator[pa.RecordBatch]:
        yield cls.batch
        raise SourceChanged("the topic is another one")

    def open(self) -> Reading:
        return Reading(cast(Any, self), cast(Any, self.read), self.batch.schema, Progress())


def test_an_error_after_the_first_batch() -> None:
    reading = Torn().open()
    with pytest.raises(pa.ArrowInvalid, match="the topic is another one"):
        pa.table(reading)
    assert isinstance(reading.error, SourceChanged)
    with pytest.raises(SourceChanged):
        Torn().open().to_table()
    with Torn().open() as reading:
        assert next(reading) == Torn.batch and reading.error is None


def test_a_table_of_what_is_left(client: Client, large: str) -> None:
    with client.read(topic=large, columns=["offset"]) as reading:
        taken = next(reading)["offset"].to_pylist()
        assert taken + reading.to_table()["offset"].to_pylist() == list(range(COUNT))
    assert client.read(topic=large, columns=[]).to_table().num_rows == COUNT


def test_a_slow_reader_holds_the_fetcher_back(client: Client, large: str) -> None:
    """What is read ahead: the channel, a part in the making, and what one fetch brings."""
    with client.read(topic=large, columns=["value", "offset"]) as reading:
        first = next(reading)
        settled = _settle(reading)
        # a part may be a slice over its bound, a fetch is worked through part by part
        bound = (ROOM + 3) * (PART_BYTES + PARTITION_BYTES) // SIZE
        assert settled < bound < COUNT
        offsets = first["offset"].to_pylist()
        for batch in reading:
            offsets += batch["offset"].to_pylist()
    assert offsets == list(range(COUNT))


def _settle(reading: Reading) -> int:
    """Records scanned once no more are."""
    seen = [-1]

    def rests() -> bool:
        before = seen[0]
        seen[0] = reading.progress.scanned
        time.sleep(0.2)  # long enough to scan all of it
        return seen[0] > 0 and before == reading.progress.scanned

    wait_until(rests, 30, "the reading rests")
    return reading.progress.scanned


@pytest.mark.parametrize("ending", ["", "raise SystemExit(3)"])
def test_at_the_interpreter_s_exit(bootstrap: str, large: str, ending: str) -> None:
    """A reading that is still referenced neither hangs nor complains."""
    script = f"""
import overlay
reading = overlay.open(bootstrap={bootstrap!r}).read(topic={large!r}, follow=True)
print(next(reading).num_rows > 0)
{ending}
"""
    command = [sys.executable, "-W", "error", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (3 if ending else 0, "True\n", "")


class Lines:
    """Connections to nothing, for readings that make their batches themselves."""

    def run(self, work: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
        asyncio.run(work(None))


def make_reading(*items: int | Exception, go_on: bool = False) -> Reading:
    """A reading of batches that have one number each, or that raises; with `go_on` it waits at its end."""

    async def read(_: object) -> AsyncIterator[pa.RecordBatch]:
        for item in items:
            if isinstance(item, Exception):
                raise item
            yield pa.record_batch({"n": [item]})
        if go_on:
            await asyncio.Event().wait()

    return Reading(cast(Any, Lines()), cast(Any, read), pa.schema([("n", pa.int64())]), Progress())


def test_a_notebook_shows_the_next_records_and_takes_none() -> None:
    with make_reading(1, 2) as reading:
        first = reading._repr_html_()
        assert ">1</td>" in first and reading._repr_html_() == first
        assert [batch["n"][0].as_py() for batch in reading] == [1, 2]
        assert "at its end" in reading._repr_html_()


def test_a_notebook_at_the_end_of_a_reading() -> None:
    reading = make_reading()
    assert "at its end, with 0 records" in reading._repr_html_()
    assert list(reading) == []


def test_an_error_that_a_notebook_has_shown_is_raised_all_the_same() -> None:
    reading = make_reading(SourceChanged("the <b>topic</b> is gone"))
    assert "SourceChanged: the &lt;b&gt;topic&lt;/b&gt; is gone" in reading._repr_html_()
    with pytest.raises(SourceChanged):
        next(reading)
    assert isinstance(reading.error, SourceChanged) and list(reading) == []


def test_a_notebook_does_not_wait_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overlay.client.read.reading.GLANCE_S", 0.01)
    with make_reading(go_on=True) as reading:
        assert "no record yet" in reading._repr_html_()


def test_records_that_a_notebook_has_shown_are_dropped_by_close() -> None:
    reading = make_reading(1, go_on=True)
    assert ">1</td>" in reading._repr_html_()
    reading.close()
    assert list(reading) == []


def test_a_notebook_shows_a_reading_that_another_loop_has() -> None:
    with make_reading(go_on=True) as reading, reading._turn:
        assert "another loop iterates" in reading._repr_html_()
