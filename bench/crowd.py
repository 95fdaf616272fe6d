"""Many consumers of the orders of many customers: what they want, and the config folder that defines them."""

from __future__ import annotations

import json
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.orders import STREAM, Orders, name_customer
from bench.outputs import delete_topic, make_topic
from bench.service import draw_prefix, run_service, write_files

Wants = Mapping[str, object]
"""The fields of a consumer's file that say what it wants."""

ALL: Mapping[str, Wants] = {"all": {"filter_subject": "orders.>"}}
"""One consumer of all orders."""
READY_S = 600.0
"""Seconds in which thousands of consumers must be ready."""
ANSWER_S = 60.0


@dataclass(frozen=True, slots=True)
class Crowd:
    """A config folder, the URL at which its service answers, the prefix of the service's own topics, and the output topics."""

    folder: Path
    url: str
    prefix: str
    outputs: tuple[str, ...]

    def run(self) -> AbstractContextManager[int]:
        """`overlay run` in a process of its own, ready within the block; the id of the process."""
        return run_service(self.folder, self.url, READY_S)

    def count_served(self) -> int:
        """Return how many consumers the service serves."""
        with urllib.request.urlopen(f"{self.url}/consumers", timeout=ANSWER_S) as answer:
            consumers: list[dict[str, Any]] = json.load(answer)
        return sum(each["state"] in ("running", "catching up") for each in consumers)


def list_each(customers: int) -> dict[str, Wants]:
    """Return a consumer for each customer, with the customer's literal subject."""
    return {name: {"filter_subject": f"orders.{name}"} for name in map(name_customer, range(customers))}


@contextmanager
def make_crowd(orders: Orders, consumers: Mapping[str, Wants], outputs: int, shards: int = 1) -> Iterator[Crowd]:
    """The folder of these consumers, which share so many new output topics in turns; all is deleted after the block.
    `shards`: of the service.
    """
    with ExitStack() as closing:
        topics = tuple(make_topic(orders.bootstrap, "out") for _ in range(outputs))
        for topic in topics:
            closing.callback(delete_topic, orders.bootstrap, topic)
        files: dict[str, object] = {"streams/orders.yaml": orders.describe_stream()}
        for number, (name, wants) in enumerate(consumers.items()):
            files[f"consumers/{name}.yaml"] = {"stream": STREAM} | describe(name, wants, topics[number % outputs])
        folder = Path(closing.enter_context(tempfile.TemporaryDirectory(prefix="bench-overlay-")))
        prefix = draw_prefix()
        yield Crowd(folder, write_files(folder, orders.bootstrap, files, prefix, shards), prefix, topics)


def describe(name: str, wants: Wants, output: str) -> dict[str, object]:
    """Return the fields of a consumer without acks, but for its stream."""
    return {"durable_name": name, "deliver_subject": output, "ack_policy": "none", **wants}
