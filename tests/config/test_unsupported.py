from __future__ import annotations

from pathlib import Path

import pytest

from overlay.config.consumer import ConsumerConfig, FilterConfig
from overlay.config.unsupported import find_unsupported
from tests.config.folders import CONSUMER, load_files

ASKS = {
    "ack_wait": "5s",
    "max_deliver": "3",
    "backoff": "[1s]",
    "replay_policy": "original",
    "rate_limit_bps": "8000",
    "sample_freq": '"10%"',
    "flow_control": "true\nidle_heartbeat: 1s",
    "headers_only": "true",
    "max_batch": "3",
    "max_expires": "1s",
    "max_bytes": "100",
    "deliver_group": "g",
    "idle_heartbeat": "1s",
    "inactive_threshold": "1m",
    "num_replicas": "1",
    "mem_storage": "true",
    "sourcing": "true",
    "pause_until": "2099-01-01T00:00:00Z",
    "filter.values": "[a]",
    "filter.match_unfiltered": "true",
    "dead_letter": "dead",
    "nak_delay_frees_pending": "true",
    "interest": "group",
    "max_ack_pending": "-1",
}

SUPPORTED = {
    "description": "d",
    "metadata": "{a: b}",
    "deliver_policy": "last_per_subject\nfilter_subject: flights.>",
    "opt_start_seq": "7\ndeliver_policy: by_start_sequence",
    "opt_start_time": "2026-01-01T00:00:00Z\ndeliver_policy: by_start_time",
    "output": "{partitions: 3, partition_by: subject, timestamps: source, headers: full, config: {retention.ms: 1}}",
    "delivery": "at_least_once",
    "on_undeliverable": "stop",
    "replay_policy": "instant",
    "headers_only": "false",
    "priority_policy": "none",
    "max_deliver": "-1",
    "filter": "{sql: a = '1'}",
}


@pytest.mark.parametrize(("field", "value"), ASKS.items())
def test_what_comes_later_is_refused_by_name(tmp_path: Path, field: str, value: str) -> None:
    outer, _, inner = field.partition(".")
    line = f"{outer}: {{{inner}: {value}}}" if inner else f"{outer}: {value}"
    loaded = load_files(tmp_path, {"consumers/late.yaml": f"{CONSUMER}{line}\n"})
    assert loaded.consumers == {}
    lines = [str(problem) for problem in loaded.problems if problem.place.line == 5]
    assert any(f" {field}" in line and "is not supported yet" in line for line in lines), loaded.problems


@pytest.mark.parametrize(("field", "value"), SUPPORTED.items())
def test_what_works_now_loads(tmp_path: Path, field: str, value: str) -> None:
    loaded = load_files(tmp_path, {"consumers/late.yaml": f"{CONSUMER}{field}: {value}\n"})
    assert loaded.problems == ()


@pytest.mark.parametrize("policy", ["explicit", "all"])
def test_acks_come_later(tmp_path: Path, policy: str) -> None:
    (problem,) = load_files(tmp_path, {"consumers/c.yaml": CONSUMER.replace("none", policy)}).problems
    assert f"c.yaml:4:13: ack_policy: ack_policy {policy}" in str(problem)
    assert "is not supported yet. Write ack_policy: none" in str(problem)


def test_the_default_policy_is_refused_as_such(tmp_path: Path) -> None:
    text = CONSUMER.replace("ack_policy: none\n", "")
    (problem,) = load_files(tmp_path, {"consumers/c.yaml": text}).problems
    assert "the default, is not supported yet" in str(problem)


def test_pull_and_ephemeral_consumers_come_later() -> None:
    pull = ConsumerConfig.model_validate({"stream": "S", "name": "c"})
    assert [path for path, _ in find_unsupported(pull)] == [("durable_name",), ("deliver_subject",), ("ack_policy",)]


def test_jetstreams_errors_come_before_not_supported(tmp_path: Path) -> None:
    (problem,) = load_files(tmp_path, {"consumers/c.yaml": CONSUMER + "max_waiting: 1\nheaders_only: true\n"}).problems
    assert problem.code == 10080


def test_every_field_is_carried_or_refused() -> None:
    """A field that neither list knows would be ignored silently."""
    carried = {"stream", "durable_name", "name", "deliver_subject", "filter_subject", "filter_subjects", *SUPPORTED}
    refused = {
        *(field for field in ASKS if "." not in field),
        "ack_policy",
        "max_waiting",
        "direct",
        "priority_policy",
        "priority_groups",
        "priority_timeout",
    }
    assert set(ConsumerConfig.model_fields) == carried | refused
    own = {field.removeprefix("filter.") for field in ASKS if field.startswith("filter.")}
    assert set(FilterConfig.model_fields) == {"sql", "properties"} | own
