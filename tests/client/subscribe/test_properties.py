"""Properties of one message: typed as filters and readings type them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

import pytest

from overlay.client.subscribe.message import Delivered
from overlay.client.subscribe.properties import PropertyReader
from overlay.config.stream import Property
from overlay.config.values import ValuesConfig

TOKEN = b"$JS.ACK._.4x1.S.c.1.7.7.1700000000123000000.0"


class Record:
    """A record as confluent-kafka has it."""

    def __init__(self, key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]) -> None:
        self._key, self._value, self._headers = key, value, headers

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> list[tuple[str, bytes | None]]:
        return [*self._headers, ("Nats-Subject", b"t"), ("Nats-Reply-To", TOKEN)]


def read(declared: dict[str, dict[str, str]], values: ValuesConfig | None = None, **record: Any) -> dict[str, object]:
    reader = PropertyReader({name: Property.model_validate(entry) for name, entry in declared.items()}, values)
    fields = {"key": None, "value": None, "headers": [], **record}
    return dict(reader.read(Delivered(cast(Any, Record(**fields)), TOKEN, cast(Any, None))))


@pytest.mark.parametrize(
    ("kind", "text", "wanted"),
    [
        ("string", b"\xc3\xa6", "æ"),
        ("string", b"\xff", None),
        ("binary", b"\xff", b"\xff"),
        ("long", b"1e3", 1000),
        ("long", b"1.5", None),
        ("double", b"1.5", 1.5),
        ("boolean", b"True", True),
        ("timestamp", b"1700000000123", datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC)),
        ("timestamp", b"2023-11-14T22:13:20Z", datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)),
        ("timestamp", b"999999999999999999", None),
        ("long", None, None),
    ],
)
def test_a_header_as_a_type(kind: str, text: bytes | None, wanted: object) -> None:
    found = read({"x": {"type": kind}}, headers=[("x", b"earlier"), ("x", text)])
    assert found == {"x": wanted}


def test_fields_of_the_value() -> None:
    declared = {
        "delay": {"type": "long", "from": "{value:dep.delay}"},
        "tail": {"type": "string", "from": "{value:tail}"},
        "none": {"type": "long", "from": "{value:none}"},
        "late": {"type": "boolean"},
    }
    value = b'{"dep": {"delay": 61}, "tail": "N\\u00e6"}'
    found = read(declared, value=value, headers=[("late", b"true")])
    assert found == {"delay": 61, "tail": "Næ", "none": None, "late": True}
    assert read(declared, value=None) == dict.fromkeys(declared)
    assert read(declared, value=b"") == dict.fromkeys(declared)
    assert read(declared, value=b"\x00Avro")["delay"] is None


def test_fields_of_avro_values() -> None:
    fields = [{"name": "at", "type": "long"}, {"name": "tail", "type": ["null", "string"]}]
    values = ValuesConfig.model_validate(
        {"format": "avro", "schema": {"type": "record", "name": "R", "fields": fields}}
    )
    declared = {
        "at": {"type": "timestamp", "from": "{value:at}"},
        "tail": {"type": "string", "from": "{value:tail}"},
        "late": {"type": "boolean"},
    }
    some = b"\xd0\x0f\x02\x06N\xc3\xa6"
    moment = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    headers = [("late", b"true")]
    assert read(declared, values, value=some, headers=headers) == {"at": moment, "tail": "Næ", "late": True}
    assert read(declared, values, value=some[:3] + b"\x08N") == {"at": moment, "tail": None, "late": None}
    assert read(declared, values, value=None) == read(declared, values, value=b"") == dict.fromkeys(declared)


def test_the_key_and_what_the_source_record_had() -> None:
    declared = {
        "id": {"type": "long", "from": "{key}"},
        "at": {"type": "timestamp", "from": "{timestamp}"},
        "ms": {"type": "long", "from": "{timestamp}"},
        "topic": {"type": "string", "from": "{topic}"},
    }
    at = datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC)
    assert read(declared, key=b"12") == {"id": 12, "at": at, "ms": 1_700_000_000_123, "topic": None}


def test_fixed_fields_of_filters_are_left_out() -> None:
    assert read({"p.message_id": {"type": "long"}, "x": {"type": "long"}}, headers=[("x", b"1")]) == {"x": 1}
    assert read({}) == {}
