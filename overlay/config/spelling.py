"""Consumer configs as files spell them: durations and times are texts, and defaults are left out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from overlay.units import format_duration, format_time

from .consumer import ConsumerConfig
from .defaults import fill_defaults
from .yaml_text import write_yaml

DURATIONS = ("ack_wait", "backoff", "max_expires", "idle_heartbeat", "inactive_threshold", "priority_timeout")
TIMES = ("opt_start_time", "pause_until")


def spell(config: ConsumerConfig) -> dict[str, Any]:
    """Return all fields of a config by name, as plain values that a file could have. A duration of 0 is "", except in
    `backoff`, and a time that is not set None.
    """
    fields = config.model_dump(mode="json")
    for name in DURATIONS:
        value = fields[name]
        fields[name] = [format_duration(item) for item in value] if isinstance(value, list) else _spell_span(value)
    for name in TIMES:
        fields[name] = None if fields[name] is None else format_time(fields[name])
    return fields


def _spell_span(nanoseconds: int) -> str:
    return format_duration(nanoseconds) if nanoseconds else ""


def list_settings(config: ConsumerConfig) -> list[tuple[str, str]]:
    """Return the dotted name and the value of each field that is set, by the author or by a default. Names are those
    that `overlay consumer add --set` takes.

    Left out are 0, false, empty values and `none`, the names of stream and consumer, and the output of a consumer
    without one.
    """
    unused = {"stream", "durable_name", "name"} if config.is_push else {"stream", "durable_name", "name", "output"}
    return [pair for name, value in spell(config).items() if name not in unused for pair in _flatten(name, value)]


def _flatten(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if name == "filter.properties":
        if value:
            yield name, json.dumps(value, ensure_ascii=False)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _flatten(f"{name}.{key}", item)
    elif isinstance(value, list):
        if value:
            yield name, ", ".join(map(str, value))
    elif isinstance(value, bool):
        if value:
            yield name, "true"
    elif value and value != "none":
        yield name, str(value).replace("\n", "\\n")


def shorten(config: ConsumerConfig) -> dict[str, Any]:
    """Return, as a file spells them, the fields that a file needs to give this config. `config`: with its defaults
    filled in. A field is left out if `fill_defaults` gives it the same value without it.
    """
    short = config
    for name, info in ConsumerConfig.model_fields.items():
        if not info.is_required():
            without = short.model_copy(update={name: info.get_default(call_default_factory=True)})
            short = without if fill_defaults(without) == config else short
    kept = set(short.model_dump(exclude_defaults=True))
    nested = config.model_dump(mode="json", include={"filter", "output"}, exclude_defaults=True)
    return {name: nested.get(name, value) for name, value in spell(config).items() if name in kept}


def write_file(config: ConsumerConfig) -> str:
    """Return the text of a consumer file for a config, which has its defaults filled in. If files may have such a
    config, `load` reads the same from the text.
    """
    return write_yaml(shorten(config))
