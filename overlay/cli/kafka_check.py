"""The Kafka part of `overlay validate`: the resources that a config needs, and those missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from overlay.config import Loaded
    from overlay.inspect.answers import ClusterAnswers
    from overlay.inspect.needs import Need
    from overlay.inspect.verdict import Finding

_STYLES = {"missing": "bold red", "cannot be asked": "yellow", "will be created": "cyan", "ok": "green"}
"""Styles of the answers, in the order of the table."""
MOST_STREAMS = 20
"""Streams of which samples are read."""


def ask_about_needs(loaded: Loaded, role: str = "") -> tuple[tuple[Need, ...], ClusterAnswers]:
    """Return everything that the folder needs of Kafka, and Kafka's answers about it. Nothing is created.
    `role`: what a user of that role needs instead (inspect/principals.py).

    Raises CredentialsRefused or SourceUnavailable if Kafka cannot be asked.
    """
    from overlay.inspect.cluster import ask_kafka
    from overlay.inspect.needs import ResourceKind, find_needs, plan_topic
    from overlay.inspect.principals import Role, find_role_needs

    needs = find_role_needs(loaded, Role(role)) if role else find_needs(loaded)
    made = [need for need in needs if "Create" in need.operations]
    plans = {need.name: plan for need in made if (plan := plan_topic(need, loaded.service))}
    topics = {need.name for need in needs if need.kind.is_topic}
    groups = [need.name for need in needs if need.kind is ResourceKind.GROUP]
    return needs, ask_kafka(loaded.service.kafka, topics, plans, groups)


def check_kafka(loaded: Loaded, role: str = "") -> tuple[Finding, ...]:
    """Ask Kafka about everything that the folder needs, without creating anything. Raises as `ask_about_needs`."""
    from overlay.inspect.verdict import judge_all

    needs, answers = ask_about_needs(loaded, role)
    return judge_all(needs, answers, loaded.service)


def report_kafka(loaded: Loaded, as_json: bool, role: str = "") -> tuple[dict[str, object], bool]:
    """Return the findings as a JSON object, and whether something is missing. `role`: as for `check_kafka`; the
    commands that grant what is missing come with it.

    Without `as_json` the findings are also printed. If Kafka cannot be asked, the object is `{"error": ...}` and
    something counts as missing with `as_json`; without it, CredentialsRefused or SourceUnavailable is raised.
    """
    from overlay.errors import CredentialsRefused, SourceUnavailable
    from overlay.inspect.verdict import count_missing

    try:
        findings = check_kafka(loaded, role)
    except (CredentialsRefused, SourceUnavailable) as error:
        if not as_json:
            raise
        return {"error": str(error)}, True
    commands = list_commands(findings, loaded) if role else {}
    if not as_json:
        print_findings(findings)
        print_commands(commands)
    return describe_findings(findings) | commands, count_missing(findings) > 0


def compare_samples(loaded: Loaded) -> list[str]:
    """Return what `overlay read` would say of the streams' properties: a line for each of which no sampled record has the
    header or JSON field. Looked at are the first MOST_STREAMS streams that declare some. Blocks. A topic that cannot be
    read gives no line.
    """
    from overlay.view.doubts import list_absent_properties

    from .read_notes import MOST_TOPICS, read_samples

    found: list[str] = []
    declaring = [stream for _, stream in sorted(loaded.streams.items()) if stream.properties]
    for stream in declaring[:MOST_STREAMS]:
        samples = read_samples(loaded.service.kafka, stream.topic_names[:MOST_TOPICS])
        records = [record for sample in samples for record in sample.records]
        found += [f"stream {stream.name}: {line}" for line in list_absent_properties(stream, records)]
    return found


def list_commands(findings: Sequence[Finding], loaded: Loaded) -> dict[str, list[str]]:
    """Return shell commands that grant rights: under `grant_missing` those that Kafka says are missing,
    under `grant_unknown` those about which it could not be asked.
    """
    from overlay.credentials import resolve
    from overlay.inspect.principals import write_commands

    kafka = resolve(loaded.service.kafka)
    return {
        "grant_missing": list(write_commands(findings, kafka, is_certain=True)),
        "grant_unknown": list(write_commands(findings, kafka, is_certain=False)),
    }


def print_commands(commands: Mapping[str, Sequence[str]]) -> None:
    """Print the commands of `list_commands`, so that they can be copied to a shell."""
    import click

    for key, text in (
        ("grant_missing", "# missing; an administrator of Kafka grants it with"),
        ("grant_unknown", "# Kafka cannot be asked for these; they grant what may be granted already"),
    ):
        if found := commands.get(key):
            click.echo("\n".join((text, *found)))


def print_findings(findings: Sequence[Finding]) -> None:
    """Print a table of the findings, what is missing first, their remarks, and a line with the counts."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from overlay.inspect.verdict import count_missing

    table = Table("what", "name", "needs", "answer", show_lines=False)
    ordered = sorted(findings, key=lambda finding: [*_STYLES].index(finding.state.value))
    for finding in ordered:
        need = finding.need
        answer = Text(finding.state.value, style=_STYLES[finding.state.value])
        table.add_row(need.kind.value, Text(need.name, overflow="fold"), " ".join(need.operations), answer)
    console = Console()
    console.print(table)
    for finding in ordered:
        for remark in finding.remarks:
            who = ", ".join(finding.need.users)
            line = f"{finding.need.kind.value} {finding.need.name} ({who}): {remark}"
            console.print(line, soft_wrap=True, markup=False, highlight=False)
    console.print(f"{len(findings)} needs, {count_missing(findings)} missing; nothing was created", highlight=False)


def describe_findings(findings: Sequence[Finding]) -> dict[str, object]:
    """Return the findings as a JSON object."""
    from overlay.inspect.verdict import count_missing

    return {
        "missing": count_missing(findings),
        "needs": [
            {
                "kind": finding.need.kind.value,
                "name": finding.need.name,
                "users": list(finding.need.users),
                "operations": list(finding.need.operations),
                "answer": finding.state.value,
                "missing_operations": list(finding.missing),
                "remarks": list(finding.remarks),
            }
            for finding in findings
        ],
    }
