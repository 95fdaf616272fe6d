"""Reference pages in Markdown, made from the code: every command with its options, every field of the config files."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from overlay.cli import overlay
from overlay.config.schema import build_schema
from overlay.units import format_duration

Schema = Mapping[str, Any]

FILES = {"service": "overlay.yaml", "stream": "streams/*.yaml", "consumer": "consumers/*.yaml"}
"""The files that each kind of schema is about."""
_MIB = 1 << 20
_WORDS = {"string": "text", "integer": "whole number", "object": "mapping", "boolean": "true or false"}
_SPECIAL = re.compile(r"([\\`*_{}\[\]|#])")
_QUOTED = re.compile(r"(`[^`]+`)")


def write_references() -> dict[str, str]:
    """Return the text of each page, by its file in the site."""
    return {"reference/commands.md": write_commands(), "reference/files.md": write_files()}


def write_commands() -> str:
    """Return the page of all commands, as their `--help` has them."""
    intro = "Made from the commands themselves. [The guide](../docs/cli.md) has examples, outputs and exit codes."
    sections = [_write_command(path, command) for path, command in list_commands(overlay, "overlay")]
    return "\n".join(["# All commands", "", intro, "", *sections])


def list_commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    """Yield a command and those below it, each with the words that call it, such as `overlay consumer ls`."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=path)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None:
                yield from list_commands(below, f"{path} {name}")


def _write_command(path: str, command: click.Command) -> str:
    context = click.Context(command, info_name=path)
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    lines = [f"## {path}", "", f"    {usage}", "", escape(inspect.cleandoc(command.help or "")), ""]
    records = [found for each in command.get_params(context) if (found := each.get_help_record(context))]
    lines += write_table(("option", ""), [(f"`{name}`", escape(text)) for name, text in records])
    return "\n".join([*lines, ""])


def write_files() -> str:
    """Return the page of all fields of the config files, as their JSON Schemas have them."""
    intro = "Made from the schemas that check the files. [The guide](../docs/configuration.md) has examples and rules."
    lines = ["# All fields of the config files", "", intro, ""]
    for kind, name in FILES.items():
        schema = build_schema(kind)
        lines += [f"## {name}", "", escape(str(schema["description"])), ""]
        lines += write_table(("field", "type", "default", "meaning"), list(list_fields(schema, schema)))
        lines.append("")
    return "\n".join(lines)


def list_fields(schema: Schema, root: Schema, path: str = "") -> Iterator[tuple[str, str, str, str]]:
    """Yield name, type, default and meaning of each field of an object and of the objects in it, as cells of a table."""
    required = schema.get("required", ())
    for name, field in schema["properties"].items():
        inner = _resolve(field, root)
        kind = "mapping" if "properties" in inner else describe_type(field, root)
        default = "required" if name in required else _show_default(field)
        yield f"`{path}{name}`", escape(kind), default, escape(field.get("description", ""))
        if "properties" in inner:
            yield from list_fields(inner, root, f"{path}{name}.")


def describe_type(schema: Schema, root: Schema) -> str:
    """Return the type of a field in words, such as `list of text` or `all, new or last`."""
    schema = _resolve(schema, root)
    if unit := _find_unit(schema):
        return {"nanoseconds": "duration", "bytes": "size"}[unit]
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(describe_type(branch, root) for branch in schema["anyOf"]))
    if "enum" in schema:
        *first, last = map(str, schema["enum"])
        return f"{', '.join(first)} or {last}" if first else last
    if "const" in schema:
        return str(schema["const"]) if isinstance(schema["const"], str) else json.dumps(schema["const"])
    if schema.get("type") == "array":
        return f"list of {describe_type(schema.get('items', {}), root)}"
    if "properties" in schema:
        return f"mapping ({', '.join(schema['properties'])})"
    if schema.get("format") == "date-time":
        return "time"
    kinds = schema.get("type", "any value")
    return " or ".join(_WORDS.get(kind, kind) for kind in ([kinds] if isinstance(kinds, str) else kinds))


def _resolve(schema: Schema, root: Schema) -> Schema:
    """Return the definition that a schema refers to; the schema itself if it refers to none."""
    reference = str(schema.get("$ref", ""))
    found: Schema = root["$defs"][reference.rpartition("/")[2]] if reference else schema
    return found


def _find_unit(schema: Schema) -> str:
    """Return the unit of a field that is a text with a unit or a whole number: `nanoseconds` or `bytes`; else ""."""
    found = {branch.get("description", "") for branch in schema.get("anyOf", ())} & {"nanoseconds", "bytes"}
    return next(iter(found), "")


def _show_default(field: Schema) -> str:
    default = field.get("default")
    # 0 and [] stand for a default that is worked out, or for none: the meaning says which
    if default is None or default == [] or (default == 0 and default is not False):
        return ""
    if _find_unit(field) == "nanoseconds":
        default = format_duration(default)
    elif _find_unit(field) == "bytes":
        default = f"{default // _MIB}MiB" if default % _MIB == 0 else f"{default}B"
    return f"`{default if isinstance(default, str) else json.dumps(default)}`"


def write_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table; none without rows."""
    if not rows:
        return []
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(' '.join(cell.split()) for cell in line)} |" for line in lines]


def escape(text: str) -> str:
    """Return a plain text as Markdown. What stands in backquotes stays code."""
    parts = _QUOTED.split(text.replace("\b", ""))
    return "".join(part if part.startswith("`") and len(part) > 1 else _escape_plain(part) for part in parts)


def _escape_plain(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))
