"""What a file with `engine: spark` may not ask for."""

from __future__ import annotations

from pathlib import Path

import pytest

from overlay.config.consumer import Engine
from tests.config.folders import CONSUMER, load_files

SPARK = CONSUMER + "engine: spark\n"


def test_a_consumer_of_spark_is_not_served(tmp_path: Path) -> None:
    other = CONSUMER.replace("late", "other")
    loaded = load_files(tmp_path, {"consumers/late.yaml": SPARK, "consumers/other.yaml": other})
    assert loaded.consumers["FLIGHTS", "late"].engine is Engine.SPARK
    assert list(loaded.served) == [("FLIGHTS", "other")]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("replay_policy: original\n", "replay_policy: write instant, or engine: service"),
        ("idle_heartbeat: 1s\nflow_control: true\n", "flow_control: is the service's. Leave it out"),
        ("dead_letter: given-up\n", "dead_letter: has a use only with on_undeliverable: dead_letter"),
        ("interest: always\n", "interest: has no meaning without acks. Leave it out"),
        ("inactive_threshold: 1h\n", "inactive_threshold: is the service's. Leave it out"),
    ],
)
def test_what_a_job_cannot_do_is_refused(tmp_path: Path, more: str, message: str) -> None:
    loaded = load_files(tmp_path, {"consumers/late.yaml": SPARK + more})
    found = next((str(problem) for problem in loaded.problems if message in str(problem)), "")
    # with the place of the field's value
    field = message.partition(":")[0]
    lines = (SPARK + more).splitlines()
    line = next(number for number, text in enumerate(lines, 1) if text.startswith(f"{field}:"))
    assert f"consumers/late.yaml:{line}:{len(field) + 3}: {message}" in found, loaded.problems
    assert not loaded.consumers


def test_what_ends_without_readers_is_refused(tmp_path: Path) -> None:
    """A job does not look at readers: neither a consumer nor its topic would ever end."""
    ephemeral = SPARK.replace("durable_name", "name")
    (problem,) = load_files(tmp_path, {"consumers/late.yaml": ephemeral}).problems
    assert (problem.field, "Write durable_name instead" in str(problem)) == ("name", True)
    (problem,) = load_files(tmp_path, {"consumers/late.yaml": SPARK + "output: {temporary: true}\n"}).problems
    assert (problem.field, problem.place.line) == ("output.temporary", 6)


def test_a_job_may_write_dead_letters(tmp_path: Path) -> None:
    loaded = load_files(
        tmp_path, {"consumers/late.yaml": SPARK + "dead_letter: given-up\non_undeliverable: dead_letter\n"}
    )
    assert not loaded.problems
    assert loaded.consumers["FLIGHTS", "late"].dead_letter_topic == "given-up"


def test_a_job_may_hold_back(tmp_path: Path) -> None:
    loaded = load_files(
        tmp_path, {"consumers/late.yaml": SPARK + "rate_limit_bps: 5\npause_until: 2030-01-01T00:00:00Z\n"}
    )
    assert not loaded.problems
    assert not loaded.consumers["FLIGHTS", "late"].needs_machine


def test_acks_are_the_service_s(tmp_path: Path) -> None:
    text = SPARK.replace("ack_policy: none\n", "")
    loaded = load_files(tmp_path, {"consumers/late.yaml": text})
    assert "ack_policy: acks are the service's. Write ack_policy: none" in str(loaded.problems[0])
