"""The text of config files for a proposal: valid, with the reasons for each choice in comments.

Values from the data appear only as parts of subjects and of a consumer's name, and one of a field with
few values, or a median, in an example filter. Config files get committed to repositories, and the data
should stay in Kafka.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from overlay.config.stream import PropertyType
from overlay.config.yaml_text import escape, quote
from overlay.credentials import ENVIRONMENT, SECRETS, is_reference
from overlay.field import Field, FieldKind, parse_template
from overlay.subject import SubjectRule, escape_token

from .column import SampledField
from .example_filter import make_example
from .formats import ValueFormat
from .proposal import Proposal
from .sample import TopicSample

HTTP_HOST, HTTP_PORT = "127.0.0.1", 8222
"""Where the service listens for HTTP, unless another port has to be chosen."""
_FILE_LENGTH = 200
_WIDTH = 118


@dataclass(frozen=True, slots=True)
class Names:
    """Names for a topic's config: `stem` of its files, and name of its stream."""

    stem: str
    stream: str


def name_topics(topics: Iterable[str]) -> dict[str, Names]:
    """Return the names for each topic's files and stream, by topic. They are distinct, also without regard to case.

    Stream names are in upper case, as is usual in JetStream.
    """
    names: dict[str, Names] = {}
    taken: set[str] = set()
    for topic in dict.fromkeys(topics):
        stem = re.sub(r"[^A-Za-z0-9_-]", "-", topic).strip("-")[: _FILE_LENGTH - 20] or "topic"
        distinct, number = stem, 1
        while distinct.upper() in taken:
            number += 1
            distinct = f"{stem}-{number}"
        taken.add(distinct.upper())
        names[topic] = Names(distinct, distinct.upper())
    return names


def draft_service(kafka: Mapping[str, str], brokers: int, port: int = HTTP_PORT) -> str:
    """Return the text of overlay.yaml. References to secrets are written, but no secrets: these become
    references to environment variables, such as SASL_PASSWORD. `brokers`: how many the cluster has, from
    which the replication follows. `port`: where the service listens for HTTP.
    """
    lines = ["# The service: which Kafka to use, where the overlay keeps its own topics, where it serves metrics."]
    lines.append("kafka:")
    for name, value in kafka.items():
        if name in SECRETS and not is_reference(value):
            value = ENVIRONMENT + name.upper().replace(".", "_")
        note = "     # read from there, so that no secret stands here" if name in SECRETS else ""
        lines.append(f"  {name}: {quote(value.replace('${', '$${'))}{note}")
    replication = min(3, max(1, brokers))
    answered = f"{count(brokers, 'broker')} answered"
    return _join(
        *lines,
        "",
        "topics:",
        "  prefix: overlay       # the overlay's own topics: overlay.state ...",
        f"  replication: {replication}        # for topics that the overlay creates; {answered}",
        "",
        "http:",
        f"  listen: {HTTP_HOST}:{port}        # /metrics /healthz /readyz /service /streams /consumers",
    )


def draft_stream(proposal: Proposal, names: Names) -> str:
    """Return the text of the stream's file."""
    sample, subject = proposal.sample, proposal.subject
    looked = f"{count(len(sample.records), 'record')} of {count(sample.partitions, 'partition')}"
    patterns = ", ".join(quote(str(pattern)) for pattern in SubjectRule.from_template(subject.template).patterns())
    lines = [
        *comment(
            f"The topic {sample.topic} as a stream. Written by `overlay init` from a sample of {looked}:"
            " change what you know better, then run `overlay validate` on the folder."
        ),
        f"name: {names.stream}",
        f"topics: [{quote(sample.topic)}]",
        "",
        *_comment_notes(proposal),
        *comment(f"Each message gets a subject made of {describe_template(subject.template)}: {subject.why}."),
    ]
    lines += [line for column in subject.columns for line in comment(f"  {column.field}: {_describe_values(column)}")]
    lines += _comment_outcome(proposal)
    lines += [f"subject: {_draft_rule(subject.template, sample.topic)}", *_comment_alternatives(proposal)]
    lines += [f"subjects: [{patterns}]     # messages with other subjects would not belong to the stream"]
    return _join(*lines, *_draft_properties(proposal))


