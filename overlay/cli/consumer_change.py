"""`overlay consumer add|update|pause|resume|report`: management of consumers by request."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from overlay.errors import OverlayError

from .folder import config_option, json_option, look_options, open_control, parse_object, print_json
from .lookup import find_served, join_names, names_argument

if TYPE_CHECKING:
    from overlay.client.control.consumer_info import ConsumerInfo


def fields_options(command: Any) -> Any:
    """Return the command with the options for a consumer's fields: a file, flags for common fields,
    and --set for others. `collect_fields` reads their values.
    """
    options = (
        click.option("--file", "file", type=click.File("rb"), help="A consumer file; - is standard input."),
        click.option("--output", "output", metavar="TOPIC", help="deliver_subject: the output topic."),
        click.option(
            "--subject", "--subjects", "subjects", multiple=True, metavar="PATTERN", help="A subject filter; repeatable."
        ),
        click.option("--sql", help="filter.sql: a condition that messages have to meet."),
        click.option("--properties", metavar="JSON", help="filter.properties: a property filter, in place of --sql."),
        click.option("--value", "--values", "values", multiple=True, help="filter.values: a filter value; repeatable."),
        click.option("--match-unfiltered", is_flag=True, help="With --value: messages without a filter value as well."),
        click.option("--deliver", metavar="POLICY", help="deliver_policy: all, new, last, last_per_subject."),
        click.option("--ack", metavar="POLICY", help="ack_policy: explicit, all, none."),
        click.option(
            "--set", "settings", multiple=True, metavar="FIELD=VALUE",
            help="Any other field, as a file has it: --set ack_wait=10s --set output.partitions=3",
        ),
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


@click.command()
@click.argument("stream")
@click.argument("name", required=False)
@fields_options
@config_option
@json_option
def add(stream: str, name: str | None, folder: Path, as_json: bool, **given: Any) -> None:
    """Create a consumer of STREAM, without a file and without a restart.

    It is kept in the control topic until `overlay consumer rm`. An error tells if there is a
    consumer of that name with another config.
    """
    fields = collect_fields(given)
    if name is not None:
        _agree(fields, "durable_name", name)
    if stream != fields.setdefault("stream", stream):
        raise OverlayError(f"the file is about stream {fields['stream']!r}, the command about {stream!r}")
    with open_control(folder) as control:
        info = control.add(stream, fields)
    _print_info(info, as_json, "created")


@click.command()
@names_argument
@fields_options
@config_option
@json_option
def update(names: tuple[str, ...], folder: Path, as_json: bool, **given: Any) -> None:
    """Change a consumer that was made by `add`, while it runs.

    STREAM may be left out if only one stream has a consumer of this name. Flags change the fields that
    they name. A --file replaces the whole config: fields that it leaves out go back to their defaults.
    A pause stays as it is.
    """
    wanted, fields = join_names(names), collect_fields(given)
    with open_control(folder) as control:
        stream, name = find_served(control, wanted, folder)
        if given["file"] is None:
            from overlay.control.records import write_config

            fields = overlay_fields(write_config(control.info(stream, name).config), fields)
        else:
            _agree(fields, "durable_name", name)
        info = control.update(stream, fields)
    _print_info(info, as_json, "updated")


@click.command()
@names_argument
@click.option("--until", metavar="TIME", help="RFC 3339 with a zone, like 2026-01-31T12:00:00Z.")
@click.option("--for", "span", metavar="DURATION", help="How long from now, like 30m.")
@config_option
@json_option
def pause(names: tuple[str, ...], until: str | None, span: str | None, folder: Path, as_json: bool) -> None:
    """Stop a consumer's deliveries for a while. It still accepts acks.

    STREAM may be left out if only one stream has a consumer of this name.
    """
    from datetime import timedelta

    from overlay.client.control.control import write_time
    from overlay.units import parse_duration

    wanted = join_names(names)
    if (until is None) == (span is None):
        raise click.UsageError("Say --until TIME or --for DURATION.")
    try:
        when = until if until is not None else timedelta(microseconds=parse_duration(span) / 1000)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--for") from error
    text = write_time(when)
    with open_control(folder) as control:
        stream, name = find_served(control, wanted, folder)
        is_paused = control.pause(stream, name, text)
        info = control.info(stream, name)
    if as_json:
        print_json(info.raw)
    else:
        what = f"paused until {text}" if is_paused else "not paused, for that time is over"
        click.echo(f"consumer {info.stream}/{info.name} is {what}")


@click.command()
@names_argument
@config_option
@json_option
def resume(names: tuple[str, ...], folder: Path, as_json: bool) -> None:
    """End the pause of a consumer.

    STREAM may be left out if only one stream has a consumer of this name.
    """
    wanted = join_names(names)
    with open_control(folder) as control:
        stream, name = find_served(control, wanted, folder)
        control.resume(stream, name)
        info = control.info(stream, name)
    _print_info(info, as_json, "resumed")


@click.command()
@click.argument("stream", required=False)
@look_options
def report(stream: str | None, folder: Path, as_json: bool) -> None:
    """Show pending acks of all consumers, or of those of STREAM.

    The running service is asked; without one the command fails.
    """
    from overlay.view.console import make_console
    from overlay.view.table import print_ack_report

    with open_control(folder) as control:
        found = control.consumers(stream or "")
    if as_json:
        print_json({"consumers": [info.raw for info in found]})
    else:
        print_ack_report(make_console(), found)


def collect_fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the consumer's fields by name from the options of `fields_options`. A flag overrides the file, and --set
    overrides both; the fields within `filter` and other mappings are overridden one by one. Prints notes about values
    that were hardly meant on stderr. Raises ConfigError and click.UsageError.
    """
    fields: dict[str, Any] = read_file(given["file"]) if given["file"] else {}
    named: dict[str, Any] = {
        "deliver_subject": given["output"],
        "deliver_policy": given["deliver"],
        "ack_policy": given["ack"],
    }
    flags = {name: value for name, value in named.items() if value is not None}
    if given["subjects"]:
        flags |= {"filter_subjects": list(given["subjects"])}
        fields.pop("filter_subject", None)
    wanted: dict[str, Any] = {} if given["sql"] is None else {"sql": given["sql"]}
    if given["properties"] is not None:
        wanted["properties"] = parse_object(given["properties"])
    if given["values"]:
        wanted |= {"values": list(given["values"]), "match_unfiltered": given["match_unfiltered"]}
    if wanted:
        flags["filter"] = wanted
    found = overlay_fields(overlay_fields(fields, flags), read_settings(given["settings"]))
    _warn(found)
    return found


