"""A message with a value of every kind, and what expressions make of it row by row."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from overlay.filter.message import Value
from overlay.filter.parse import parse
from overlay.filter.rows import evaluate
from tests.filter import strategies as some

MESSAGE: dict[str, dict[str, Any]] = {
    "header": {"priority": 7},
    "properties": {
        "message_id": UUID("30313233-3435-3637-3839-616263646566"),
        "subject": "flights.JFK",
        "group-sequence": 10,
        "creation_time": datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC),
    },
    "application_properties": {
        "i": 5,
        "f": 1.2e6,
        "s": "London",
        "number": "2",
        "flag": True,
        "big": 9007199254740993,
        "max": 2**63 - 1,
        "u": 2**64 - 1,
        "nothing": None,
        "nan": float("nan"),
        "inf": float("-inf"),
        "list": [1],
        "bytes": b"\x00\xff",
        "time": datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC),
        "and": 1,
        "p.to": "x",
        "huge": 10**400,
    },
}


def ask(text: str, message: dict[str, dict[str, Any]] = MESSAGE, now: int = some.NOW) -> Value:
    return evaluate(parse(text), message, now)


def check(cases: dict[str, Value]) -> None:
    found = {text: ask(text) for text in cases}
    assert {text: (type(value), value) for text, value in found.items()} == {
        text: (type(value), value) for text, value in cases.items()
    }
