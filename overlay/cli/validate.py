"""`overlay validate`: the check of a config folder by every rule, without starting anything."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from overlay.default_folder import find_folder
from overlay.errors import ConfigError

if TYPE_CHECKING:
    from overlay.config import Loaded

ROLES = ("service", "reader", "acker", "puller", "admin", "viewer", "scanner", "job", "init")
"""The roles of overlay/inspect/principals.py, which loads more than a command's help needs."""


@click.command()
@click.argument(
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="[DIR]",
    default=find_folder,
    envvar="OVERLAY_CONFIG",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of lines.")
@click.option(
    "--kafka",
    "ask_kafka",
    is_flag=True,
    help="Also ask Kafka for what the config needs, and schema registries whether they answer; creates nothing.",
)
@click.option(
    "--principal",
    "role",
    type=click.Choice(ROLES),
    help="With --kafka: what a user of this role needs, with the commands that grant what is missing.",
)
def validate(folder: Path, as_json: bool, ask_kafka: bool, role: str | None) -> None:
    """Check the config files in DIR. Exit code 1 if there is a problem, or if with --kafka something is missing in
    Kafka or a schema registry does not answer.

    Default: $OVERLAY_CONFIG, else the current folder or ./overlay-config.
    """
    if role and not ask_kafka:
        raise click.UsageError("--principal asks Kafka: add --kafka")
    loaded, problems = read_folder(folder)
    warnings = list_warnings(loaded) if loaded is not None else ()
    answer = describe(loaded, problems, warnings)
    if not as_json:
        print_problems(problems, warnings)
        click.echo(summarise(loaded, problems))
    missing = False
    if ask_kafka and loaded is not None:
        from .kafka_check import compare_samples, report_kafka

        found, missing = report_kafka(loaded, as_json, role or "")
        answer["kafka"] = found
        answer["notes"] = notes = compare_samples(loaded) if not role and "error" not in found else []
        if not as_json:
            click.echo("".join(f"note: {note}\n" for note in notes), nl=False)
        answer["registries"] = registries = ask_registries(loaded)
        missing = missing or any(each["error"] for each in registries)
        if not as_json:
            for each in registries:
                click.echo(f"schema registry {each['url']} ({each['stream']}): {each['error'] or 'answers'}")
    if as_json:
        click.echo(json.dumps(answer, ensure_ascii=False))
    sys.exit(1 if problems or missing else 0)


def print_problems(problems: Sequence[ConfigError], warnings: Sequence[ConfigError]) -> None:
    """Print problems and warnings, by kind if there are many (overlay/config/summary.py)."""
    from overlay.config.summary import list_lines

    for line in list_lines(problems):
        click.echo(line)
    for line in list_lines(warnings):
        click.echo(f"warning: {line}")


def ask_registries(loaded: Loaded) -> list[dict[str, str]]:
    """Ask the schema registry of each stream that has one. Return for each stream its name, the registry's URL and the
    error, which is empty if the registry answers.
    """
    from overlay.credentials import resolve
    from overlay.errors import OverlayError
    from overlay.schemas.registry_client import SchemaRegistry

    found = []
    for name, stream in sorted(loaded.streams.items()):
        if (registry := stream.values.registry) is None:
            continue
        error = ""
        try:
            SchemaRegistry(registry.url, resolve(registry.settings)).check()
        except OverlayError as caught:
            error = str(caught)
        found.append({"stream": name, "url": registry.url, "error": error})
    return found


def read_folder(folder: Path) -> tuple[Loaded | None, tuple[ConfigError, ...]]:
    """Return the loaded folder and every problem; None for the folder if overlay.yaml is bad."""
    from overlay.config import load

    try:
        loaded = load(folder)
    except ConfigError as error:
        return None, (error,)
    return loaded, loaded.problems


def list_warnings(loaded: Loaded) -> tuple[ConfigError, ...]:
    """Return what was hardly meant in the files, by file and line: what `load` has found, and in a `filter.sql` conditions
    that are true of no record, and names that are close to a declared one.
    """
    found = list(loaded.warnings)
    filtered = [config for config in loaded.consumers.values() if config.filter.sql is not None]
    if filtered:
        from overlay.config.filters import compile_filter
        from overlay.view.never import find_never
        from overlay.view.undeclared import find_undeclared

        for config in filtered:
            stream = loaded.streams[config.stream]
            compiled = compile_filter(config.filter, stream)
            if compiled is not None:
                lines = [*map(str, find_never(compiled.bound)), *find_undeclared(compiled, stream.properties)]
                found += [ConfigError(loaded.files[config.id], line, field="filter.sql") for line in lines]
    return tuple(sorted(found, key=lambda warning: warning.place))


def summarise(loaded: Loaded | None, problems: tuple[ConfigError, ...]) -> str:
    """Return the numbers of streams and consumers that were loaded, and of problems: `3 streams, 4
    consumers, 1 problem`.
    """
    streams = len(loaded.streams) if loaded else 0
    consumers = len(loaded.consumers) if loaded else 0
    counts = ((streams, "stream"), (consumers, "consumer"), (len(problems), "problem"))
    return ", ".join(f"{count} {word}{'' if count == 1 else 's'}" for count, word in counts)


def describe(
    loaded: Loaded | None, problems: tuple[ConfigError, ...], warnings: tuple[ConfigError, ...]
) -> dict[str, object]:
    """Return the names of the streams and consumers that were loaded, the problems and the warnings,
    as a JSON object.
    """
    return {
        "streams": sorted(loaded.streams) if loaded else [],
        "consumers": [{"stream": stream, "name": name} for stream, name in sorted(loaded.consumers)] if loaded else [],
        "problems": [describe_problem(problem) for problem in problems],
        "warnings": [describe_problem(warning) for warning in warnings],
    }


def describe_problem(problem: ConfigError) -> dict[str, object]:
    """Return a problem or a warning as a JSON object."""
    return {
        "file": problem.place.file,
        "line": problem.place.line,
        "column": problem.place.column,
        "field": problem.field,
        "message": problem.message,
        "err_code": problem.code,
    }