def draft_consumers(proposal: Proposal, names: Names, sources: Collection[str] = ()) -> dict[str, str]:
    """Return the texts of consumer files, by file name without its suffix.

    The first consumer takes everything. If the subject is made of fields too, and a sampled record gets one, a second
    consumer takes the commonest value of the first field. Output topics get as many partitions as the source. The
    file name is also the name of the consumer and of its output topic, which is never one of `sources`, the names of
    source topics.
    """
    everything = _avoid(f"{names.stem}-all", sources)
    found = {
        everything: _draft_consumer(
            proposal, names, everything, f"Everything in the stream {names.stream}, copied to the topic {everything}."
        )
    }
    if narrow := _narrow(proposal):
        value, pattern = narrow
        slug = re.sub(r"[^A-Za-z0-9_-]", "-", value).strip("-")[:20] or "some"
        stem = f"{names.stem}-{slug}" if slug.lower() != "all" else f"{names.stem}-all-only"
        name = _avoid(stem, [*sources, everything])
        about = "Only some subjects: `*` is one token, `>` all that follow."
        found[name] = _draft_consumer(
            proposal, names, name, about, [f"filter_subject: {quote(pattern)}", *_draft_filter(proposal, value)]
        )
    return found


def _avoid(name: str, taken: Collection[str]) -> str:
    while name in taken:
        name += "-out"
    return name


def comment(text: str) -> list[str]:
    """Return a text as wrapped comment lines, with characters escaped that are not printable: one of them could end a
    comment.
    """
    shown = "".join(letter if letter.isprintable() else escape(letter) for letter in text)
    inner = " " * (len(shown) - len(shown.lstrip()))
    return textwrap.wrap(shown, _WIDTH, initial_indent="# ", subsequent_indent=f"# {inner}", break_on_hyphens=False)


def count(number: int, word: str) -> str:
    """Return a number with its noun: `1 record`, `2 records`."""
    return f"{number} {word}{'' if number == 1 else 's'}"


def describe_template(template: str) -> str:
    """Return the parts of a template in words, such as `the topic's name, the header origin, the key`. The topic's
    name is always first.
    """
    words = {FieldKind.HEADER: "the header", FieldKind.VALUE: "the field", FieldKind.KEY: "the key"}
    named = [part for part in parse_template(template) if isinstance(part, Field) and part.kind in words]
    fields = [f"{words[part.kind]} {part.name}".strip() for part in named]
    return ", ".join(["the topic's name", *fields])


def describe_unaddressed(proposal: Proposal) -> str:
    """Return a sentence that says how many sampled records would have no subject, with the place of the first. The
    proposal must have such a record.
    """
    reads_broken = proposal.formats[ValueFormat.JSON_BROKEN] and any(
        column.field.kind is FieldKind.VALUE for column in proposal.subject.columns
    )
    # a field in front of the fault of broken JSON is read
    number = f"{'at most ' if reads_broken else ''}{proposal.unaddressed} of {len(proposal.sample.records)} records"
    return f"{number} lack a field and would be left out, counted, such as {proposal.unaddressed_at}"


def _draft_rule(template: str, topic: str) -> str:
    return "{topic: true}" if template == topic else f"{{template: {quote(template, force=True)}}}"


def _draft_consumer(proposal: Proposal, names: Names, name: str, about: str, filters: Iterable[str] = ()) -> str:
    sample = proposal.sample
    # 1 is the default
    output = [f"output: {{partitions: {sample.partitions}}}     # as {sample.topic} has"] * (sample.partitions > 1)
    return _join(
        *comment(about),
        f"stream: {quote(names.stream)}",
        f"durable_name: {quote(name)}     # the position is kept under this name",
        f"deliver_subject: {quote(name)}     # the output topic; created when it is missing",
        *output,
        *filters,
        "ack_policy: none     # deliver once and go on; `explicit`: a message without an ack comes again (docs/consumers.md)",
        "# deliver_policy: new     # only what comes from now on; without it from the topic's beginning",
    )


