"""The examples of docs/client.md run as they stand there."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import types
from pathlib import Path
from typing import Any

import pytest

from tests.support.kafka import NewTopicFixture
from tests.worker.scenes import Scene, produce, serve

PAGE = Path(__file__).resolve().parents[2] / "docs" / "client.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
COUNT = 20


class Enough(Exception):
    """The loops of the page have no end."""


def run(example: str, names: dict[str, Any]) -> None:
    """A block of the page; `await` may stand at its top level, as in a notebook."""
    code = compile(example, str(PAGE), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if code.co_flags & inspect.CO_COROUTINE:
        asyncio.run(types.FunctionType(code, names)())
    else:
        exec(code, names)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_examples(number: int, scene: Scene, new_topic: NewTopicFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = new_topic()
    scene.add_stream("FLIGHTS", topic, subject={"template": "flights.{header:to}.x"})
    scene.add_consumer("FLIGHTS", "late-jfk", "flights.JFK.>", ack_policy="explicit")
    scene.add_consumer("FLIGHTS", "work", "flights.JFK.>", ack_policy="explicit", deliver_subject="")
    produce(scene.bootstrap, topic, ["JFK"] * COUNT)
    monkeypatch.chdir(scene.folder.parent)
    seen: list[tuple[str, bytes]] = []

    def handle(subject: str, data: bytes) -> None:
        seen.append((subject, data))
        if len(seen) == COUNT:
            raise Enough

    example = EXAMPLES[number].replace('b"urgent"', 'b""')
    with serve(scene), pytest.raises(Enough):
        run(example, {"handle": handle})
    assert seen == [("flights.JFK.x", str(value).encode()) for value in range(COUNT)]
