"""Hostile inputs, drawn from valid ones: bytes that were changed, JSON whose values were replaced, and what grows."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

MOST = 4_096
"""Bytes of most inputs; small ones let more be tried."""
HOSTILE: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63 - 1, 2**63, -(2**63) - 1, 10**30, 10**400, 0.5, -0.0, 1e308, float("inf"),
    float("-inf"), float("nan"), "", "a", "\ud800", "é" * 300, "9" * 30, "9" * 5_000, "-", ".", "a.b", "a/b", "..", "*", ">",
    "$JS.ACK", "2026-01-31T12:00:00Z", "9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z", "1h", "1e9h", "10000000000000h",
    "overlay.state", "__consumer_offsets", [], {}, [[]], [{}], {"": {}}, [1, 2], [[1, 2]], [["t", 0, 1]], [None], {"v": 1},
)  # fmt: skip
"""Values that code may not expect."""
TOKENS = (
    b"[", b"]", b"{", b"}", b'"', b"\\", b",", b":", b"\x00", b"\xff", b"\xc3", b"\xed\xa0\x80", b"9", b"-", b"+", b".", b"e",
    b"\n", b"\t", b" ", b"&a ", b"*a", b"<<: ", b"!!int ", b"? ", b"- ", b"|", b"'", b"(", b")", b"%", b"_", b"not ", b" and ",
    b" in ", b" like ", b"0x", b"1e999", b"NaN", b"+ACK", b"-NAK", b"+NXT", b"$JS.ACK.", b"\\ud800", b"\\u0000",
    b"!!float ", b"!!bool ", b"!!null ", b"!!str ", b"!!map ", b"!!seq ", b"!!timestamp ", b"!a ", b"! ", b"\\UFFFFFFFF", b"_",
    b"%YAML 1.1\n---\n", b"12:30",
)  # fmt: skip
"""Bytes that mean something to some parser."""


class Source:
    """Draws inputs from samples."""

    def __init__(self, samples: Sequence[bytes], random: random.Random) -> None:
        self._samples, self._random = samples, random

    def draw(self) -> bytes:
        """Return the next input."""
        data = self._random.choice(self._samples)
        if self._random.random() < 0.5 and (changed := self._change_json(data)) is not None:
            data = changed
        for _ in range(self._random.choice((0, 0, 1, 1, 2, 4))):
            data = self._change(data)
        return data[: MOST if self._random.random() < 0.9 else 16 * MOST]

    def _change(self, data: bytes) -> bytes:
        draw = self._random
        at = draw.randint(0, len(data))
        match draw.randrange(6):
            case 0:  # cut off
                return data[:at]
            case 1:  # a byte changed
                return data[:at] + bytes([draw.randrange(256)]) + data[at + 1 :]
            case 2:  # a token put in, perhaps many times
                return data[:at] + draw.choice(TOKENS) * draw.choice((1, 1, 2, 50, 2_000)) + data[at:]
            case 3:  # a part repeated
                end = draw.randint(at, min(len(data), at + 40))
                return data[:end] + data[at:end] * draw.choice((1, 3, 200)) + data[end:]
            case 4:  # a part left out
                return data[:at] + data[draw.randint(at, len(data)) :]
            case _:  # the head of one and the end of another
                other = draw.choice(self._samples)
                return data[:at] + other[draw.randint(0, len(other)) :]

    def _change_json(self, data: bytes) -> bytes | None:
        """Return the input with some values replaced; None if it has no JSON in it."""
        begin = next((at for at in (data.find(b"{"), data.find(b"[")) if at >= 0), -1)
        try:
            value = json.loads(data[begin:]) if begin >= 0 else None
        except ValueError:
            return None
        if value is None:
            return None
        for _ in range(self._random.choice((1, 1, 1, 2, 5))):
            value = self._replace(value)
        return data[:begin] + json.dumps(value, separators=(",", ":")).encode()

    def _replace(self, value: Any) -> Any:
        """Return a value in which one part, or the whole, is another one."""
        draw = self._random
        if isinstance(value, dict) and value and draw.random() < 0.9:
            name = draw.choice(list(value))
            match draw.randrange(10):
                case 0:
                    return {key: part for key, part in value.items() if key != name}
                case 1:
                    return {**value, draw.choice(("x", "v", "", "\ud800", *value)): draw.choice(HOSTILE)}
            return {**value, name: self._replace(value[name])}
        if isinstance(value, list) and value and draw.random() < 0.9:
            at = draw.randrange(len(value))
            match draw.randrange(10):
                case 0:
                    return value[:at] + value[at + 1 :]
                case 1:
                    return [*value, *[value[at]] * draw.choice((1, 100))]
            return [*value[:at], self._replace(value[at]), *value[at + 1 :]]
        deep: Any = draw.choice(HOSTILE)
        for _ in range(draw.choice((0,) * 20 + (3, 60, 900))):
            deep = [deep] if draw.random() < 0.5 else {"a": deep}
        return deep