def _draft_filter(proposal: Proposal, value: str) -> list[str]:
    """Return an example condition for the consumer of the records whose first field of the subject
    has this value, as comment lines; empty without properties.
    """
    example = make_example(proposal, value)
    if example is None:
        return []
    what = f"{example.passed} of the {count(example.rows, 'sampled record')} with such a subject"
    return [
        *comment(
            f"A condition on the stream's properties (docs/filters.md), such as this one, which {what} would pass:"
        ),
        f"# filter: {{sql: {quote(example.sql, force=True)}}}",
    ]


def _narrow(proposal: Proposal) -> tuple[str, str] | None:
    """Return the commonest value of the first token after the topic, and a subject pattern that selects it. None if
    the subject has no such token, or if no sampled record gets a subject.
    """
    columns = proposal.subject.columns
    if not columns or not proposal.subjects:
        return None
    value = columns[0].counts.most_common(1)[0][0]
    (pattern,) = SubjectRule.from_template(proposal.subject.template).patterns()
    tokens = list(pattern.tokens)
    at = len(tokens) - len(columns)
    tokens[at:] = [escape_token(value.encode("utf-8", "surrogatepass")), *([">"] if len(columns) > 1 else [])]
    return value, ".".join(tokens)


def _comment_notes(proposal: Proposal) -> list[str]:
    return [line for note in proposal.notes for line in comment(f"Note: {note}.")]


def _describe_values(column: SampledField) -> str:
    values = sorted(column.counts, key=lambda text: -column.counts[text])[:5]
    shown = " ".join(escape_token(value.encode("utf-8", "surrogatepass")) for value in values)
    return f"{count(column.distinct, 'value')}: {shown}{' ...' if column.distinct > len(values) else ''}"


def _comment_outcome(proposal: Proposal) -> list[str]:
    rows = len(proposal.sample.records)
    if not rows:
        return []
    common = ", ".join(subject for subject, _ in proposal.subjects.most_common(2))
    lines = comment(f"In the sample that makes {count(len(proposal.subjects), 'subject')}, such as {common}")
    if proposal.unaddressed:
        lines += comment(describe_unaddressed(proposal))
    return lines


def _comment_alternatives(proposal: Proposal) -> list[str]:
    if not proposal.alternatives:
        return []
    lines = ["# Others that would do (`subjects` then has to change with them):"]
    for choice in proposal.alternatives:
        lines += [f"#   subject: {_draft_rule(choice.template, proposal.sample.topic)}", *comment(f"    {choice.why}")]
    return lines


def _draft_properties(proposal: Proposal) -> list[str]:
    if not proposal.properties:
        return []
    lines = [
        "",
        "# Typed fields: a consumer's `filter` may name them, and `index: {terms: [...], zones: [...]}` below has whole chunks",
        "# skipped by their values. The types are those that the sampled values fit. A value that does not parse is null.",
        "properties:",
    ]
    for name, column in proposal.properties:
        source = quote(str(column.field), force=True)
        lines.append(
            f"  {quote(name)}: {{type: {column.type.value}, from: {source}}}{_comment_property(column, proposal.sample)}"
        )
    if proposal.left_out:
        lines += comment(f"{proposal.left_out} more fields are in few records, or are too many to list.")
    return lines


def _comment_property(column: SampledField, sample: TopicSample) -> str:
    remarks = []
    if column.share < 1:
        rows = "JSON objects" if column.field.kind is FieldKind.VALUE else "records"
        remarks.append(f"in {column.share:.0%} of the {rows}")
    misfits = column.misfits
    if misfits:
        is_one = len(misfits) == 1
        what = f"is no {column.type.value}" if is_one else f"are no {column.type.value}s"
        if all(column.types[row] is PropertyType.STRING for row in misfits):
            what = "is a text" if is_one else "are texts"
        place = sample.name_place(sample.records[misfits[0]])
        remarks.append(f"{len(misfits)} of {column.present} {what}, such as {place}")
    if (
        not misfits
        and column.type is PropertyType.LONG
        and all(1e12 <= abs(int(text)) < 5e12 for text in column.counts)
    ):
        remarks.append("perhaps milliseconds since 1970; `timestamp` then")
    return f"     # {', '.join(remarks)}" if remarks else ""


def _join(*lines: str) -> str:
    return "\n".join(lines) + "\n"
