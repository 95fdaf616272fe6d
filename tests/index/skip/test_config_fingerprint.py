"""Which changes of a config void what headers say."""

from __future__ import annotations

from typing import Any

from overlay.config import StreamConfig
from overlay.index.skip.config_fingerprint import find_config_fingerprint

BASE: dict[str, Any] = {
    "name": "S",
    "topics": ("t",),
    "subject": {"template": "s.{header:a}"},
    "properties": {"x": "long", "y": "string"},
    "index": {"terms": ("x",), "zones": ("x",)},
}


def make(**changes: Any) -> StreamConfig:
    return StreamConfig.model_validate({**BASE, **changes})


def test_subjects_and_filter_values_are_one_config_fingerprint() -> None:
    base = find_config_fingerprint(make()).subject
    assert find_config_fingerprint(make(name="T", properties={"x": "double"}, on_corrupt="skip")).subject == base
    assert find_config_fingerprint(make(index={"terms": (), "chunk_records": 7})).subject == base
    changes: list[dict[str, Any]] = [
        {"subject": {"template": "s.{header:b}"}},
        {"subject": {"header": "a"}},
        {"subjects": ("s.x",)},
        {"filter_value": {"header": "a"}},
        {"filter_value": {"template": "s.{header:a}"}},
    ]
    others = [find_config_fingerprint(make(**change)).subject for change in changes]
    assert len({base, *others}) == len(changes) + 1
    one, other = (
        find_config_fingerprint(make(subjects=subjects)).subject for subjects in (("s.x", "s.y"), ("s.y", "s.x"))
    )
    assert one == other


def test_a_property_is_its_name_type_and_source() -> None:
    config_fingerprint = find_config_fingerprint(make())
    assert config_fingerprint.types == {"x": "long"}
    assert config_fingerprint.terms.keys() == config_fingerprint.zones.keys() == {"x"}
    assert config_fingerprint.terms["x"] != config_fingerprint.zones["x"]
    same = find_config_fingerprint(make(properties={"x": {"type": "long", "from": "{header:x}"}}))
    assert same.terms == config_fingerprint.terms
    for declared in ("double", {"type": "long", "from": "{value:x}"}):
        assert find_config_fingerprint(make(properties={"x": declared})).terms != config_fingerprint.terms


def test_schemas_count_where_values_are_read_by_them() -> None:
    schemas = [
        {"type": "record", "name": "R", "fields": [{"name": name, "type": "long"} for name in names]}
        for names in ("x", "xy")
    ]
    values = [{"format": "avro", "schema": schema} for schema in schemas]
    of_header = [find_config_fingerprint(make(values=each)) for each in ("json", *values)]
    assert of_header[0] == of_header[1] == of_header[2]
    read = {"properties": {"x": {"type": "long", "from": "{value:x}"}}, "subject": {"template": "s.{value:x}"}}
    found = [find_config_fingerprint(make(values=each, **read)) for each in ("json", *values)]
    assert len({each.subject for each in found}) == len({each.terms["x"] for each in found}) == len(values) + 1
    assert find_config_fingerprint(make(**read)) == found[0]
