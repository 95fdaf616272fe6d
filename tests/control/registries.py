"""Registries without Kafka: a folder with stream S, and records of the control topic."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from overlay.config import ConsumerConfig, Loaded, ServiceConfig, StreamConfig, fill_defaults
from overlay.consumer.info import ConsumerInfo
from overlay.consumer.pulls import PullRequest, StatusText
from overlay.control.decide import Decision
from overlay.control.registry import Registry
from overlay.control.requests import Request, parse_request
from overlay.errors import FilePosition
from overlay.kafka.header_names import CORRELATION, REPLY_TOPIC
from overlay.output.record import Record
from overlay.replies.reply_address import ReplyRule

NOW = 1_800_000_000 * 10**9
PREFIX = "overlay"
RULE = ReplyRule(PREFIX, ("inbox",))


def make_config(name: str = "c", **fields: Any) -> ConsumerConfig:
    """A push consumer without acks, with its defaults."""
    given = {"stream": "S", "durable_name": name, "deliver_subject": f"out-{name}", "ack_policy": "none", **fields}
    return fill_defaults(ConsumerConfig.model_validate(given))


def make_files(*configs: ConsumerConfig, **requests: int) -> Loaded:
    """`requests`: the limits of that section."""
    service = ServiceConfig.model_validate({"kafka": {"bootstrap.servers": "localhost:1"}, "requests": requests})
    streams = {
        name: StreamConfig.model_validate({"name": name, "topics": ("source",), "subjects": ("t.>",)})
        for name in ("S", *sorted({config.stream for config in configs} - {"S"}))
    }
    files: dict[str | tuple[str, str], FilePosition] = {
        "": FilePosition("overlay.yaml"),
        "S": FilePosition("streams/s.yaml"),
    }
    files |= {config.id: FilePosition(f"consumers/{config.id[1]}.yaml") for config in configs}
    return Loaded(service, streams, {config.id: config for config in configs}, (), files)


def make_request(op: str, id: str = "r", **body: Any) -> Request:
    headers = {REPLY_TOPIC: b"inbox", CORRELATION: id.encode()}
    value = json.dumps({"v": 1, "op": op, **body}).encode()
    return parse_request(id, value, headers.get, NOW // 10**6, RULE)


def take(registry: Registry, *records: Record) -> None:
    """Have the registry read records, as they come back from the topic."""
    for record in records:
        registry.take(record.key, record.value, dict[str, bytes]().get, NOW // 10**6)


def read_error(decision: Decision) -> tuple[int, int, str]:
    """The code, JetStream's number and the text of a refusal."""
    assert decision.response is not None
    error = decision.response["error"]
    assert isinstance(error, dict)
    return error["code"], error["err_code"], error["description"]


@dataclass(slots=True)
class Worker:
    """A host that tells what it was given."""

    reports: dict[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)
    infos: dict[tuple[str, str], ConsumerInfo] = field(default_factory=dict)
    takes_pulls: bool = False
    owned: frozenset[int] = frozenset({0})
    count: int = 1
    pulled: list[tuple[tuple[str, str], PullRequest | StatusText, str]] = field(default_factory=list)

    def report_consumer(self, id: tuple[str, str]) -> Mapping[str, Any]:
        return self.reports.get(id, {})

    def report_stream(self, name: str) -> Mapping[str, Any]:
        return {"consumers": ["a", "b"], "state": "running"}

    def find_info(self, id: tuple[str, str]) -> ConsumerInfo | None:
        return self.infos.get(id)

    def pull(self, id: tuple[str, str], request: PullRequest | StatusText, reply: str) -> bool:
        self.pulled.append((id, request, reply))
        return self.takes_pulls
