"""Which consumer a name means: those of the files, and those that were made by request."""

from __future__ import annotations

import traceback
from dataclasses import replace
from pathlib import Path

import pytest

from overlay.config import ConsumerConfig, Loaded, load
from overlay.kafka.properties import Properties
from spark import output
from spark.datasource import OverlaySource
from spark.output import UnknownConsumer, find_output
from tests.spark.deliveries import write_folder


def make(name: str, stream: str = "S", topic: str = "out") -> ConsumerConfig:
    return ConsumerConfig(stream=stream, durable_name=name, deliver_subject=topic)


@pytest.fixture
def loaded(tmp_path: Path) -> Loaded:
    return load(write_folder(tmp_path / "config", "localhost:1", "nowhere"))


def define(monkeypatch: pytest.MonkeyPatch, found: list[ConsumerConfig] | None) -> None:
    def read(files: Loaded, kafka: Properties) -> list[ConsumerConfig] | None:
        return [*files.consumers.values(), *found] if found is not None else None

    monkeypatch.setattr(output, "read_consumers", read)


def test_a_consumer_made_by_request_is_found(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    define(monkeypatch, [make("asked", topic="asked-out"), make("elsewhere", "T")])
    assert find_output(loaded, "asked", by_request=True).topic == "asked-out"
    with pytest.raises(UnknownConsumer, match=r"no consumer 'askde'\. Did you mean asked\? There is asked, c$"):
        find_output(loaded, "askde", by_request=True)
    with pytest.raises(UnknownConsumer, match=r"There is asked, c$"):  # no file describes stream T
        find_output(loaded, "elsewhere", by_request=True)


def test_a_pull_consumer_is_left_to_the_data_source(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    """The data source knows the consumers of files alone."""
    define(monkeypatch, [ConsumerConfig(stream="S", durable_name="asked")])
    folder = Path(loaded.files[""].file).parent
    read = f'spark.read.format("overlay").option("config", "{folder}").option("consumer", "asked").load()'
    export = f"`overlay consumer export S asked --out {folder / 'consumers' / 'asked.yaml'}`"
    what = "'asked' of stream 'S' is a pull consumer: it has no output topic to read"
    message = f"{what}. What its filters accept is read by {read}"
    with pytest.raises(UnknownConsumer) as told:
        find_output(loaded, "asked", by_request=True)
    assert str(told.value) == f"{message}, once {export} has written its file"
    filed = ConsumerConfig(stream="S", durable_name="asked")
    with pytest.raises(UnknownConsumer) as told:
        find_output(replace(loaded, consumers={filed.id: filed}), "asked", by_request=True)
    assert str(told.value) == message


def test_the_data_source_raises_without_its_own_frames(loaded: Loaded) -> None:
    """Spark shows the whole traceback above the message."""
    options = {"config": str(Path(loaded.files[""].file).parent), "consumer": "asked"}
    with pytest.raises(UnknownConsumer) as told:
        OverlaySource(options).schema()
    frames = [frame.name for frame in traceback.extract_tb(told.value.__traceback__)]
    assert frames[-2:] == ["schema", "_ask"] and told.value.__suppress_context__


def test_the_files_answer_where_the_control_topic_cannot(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    define(monkeypatch, None)
    with pytest.raises(UnknownConsumer, match=r"no consumer 'asked'\. There is c$"):
        find_output(loaded, "asked", by_request=True)


def test_kafka_is_not_asked_for_a_consumer_of_the_files_nor_for_one_of_a_job(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "read_consumers", None)
    assert find_output(loaded, "c", by_request=True).topic == "nowhere"
    with pytest.raises(UnknownConsumer, match=r"no consumer 'asked'\. There is c$"):
        find_output(loaded, "asked")
