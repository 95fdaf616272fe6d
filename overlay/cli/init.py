"""`overlay init`: a first config for an existing topic, made from a sample of it."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from overlay.default_folder import INIT_FOLDER, SERVICE_FILE

from .folder import SETTINGS_HELP

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from overlay.inspect.proposal import Proposal

_ROWS = 40


@click.command()
@click.option("--bootstrap", required=True, metavar="HOST:PORT", help="Some brokers, with commas between.")
@click.option("--topic", "topics", required=True, multiple=True, metavar="TOPIC", help="Repeat it for more topics.")
@click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(INIT_FOLDER),
    show_default=True,
    help="The config folder to write.",
)
@click.option("--sample", type=click.IntRange(2, 100_000), default=1000, show_default=True, help="Records to look at.")
@click.option("-X", "settings", multiple=True, metavar="NAME=VALUE", help=SETTINGS_HELP)
@click.option("--force", is_flag=True, help="Overwrite files that are there with another content.")
def init(
    bootstrap: str, topics: tuple[str, ...], folder: Path, sample: int, settings: tuple[str, ...], force: bool
) -> None:
    """Look at a topic and write a stream and a consumer file for it.

    Reads some committed records from both ends of each partition, joins no group and changes
    nothing in Kafka. The files give the reason for each choice. They are a draft, to be changed by
    someone who knows the topic.
    """
    from overlay.inspect.draft import draft_consumers, draft_service, draft_stream, name_topics
    from overlay.inspect.folder import check_files, write_files
    from overlay.inspect.proposal import propose
    from overlay.inspect.reading import check_topics, look_around, read_sample

    kafka = read_settings(bootstrap, settings)
    cluster = look_around(kafka)
    names = name_topics(topics)
    check_topics(cluster, names)
    has_port = find_port(folder) is not None  # of an earlier draft
    port = choose_port(folder)
    files = {SERVICE_FILE: draft_service(kafka, cluster.brokers, port)}
    proposals = {}
    outputs: set[str] = set()
    copies: dict[str, int] = {}
    for topic in names:
        click.echo(f"reading {topic} ...", err=True)
        proposals[topic] = propose(read_sample(kafka, topic, cluster.topics[topic], sample))
        files[f"streams/{names[topic].stem}.yaml"] = draft_stream(proposals[topic], names[topic])
        consumers = draft_consumers(proposals[topic], names[topic], topics)
        files |= {f"consumers/{stem}.yaml": text for stem, text in consumers.items()}
        outputs |= consumers.keys() & cluster.topics.keys()
        copies[next(iter(consumers))] = proposals[topic].sample.span
    check_files(files)
    outcome = write_files(folder, files, force=force)
    for proposal in proposals.values():
        _show(proposal)
    _note_outputs(folder, outputs, copies)
    if not has_port:
        _note_port(port)
    _close(folder, outcome)


def choose_port(folder: Path) -> int:
    """Return where a service of the folder is to listen: the port of an earlier draft if the folder has one, so that this
    one is the same; else HTTP_PORT, or a port near it if another program listens there.
    """
    from overlay import ports
    from overlay.inspect.draft import HTTP_HOST, HTTP_PORT

    if (earlier := find_port(folder)) is not None:
        return earlier
    return (ports.find_near(HTTP_HOST, HTTP_PORT) if ports.is_taken(HTTP_HOST, HTTP_PORT) else None) or HTTP_PORT


def find_port(folder: Path) -> int | None:
    """Return the port of an earlier draft in the folder, None if there is none."""
    from overlay.inspect.draft import HTTP_HOST

    try:
        text = (folder / SERVICE_FILE).read_text()
    except (OSError, ValueError):
        return None
    found = re.search(rf"^  listen: {re.escape(HTTP_HOST)}:(\d+) ", text, re.MULTILINE)
    return None if found is None else int(found[1])


def read_settings(bootstrap: str, settings: Iterable[str]) -> dict[str, str]:
    """Return the Kafka settings by librdkafka's names.

    References to secrets stay references (overlay/credentials.py). Raises click.UsageError for a malformed
    setting, a secret in an argument or a reference to what is not there, and ConfigError for a property that
    not every client supports.
    """
    from overlay.client.client import check_settings
    from overlay.credentials import resolve
    from overlay.errors import SourceUnavailable

    given = parse_settings(settings, "security.protocol=SASL_SSL")
    checked = check_settings({"bootstrap.servers": bootstrap, **given})
    try:
        resolve(checked)
    except SourceUnavailable as error:
        raise click.UsageError(f"-X {error}") from None
    return checked


def parse_settings(settings: Iterable[str], example: str) -> dict[str, str]:
    """Return the values of NAME=VALUE by name. References stay references for settings that can have
    them; elsewhere `env:NAME` becomes the variable's value. `example`: a setting for messages.
    Raises click.UsageError, also for a secret that is not a reference.
    """
    given: dict[str, str] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name.strip():
            raise click.UsageError(f"-X {name}: write NAME=VALUE, such as -X {example}")
        given[name.strip()] = _read_value(name.strip(), value)
    return given


def _read_value(name: str, value: str) -> str:
    """Return the value of a setting. In settings that can have references (REFERABLE) it is returned as
    it is; in others `env:NAME` becomes the value of that environment variable.

    Raises click.UsageError if the variable is not set, and for a secret that is not a reference: it
    would be in the list of processes.
    """
    from overlay.credentials import ENVIRONMENT, REFERABLE, SECRETS, is_reference

    if name in SECRETS and not is_reference(value):
        raise click.UsageError(
            f"-X {name}: arguments are in the list of processes, and this is a secret. Write {name}=env:NAME for an"
            f" environment variable, or {name}=file:PATH for a file"
        )
    if name in REFERABLE or not value.startswith(ENVIRONMENT):
        return value
    variable = value.removeprefix(ENVIRONMENT)
    if variable not in os.environ:
        raise click.UsageError(f"-X {name}: the environment variable {variable} is not set. Set it")
    return os.environ[variable]


def _show(proposal: Proposal) -> None:
    from rich.markup import escape

    from overlay.inspect.draft import describe_unaddressed
    from overlay.view.console import make_console

    console = make_console()
    sample = proposal.sample
    formats = ", ".join(f"{form.value} {count}" for form, count in proposal.formats.most_common()) or "none"
    where = f"{len(sample.records)} records of {sample.span} offsets in {sample.partitions} partitions"
    lines = [f"subject: [bold]{escape(proposal.subject.template)}[/bold]  ({proposal.subject.why})"]
    if proposal.subjects:
        common = ", ".join(subject for subject, _ in proposal.subjects.most_common(3))
        lines.append(f"         {len(proposal.subjects)} in the sample, such as {escape(common)}")
    if proposal.unaddressed:
        lines.append(f"         {escape(describe_unaddressed(proposal))}")
    lines += [f"note: {escape(note)}" for note in proposal.notes]
    console.print(f"\n[bold]{escape(sample.topic)}[/bold]: {where}; values: {escape(formats)}", soft_wrap=True)
    if proposal.columns:
        console.print(_table(console, proposal))
    for line in lines:
        console.print(line, soft_wrap=True)


def _table(console: Console, proposal: Proposal) -> Table:
    from rich.text import Text

    from overlay.view.table import make_table

    table = make_table(console, "field", "type", "use", right=("in", "values"))
    names = {column.field: name for name, column in proposal.properties}
    for column in proposal.columns[:_ROWS]:
        use = f"property {names[column.field]}" if column.field in names else ""
        if column in proposal.subject.columns:
            use = "subject" + (f", {use}" if use else "")
        table.add_row(
            Text(str(column.field)), column.type.value, Text(use), f"{column.share:.0%}", str(column.distinct)
        )
    if len(proposal.columns) > _ROWS:
        table.add_row(f"... {len(proposal.columns) - _ROWS} more", "", "", "", "")
    return table


def _note_outputs(folder: Path, existing: Iterable[str], copies: Mapping[str, int]) -> None:
    """Print which output topics exist already, and which consumers copy everything. `copies`: for each of these the number
    of offsets in its source.
    """
    for output in sorted(existing):
        click.echo(
            f"note: the topic {output} exists; unless it is meant, name another output in consumers/{output}.yaml"
        )
    for copy, offsets in copies.items():
        click.echo(
            f"note: {folder / 'consumers' / copy}.yaml copies the whole topic, {offsets:,} records or fewer, into the topic"
            f" {copy}; unless that is meant, delete the file or add `deliver_policy: new` to it"
        )


def _note_port(port: int) -> None:
    from overlay.inspect.draft import HTTP_HOST, HTTP_PORT

    if port != HTTP_PORT:
        click.echo(f"note: http.listen is {HTTP_HOST}:{port}, since {HTTP_PORT} is in use")


def _close(folder: Path, outcome: Mapping[str, str]) -> None:
    click.echo()
    for name, word in outcome.items():
        click.echo(f"{word:<9} {folder / name}")
    shown = shlex.quote(str(folder))
    click.echo()
    click.echo(f"next: overlay validate {shown} --kafka     (what it needs of Kafka, and what is missing)")
    click.echo(f"      overlay run --config {shown}")
    click.echo(f"      overlay consumer ls --config {shown}     (in another terminal: rates, positions, lag)")
