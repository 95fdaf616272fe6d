"""Records of the control topic that are passed over, by reason."""

from __future__ import annotations

import json

import pytest

from overlay.control.records import (
    DEEPEST,
    MAX_KEY,
    MAX_VALUE,
    Misfit,
    Unreadable,
    read_definition,
    read_json,
    split_key,
)


@pytest.mark.parametrize(
    ("value", "misfit"),
    [
        (b" " * MAX_VALUE + b"{}", Misfit.SIZE),
        (b"\xff", Misfit.JSON),
        (b"[]", Misfit.JSON),
        (b'{"a": "\\ud800"}', Misfit.JSON),
        (b'{"a": ' + b"[" * 100_000, Misfit.JSON),
        (b'{"a": ' + b"[" * DEEPEST + b"]" * DEEPEST + b"}", Misfit.DEPTH),
        (b'{"v": 2}', Misfit.VERSION),
    ],
)
def test_values_that_are_no_records(value: bytes, misfit: Misfit) -> None:
    with pytest.raises(Unreadable) as caught:
        read_json(value)
    assert caught.value.misfit is misfit


def test_the_largest_value_is_read() -> None:
    text = "x" * (MAX_VALUE - len('{"a": ""}'))
    assert read_json(json.dumps({"a": text}).encode())["a"] == text


@pytest.mark.parametrize("key", [None, b"", b"zork S c", b"consumer S", b"request \xff", b"request " + b"i" * MAX_KEY])
def test_keys_of_others(key: bytes | None) -> None:
    with pytest.raises(Unreadable) as caught:
        split_key(key)
    assert caught.value.misfit is Misfit.KEY


@pytest.mark.parametrize("ends", ['{"t": ["id", [1e999]]}', '{"t": ["id", ["x"]]}', '{"t": []}', "[]", "7"])
def test_ends_that_are_no_offsets_are_of_another_form(ends: str) -> None:
    config = '{"durable_name": "c", "ack_policy": "explicit"}'
    value = f'{{"v": 1, "origin": "request", "created": "2026-01-31T12:00:00Z", "config": {config}, "ends": {ends}}}'
    with pytest.raises(Unreadable) as caught:
        read_definition(("S", "c"), value.encode())
    assert caught.value.misfit is Misfit.FORM