def _warn(fields: Mapping[str, Any]) -> None:
    """Print on stderr what was hardly meant in the fields of a consumer."""
    from overlay.config.document import Document
    from overlay.config.warnings import find_warnings
    from overlay.errors import SubjectError

    with contextlib.suppress(SubjectError):  # the service refuses it, with JetStream's number
        for warning in find_warnings(Document("the consumer", dict(fields), {}, {})):
            click.echo(f"note: {warning.field}: {warning.message}", err=True)


def overlay_fields(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return a new mapping with the fields of both. If both have a field, the value of `over` is
    taken; if both values are mappings, they are merged in the same way.

    `filter_subject` and `filter_subjects` replace each other.
    """
    found = dict(under)
    if "filter_subjects" in over:
        found.pop("filter_subject", None)
    if "filter_subject" in over:
        found.pop("filter_subjects", None)
    for name, value in over.items():
        below = found.get(name)
        both = isinstance(below, dict) and isinstance(value, dict)
        found[name] = overlay_fields(below, value) if both else value  # type: ignore[arg-type]
    return found


def read_file(file: IO[bytes]) -> dict[str, Any]:
    """Return the fields of a consumer file. Raises ConfigError with the place."""
    from overlay.config.document import parse_document
    from overlay.errors import ConfigError, FilePosition

    try:
        text = file.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(FilePosition(file.name), "is not UTF-8. Save the file as UTF-8") from error
    return dict(parse_document(file.name, text).data)


def read_settings(settings: Sequence[str]) -> dict[str, Any]:
    """Return FIELD=VALUE settings as fields. Raises click.BadParameter for one without a field or `=`,
    or with a field that no consumer has, and ConfigError for a VALUE that is not YAML.

    A dot in FIELD names a field of a nested mapping; what follows `output.config.` is one name, dots
    included. VALUE is parsed as in a YAML file.
    """
    from overlay.config.document import parse_document

    found: dict[str, Any] = {}
    for setting in settings:
        path, equals, text = setting.partition("=")
        if not equals or not all(path.split(".")):
            raise click.BadParameter(f"{setting!r} is not FIELD=VALUE", param_hint="--set")
        # the names of Kafka's topic properties contain dots
        steps = path.split(".", 2 if path.startswith("output.config.") else -1)
        _check_field(path, steps)
        value: Any = parse_document("--set", f"value: {text}").data["value"]
        for step in reversed(steps):
            value = {step: value}
        found = overlay_fields(found, value)
    return found


def _check_field(path: str, steps: Sequence[str]) -> None:
    """Raise click.BadParameter with the nearest name if a consumer has no field of this path. `steps`: its parts. Of nested
    fields, those of `filter` and `output` are looked at.
    """
    from overlay.config.consumer import ConsumerConfig, FilterConfig, OutputConfig
    from overlay.config.suggestion import suggest_name

    name, known = steps[0], list(ConsumerConfig.model_fields)
    if len(steps) > 1 and name in ("filter", "output"):
        model = FilterConfig if name == "filter" else OutputConfig
        name, known = steps[1], list(model.model_fields)
    if name not in known:
        near = suggest_name(name, known) or f" Known are {', '.join(known)}"
        raise click.BadParameter(f"{path!r} is no field of a consumer.{near}", param_hint="--set")


def _agree(fields: dict[str, Any], field: str, name: str) -> None:
    found = fields.get(field) or fields.get("name") or name
    if found != name:
        raise OverlayError(f"the file is about consumer {found!r}, the command about {name!r}")
    if "name" not in fields:
        fields[field] = name


def _print_info(info: ConsumerInfo, as_json: bool, what: str) -> None:
    if as_json:
        print_json(info.raw)
        return
    reason = f": {info.reason}" if info.reason else ""
    click.echo(f"consumer {info.stream}/{info.name} is {what}; it is {info.state or 'not served yet'}{reason}")
