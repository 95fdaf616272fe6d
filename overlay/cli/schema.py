"""`overlay schema`: the JSON Schemas with which editors complete and check config files."""

from __future__ import annotations

from pathlib import Path

import click

KINDS = ("service", "stream", "consumer")


@click.command()
@click.argument("kind", type=click.Choice(KINDS), required=False)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write service.json, stream.json and consumer.json (or the one named) to this folder.",
)
def schema(kind: str | None, out: Path | None) -> None:
    """Print the JSON Schema of a kind of config file, or write the schemas to a folder.

    In a config file, `# yaml-language-server: $schema=PATH` as the first line tells editors where to find it.
    """
    from overlay.config.schema import write_schema

    if out is None:
        if kind is None:
            raise click.UsageError(f"name one of {', '.join(KINDS)}, or a folder with --out for all of them")
        click.echo(write_schema(kind), nl=False)
        return
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name in KINDS if kind is None else (kind,):
            (out / f"{name}.json").write_text(write_schema(name), encoding="utf-8")
            click.echo(out / f"{name}.json")
    except OSError as error:
        message = f"{error.filename or out}: {error.strerror}. Choose a folder that can be written"
        raise click.ClickException(message) from error
