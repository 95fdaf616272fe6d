"""`overlay validate`: the check of a config folder by every rule, without starting anything."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from overlay.errors import ConfigError

from .folder import find_folder

if TYPE_CHECKING:
    from overlay.config import Loaded


@click.command()
@click.argument(
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="[DIR]",
    default=find_folder,
    envvar="OVERLAY_CONFIG",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of lines.")
@click.option("--kafka", "ask_kafka", is_flag=True, help="Also ask Kafka for what the config needs; creates nothing.")
def validate(folder: Path, as_json: bool, ask_kafka: bool) -> None:
    """Check the config files in DIR. Exit code 1 if there is a problem, or something is missing in
    Kafka.

    Default: $OVERLAY_CONFIG, else the current folder or ./overlay-config.
    """
    loaded, problems = read_folder(folder)
    answer = describe(loaded, problems)
    if not as_json:
        for problem in problems:
            click.echo(str(problem))
        click.echo(summarise(loaded, problems))
    missing = False
    if ask_kafka and loaded is not None:
        from .kafka_check import report_kafka

        answer["kafka"], missing = report_kafka(loaded, as_json)
    if as_json:
        click.echo(json.dumps(answer, ensure_ascii=False))
    sys.exit(1 if problems or missing else 0)


def read_folder(folder: Path) -> tuple[Loaded | None, tuple[ConfigError, ...]]:
    """Return the loaded folder and every problem; None for the folder if overlay.yaml is bad."""
    from overlay.config import load

    try:
        loaded = load(folder)
    except ConfigError as error:
        return None, (error,)
    return loaded, loaded.problems


def summarise(loaded: Loaded | None, problems: tuple[ConfigError, ...]) -> str:
    """Return the numbers of streams and consumers that were loaded, and of problems: `3 streams, 4
    consumers, 1 problem`.
    """
    streams = len(loaded.streams) if loaded else 0
    consumers = len(loaded.consumers) if loaded else 0
    counts = ((streams, "stream"), (consumers, "consumer"), (len(problems), "problem"))
    return ", ".join(f"{count} {word}{'' if count == 1 else 's'}" for count, word in counts)


def describe(loaded: Loaded | None, problems: tuple[ConfigError, ...]) -> dict[str, object]:
    """Return the names of the streams and consumers that were loaded, and the problems, as a JSON
    object.
    """
    return {
        "streams": sorted(loaded.streams) if loaded else [],
        "consumers": [{"stream": stream, "name": name} for stream, name in sorted(loaded.consumers)] if loaded else [],
        "problems": [
            {
                "file": problem.place.file,
                "line": problem.place.line,
                "column": problem.place.column,
                "field": problem.field,
                "message": problem.message,
                "err_code": problem.code,
            }
            for problem in problems
        ],
    }
