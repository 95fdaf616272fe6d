from __future__ import annotations

from pathlib import Path

import pytest

from overlay.config.consumer import ConsumerConfig, FilterConfig
from tests.config.folders import CONSUMER, load_files

CARRIED = {
    "description": "d",
    "metadata": "{a: b}",
    "deliver_policy": "last_per_subject\nfilter_subject: flights.>",
    "opt_start_seq": "7\ndeliver_policy: by_start_sequence",
    "opt_start_time": "2026-01-01T00:00:00Z\ndeliver_policy: by_start_time",
    "output": "{partitions: 3, partition_by: subject, timestamps: source, headers: full, config: {retention.ms: 1}}",
    "delivery": "at_least_once",
    "on_undeliverable": "dead_letter\ndead_letter: dead",
    "replay_policy": "instant",
    "headers_only": "true",
    "ack_wait": "5s",
    "backoff": "[1s]",
    "rate_limit_bps": "8000",
    "sourcing": "true",
    "flow_control": "true\nidle_heartbeat: 1s",
    "deliver_group": "g",
    "idle_heartbeat": "1s",
    "inactive_threshold": "1m",
    "num_replicas": "1",
    "mem_storage": "true",
    "pause_until": "2099-01-01T00:00:00Z",
    "dead_letter": "dead",
    "nak_delay_frees_pending": "true",
    "interest": "always",
    "engine": "spark",
    "max_ack_pending": "-1",
    "priority_policy": "none",
    "max_deliver": "3",
    "filter": "{sql: a = '1'}",
}

PULL = ("ack_policy", "max_waiting", "max_batch", "max_expires", "max_bytes", "priority_groups", "priority_timeout")


@pytest.mark.parametrize(("field", "value"), CARRIED.items())
def test_what_works_now_loads(tmp_path: Path, field: str, value: str) -> None:
    loaded = load_files(tmp_path, {"consumers/late.yaml": f"{CONSUMER}{field}: {value}\n"})
    assert loaded.problems == ()


@pytest.mark.parametrize("policy", ["explicit", "all", "none", "flow_control"])
def test_policies(tmp_path: Path, policy: str) -> None:
    text = CONSUMER.replace("ack_policy: none", f"ack_policy: {policy}")
    assert load_files(tmp_path, {"consumers/c.yaml": text}).problems == ()


@pytest.mark.parametrize("share", ["0", "10%", "100%", "+100"])
def test_explicit_acks_are_sampled(tmp_path: Path, share: str) -> None:
    text = CONSUMER.replace("ack_policy: none", f'ack_policy: explicit\nsample_freq: "{share}"')
    assert load_files(tmp_path, {"consumers/c.yaml": text}).problems == ()


def test_pull_consumers(tmp_path: Path) -> None:
    text = "stream: FLIGHTS\ndurable_name: c\nack_policy: explicit\nmax_batch: 5\nmax_expires: 1s\nmax_bytes: 100\n"
    assert load_files(tmp_path, {"consumers/c.yaml": text}).problems == ()


@pytest.mark.parametrize("policy", ["overflow", "pinned_client\npriority_timeout: 5s", "prioritized"])
def test_priority_groups(tmp_path: Path, policy: str) -> None:
    text = f"stream: FLIGHTS\ndurable_name: c\npriority_groups: [g]\npriority_policy: {policy}\n"
    assert load_files(tmp_path, {"consumers/c.yaml": text}).problems == ()


def test_ephemeral_consumers(tmp_path: Path) -> None:
    text = CONSUMER.replace("durable_name: late", "name: late")
    loaded = load_files(tmp_path, {"consumers/c.yaml": text})
    assert (loaded.problems, list(loaded.consumers)) == ((), [("FLIGHTS", "late")])


def test_direct_consumers_are_ephemeral(tmp_path: Path) -> None:
    loaded = load_files(
        tmp_path, {"consumers/c.yaml": CONSUMER.replace("durable_name: late", "name: late") + "direct: true\n"}
    )
    assert (loaded.problems, loaded.consumers["FLIGHTS", "late"].direct) == ((), True)


def test_flow_control_acks_want_one_partition(tmp_path: Path) -> None:
    """The reader of one of several partitions would ack messages of the others."""
    text = CONSUMER.replace("ack_policy: none", "ack_policy: flow_control")
    loaded = load_files(tmp_path, {"consumers/c.yaml": text})
    assert loaded.problems == () and loaded.consumers["FLIGHTS", "late"].flow_control
    (problem,) = load_files(tmp_path, {"consumers/c.yaml": text + "output: {partitions: 3}\n"}).problems
    assert problem.field == "output.partitions" and "write 1" in str(problem)


def test_jetstreams_errors_come_first(tmp_path: Path) -> None:
    (problem,) = load_files(tmp_path, {"consumers/c.yaml": CONSUMER + "max_waiting: 1\nheaders_only: true\n"}).problems
    assert problem.code == 10080


def test_every_field_is_carried() -> None:
    """A field that is not listed here would be ignored silently."""
    carried = {
        "stream",
        "durable_name",
        "name",
        "direct",
        "deliver_subject",
        "filter_subject",
        "filter_subjects",
        "sample_freq",
        *CARRIED,
        *PULL,
    }
    assert set(ConsumerConfig.model_fields) == carried
    assert set(FilterConfig.model_fields) == {"sql", "properties", "values", "match_unfiltered"}
