"""Records as lines, read back."""

from __future__ import annotations

import base64
import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from overlay.client import SCHEMA
from overlay.view.lines import write_json, write_raw

TIME = 1_357_017_300_250
BINARY = st.binary(max_size=20) | st.text(max_size=20).map(lambda text: text.encode("utf-8", "surrogatepass"))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def make_batch(*records: dict[str, Any]) -> pa.RecordBatch:
    common = {"subject": "a.b", "sequence": 7, "topic": "t", "partition": 0, "offset": 6, "timestamp": TIME}
    empty: dict[str, Any] = {"key": None, "value": None, "headers": []}
    return pa.RecordBatch.from_pylist([common | empty | record for record in records], SCHEMA)


def read_back(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    raw = write_json(batch)
    assert raw.endswith(b"\n")
    return [json.loads(line) for line in raw.decode().removesuffix("\n").split("\n")]


def as_member(name: str, content: bytes | None) -> dict[str, Any]:
    try:
        return {name: None if content is None else content.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(content or b"").decode()}


@given(st.lists(st.tuples(st.none() | BINARY, st.none() | BINARY, st.lists(st.tuples(st.text(), st.none() | BINARY)))))
@example([(b"\xff", b"\n\x1b[2J", [("a", b"1"), ("a", None)])])
def test_one_line_each(records: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]]) -> None:
    headers = [[{"name": name, "value": value} for name, value in pairs] for _, _, pairs in records]
    rows = [{"key": key, "value": value, "headers": h} for (key, value, _), h in zip(records, headers, strict=True)]
    batch = make_batch({}, *rows).slice(1)  # the lists of a slice do not begin at 0
    if not records:
        assert write_json(batch) == b""
        return
    for found, (key, value, pairs) in zip(read_back(batch), records, strict=True):
        assert found.items() >= {"subject": "a.b", "sequence": 7, "topic": "t", "partition": 0, "offset": 6}.items()
        assert found["timestamp"] == "2013-01-01T05:15:00.250Z"
        assert found["headers"] == [{"name": name} | as_member("value", content) for name, content in pairs]
        assert found.items() >= as_member("key", key).items()
        if value is None or _as_json(value) is None:
            assert found.items() >= as_member("value", value).items()


def _as_json(value: bytes) -> object:
    try:
        return [json.loads(value.decode())]
    except (ValueError, RecursionError):
        return None


@given(JSON, st.sampled_from([None, 2]))
def test_json_values_are_values(document: Any, indent: int | None) -> None:
    (found,) = read_back(make_batch({"value": json.dumps(document, indent=indent).encode()}))
    assert found["value"] == document


@pytest.mark.parametrize(
    "text", ["1.10", "1e400", "123456789012345678901234567890", '{"b":1,"a":2,"b":3}', '"\\ud800"']
)
def test_json_values_stand_as_they_are(text: str) -> None:
    assert f'"value": {text}}}\n'.encode() in write_json(make_batch({"value": text.encode()}))


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", "'a'", "{", "\ufeff1", "[" * 100_000])
def test_what_is_nearly_json_is_a_text(text: str) -> None:
    (found,) = read_back(make_batch({"value": text.encode()}))
    assert found["value"] == text


def test_raw_values() -> None:
    batch = make_batch({"value": b"a"}, {"value": None}, {"value": b"\xff\n"})
    assert write_raw(batch) == b"a\n\n\xff\n\n"
