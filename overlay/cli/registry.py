"""`overlay registry`: schemas of a schema registry as files of a config folder."""

from __future__ import annotations

from pathlib import Path

import click

from .init import parse_settings


@click.command()
@click.argument("subjects", nargs=-1, required=True, metavar="SUBJECT...")
@click.option("--url", required=True, metavar="URL", help="The schema registry, such as http://localhost:8081.")
@click.option(
    "--dir",
    "folder",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the files go, such as overlay-config/schemas/orders; created when it is missing.",
)
@click.option(
    "-X",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="basic.auth.user.info (USER:PASSWORD), bearer.auth.token or ssl.*. Write secrets as env:NAME or file:PATH.",
)
def registry(subjects: tuple[str, ...], url: str, folder: Path, settings: tuple[str, ...]) -> None:
    """Fetch the schemas of subjects of a schema registry, all versions, as files ID.avsc (Avro) and ID.desc (Protobuf).

    Files that are there already are kept, and a running service takes up new ones. A topic's values have the subject
    TOPIC-value, unless their producer was told otherwise.
    """
    from overlay.credentials import resolve
    from overlay.schemas.registry_client import SchemaRegistry

    given = parse_settings(settings, "basic.auth.user.info=env:REGISTRY_USER")
    source = SchemaRegistry(url, resolve(given))
    for subject in subjects:
        for file, is_new in source.pull(subject, folder):
            click.echo(f"{'wrote' if is_new else 'kept'} {file}")
