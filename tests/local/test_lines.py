"""Lines as records."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.local import lines
from overlay.local.lines import BadLine, LineFormat, LineReader, LineRecord, LineRules

RULES = LineRules(LineFormat.JSON, 3)


def read(text: bytes, rules: LineRules = RULES) -> list[LineRecord]:
    return [record for _, record in LineReader(rules).read("file", io.BytesIO(text))]


def read_one(members: Mapping[str, Any]) -> LineRecord:
    (record,) = read(json.dumps(members).encode())
    return record


def refuse(text: bytes, rules: LineRules = RULES) -> str:
    with pytest.raises(BadLine) as caught:
        read(text, rules)
    return str(caught.value)


def test_all_parts_of_a_record() -> None:
    line = {"key": "k", "value": "v", "headers": {"h": "1"}, "timestamp": "2026-01-31T12:00:00.123Z", "partition": 2}
    assert read_one(line) == LineRecord(b"v", b"k", (("h", b"1"),), 1769860800123, 2)
    assert read_one({"timestamp": 17}) == LineRecord(None, time_ms=17)


def test_what_is_left_out_or_null_is_not_there() -> None:
    nothing = dict.fromkeys(("key", "value", "headers", "timestamp", "partition", "value_base64"))
    assert read_one({}) == read_one(nothing) == LineRecord(None)


def test_json_values_stay_as_they_are_spelled() -> None:
    (record,) = read(b'{"key": 1.50, "value": {"b": 1e400,  "a": [1.0e1 ]}}')
    assert (record.key, record.value) == (b"1.50", b'{"b": 1e400,  "a": [1.0e1 ]}')
    assert read_one({"value": ""}).value == b""


def test_headers_may_come_twice_in_a_list() -> None:
    pairs = [{"name": "h", "value": "1"}, {"name": "h", "value": None}, {"name": "b", "value_base64": "/w=="}]
    assert read_one({"headers": pairs}).headers == (("h", b"1"), ("h", None), ("b", b"\xff"))


def test_bytes_come_in_base64() -> None:
    assert read_one({"key_base64": "AAE=", "value_base64": "/w=="}) == LineRecord(b"\xff", b"\x00\x01")


def test_a_line_of_overlay_read_is_a_record_without_its_place() -> None:
    place = {"subject": "s", "sequence": 9, "topic": "t", "offset": 8}
    assert read_one({**place, "partition": 1, "headers": [], "value": "v"}) == LineRecord(b"v", partition=1)
    assert "has no 'topic'" in refuse(b'{"topic": "t", "value": 1}')


def test_defaults_of_the_command_stand_in_front() -> None:
    rules = LineRules(LineFormat.JSON, 3, headers=(("source", b"file"),), partition=1)
    assert read(b'{"headers": {"h": "1"}}\n{"partition": 0}', rules) == [
        LineRecord(None, headers=(("source", b"file"), ("h", b"1")), partition=1),
        LineRecord(None, headers=(("source", b"file"),), partition=0),
    ]


def test_a_field_of_the_value_can_be_the_key() -> None:
    rules = LineRules(LineFormat.RAW, 1, key_field="customer.id")
    for spelled, key in ((b'"\\u00e9"', "\u00e9".encode()), (b"1.50", b"1.50"), (b"true", b"true"), (b"12", b"12")):
        value = b'{"a": 1, "customer": {"id": %s}}' % spelled
        assert read(value, rules) == [LineRecord(value, key)]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"customer": 1}', "the value has no such field, or null"),
        (b'{"customer": {"id": null}}', "the value has no such field, or null"),
        (b'{"customer": {"id": []}}', "the value has an object or an array there"),
        (b"[1]", "the value has no such field, or null"),
        (b"{", "the line is no JSON"),
    ],
)
def test_a_value_without_the_field_of_the_key_is_refused(line: bytes, reason: str) -> None:
    rules = LineRules(LineFormat.RAW, 1, key_field="customer.id")
    assert refuse(line, rules) == f"file:1:1: there is no key 'customer.id': {reason}"


def test_a_line_that_is_a_value_leads_to_the_options_for_values() -> None:
    assert refuse(b'{"id": 1, "total": 2}').endswith(
        "say --format raw, and --key-field NAME to take keys from a field of it"
    )


def test_raw_lines_are_values() -> None:
    rules = LineRules(LineFormat.RAW, 1, headers=(("h", b"1"),))
    assert read(b'{"a": 1}\n\xff \r\n', rules) == [
        LineRecord(b'{"a": 1}', headers=(("h", b"1"),)),
        LineRecord(b"\xff \r", headers=(("h", b"1"),)),
    ]


def test_a_key_stands_in_front_of_the_first_separator() -> None:
    rules = LineRules(LineFormat.RAW, 1, b"||")
    assert read(b"k||v||w\n||\n", rules) == [LineRecord(b"v||w", b"k"), LineRecord(b"", b"")]
    assert refuse(b"k||v\nk|v\n", rules) == "file:2:1: there is no key: '||' does not occur in it"


def test_blank_lines_are_counted_and_keep_their_number() -> None:
    reader = LineReader(RULES)
    places = [str(place) for place, _ in reader.read("file", io.BytesIO(b'\n{}\n \r\n{"key": "k"}'))]
    assert (places, reader.blank) == (["file:2:1", "file:4:1"], 2)


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        (b'{"value": {"a": 1}', "file:1:19: this is no JSON object: Expecting ','. Each record is one line"),
        (b"hello", "file:1:1: this is no JSON object: this is no object. If each line is a value by itself, say --format raw"),
        (b'{"order": 7}', "If each line is a value by itself, say --format raw"),
        (b'{"vlaue": 7}', "Did you mean value?"),
        (b'{"value": 7, "value": 8}', "file:1:1: value stands there twice"),
        (b'{"value": "\xff"}', "file:1:1: byte 12 is no UTF-8"),
        (b'{"value": NaN}', "NaN is no JSON"),
        (b'{"value": "\\ud800"}', "value has half of a surrogate pair"),
        (b'{"value": ' + b"[" * 100_000, "nested too deep"),
        (b'{"value": 1, "value_base64": "AA=="}', "value and value_base64 exclude each other"),
        (b'{"value_base64": "A"}', "value_base64: this is no base64"),
        (b'{"key_base64": 1}', "key_base64: this is no base64"),
        (b'{"headers": {"h": 1}}', "header h: write a text in double quotes, and not 1"),
        (b'{"headers": "h=1"}', "headers: write {"),
        (b'{"headers": [{"name": "h", "v": 1}]}', "headers: each of a list is"),
        (b'{"headers": [{"value": "1"}]}', "the name of a header is a text, and not None"),
        (b'{"timestamp": "yesterday"}', "timestamp: a time is RFC 3339"),
        (b'{"timestamp": 1.5}', "timestamp: write RFC 3339 or ms since 1970"),
        (b'{"timestamp": "1969-12-31T23:59:59Z"}', "timestamp: no time before"),
        (b'{"timestamp": 0}', "timestamp: no time before"),
        (b'{"partition": 3}', "partition: the topic has partitions 0 to 2, and not 3"),
        (b'{"partition": true}', "and not True"),
    ],
)  # fmt: skip
def test_faults_name_line_and_reason(line: bytes, wanted: str) -> None:
    assert wanted in refuse(line)
    assert refuse(b"{}\n" + line).startswith("file:2:")


def test_a_line_without_end_is_not_held_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_LINE", 10)
    assert "file:1:1: the line has more than" in refuse(b" " * 11)
    assert read(b"123456789\n", LineRules(LineFormat.RAW, 1)) == [LineRecord(b"123456789")]


_texts = st.none() | st.text(st.characters(codec="utf-8"), max_size=6)


@given(_texts, _texts, st.lists(st.tuples(st.text(st.characters(codec="utf-8"), max_size=4), _texts), max_size=3))
def test_texts_come_back(key: str | None, value: str | None, headers: list[tuple[str, str | None]]) -> None:
    found = read_one({"key": key, "value": value, "headers": [{"name": n, "value": v} for n, v in headers]})
    assert (found.key, found.value) == (encode(key), encode(value))
    assert found.headers == tuple((name, encode(text)) for name, text in headers)


def encode(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


@given(st.binary(max_size=8))
def test_any_bytes_come_back(value: bytes) -> None:
    assert read_one({"value_base64": base64.b64encode(value).decode()}).value == value
