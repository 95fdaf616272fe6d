"""Records as lines for other programs: JSON objects, or the bare values.

A value that is JSON is inserted into its object unchanged, so that numbers keep their digits and
keys their order. Only line ends, which JSON allows between tokens only, become blanks.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import pyarrow as pa

from overlay.client.read.cells import list_headers, show_times

JSON_COLUMNS = ("subject", "sequence", "timestamp", "key", "value", "headers", "topic", "partition", "offset")
RAW_COLUMNS = ("value",)


def write_json(batch: pa.RecordBatch) -> bytes:
    """Return a line for each record of a batch that has JSON_COLUMNS.

    Members: subject, sequence, topic, partition, offset, timestamp (RFC 3339), key, headers (a list of
    name and value), value. A value that is JSON is inserted as it is, with blanks for its line ends;
    any other is a string. Bytes that are not UTF-8 are in base64, under `key_base64` or `value_base64`
    instead of `key` or `value`.
    """
    plain = [batch[name].to_pylist() for name in ("subject", "sequence", "topic", "partition", "offset")]
    rows = zip(
        *plain, show_times(batch["timestamp"]), batch["key"].to_pylist(), list_headers(batch["headers"]), strict=True
    )
    lines = [_write_object(row, value) for row, value in zip(rows, batch["value"].to_pylist(), strict=True)]
    return b"".join(lines)


def write_raw(batch: pa.RecordBatch) -> bytes:
    """Return the values with a line feed after each. A record without a value is an empty line."""
    return b"".join((value or b"") + b"\n" for value in batch["value"].to_pylist())


def _write_object(row: tuple[Any, ...], value: bytes | None) -> bytes:
    subject, sequence, topic, partition, offset, time, key, headers = row
    members = {
        "subject": subject,
        "sequence": sequence,
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "timestamp": time,
        **_name("key", key),
        "headers": [{"name": name, **_name("value", content)} for name, content in headers],
    }
    head = json.dumps(members, ensure_ascii=False).encode()[:-1]
    raw = None if value is None else _as_json(value)
    last = (
        b'"value": ' + raw if raw is not None else json.dumps(_name("value", value), ensure_ascii=False).encode()[1:-1]
    )
    return head + b", " + last + b"}\n"


def _name(name: str, content: bytes | None) -> dict[str, str | None]:
    """Return bytes as one member of a JSON object: a string under `name` if they are UTF-8, else
    base64 under `name` with `_base64`. None becomes null.
    """
    try:
        return {name: None if content is None else content.decode()}
    except UnicodeDecodeError:
        assert content is not None
        return {f"{name}_base64": base64.b64encode(content).decode()}


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no JSON")


def _as_json(value: bytes) -> bytes | None:
    """Return the value as JSON on one line if it is a JSON document of any type, else None."""
    try:
        json.loads(value.decode(), parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return value.strip(b" \t\r\n").replace(b"\r", b" ").replace(b"\n", b" ")
