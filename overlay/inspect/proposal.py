"""A stream proposed from a sample: which fields make the subject, and which become properties.

A subject should tell kinds of messages apart, so that a few patterns select well. Good tokens are
fields that every record has and that have few values. Fields of JSON values are judged over the
records with a JSON object, so that some broken values do not hide them. The field with the fewest
values comes first, because a wildcard at the end (`>`) is the cheapest. If two fields always change
together, only one of them becomes a token. Headers come before fields of the value, since a header
is read without parsing the value. An id that is new in each record makes a poor token. A key that
recurs makes a fair one, but only if there is nothing better.

All of it is judged from a sample. So the result is a draft for the owner of the topic, and it says
so.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from overlay.config.stream import PropertyType
from overlay.field import FieldKind
from overlay.subject import SubjectRule, Unaddressed, is_subject

from .column import SampledField, count_unnamed, find_arrays, find_columns
from .formats import ValueFormat, count_formats, recognise
from .sample import TopicSample

MAX_TOKENS = 3
MAX_VALUES = 500
MAX_NUMBERS = 32
"""Numbers with more values than this are measurements, not kinds of messages."""
MAX_PAIRED = 50
"""Most values of a field of the value that is offered in a pair with another."""
MAX_TEXT = 48
MAX_PROPERTIES = 60
MIN_SHARE = 0.98
MIN_OBJECTS = 0.5
"""The share of records with JSON objects from which on a field of theirs can make the subject."""
RARE = 0.01
_SHOWN = 3
_DECLARED = (ValueFormat.AVRO_REGISTRY, ValueFormat.PROTOBUF_REGISTRY, ValueFormat.PROTOBUF)
_SCHEMAS = "fields can be named once the stream's file has the schemas, under `values`"
_BEYOND = {
    ValueFormat.JSON_BROKEN: ("broken JSON", "what a value holds behind its fault cannot be read"),
    ValueFormat.JSON_ARRAY: ("JSON arrays", "no path can name their fields"),
}
"""Formats of which an example is shown: what users see, and why."""


@dataclass(frozen=True, slots=True)
class RuleProposal:
    """A subject rule: its template, and why it may be the right one. `columns`: the fields in the
    template, in order.
    """

    template: str
    why: str
    columns: tuple[SampledField, ...] = ()


@dataclass(frozen=True, slots=True)
class Proposal:
    """The proposal for a topic, with the observations it is based on.

    `columns`: all sampled fields. `formats`: number of values by format. `alternatives`: other
    subject rules. `properties`: name and column of each. `notes`: remarks for the user.
    """

    sample: TopicSample
    columns: tuple[SampledField, ...]
    formats: Counter[ValueFormat]
    subject: RuleProposal
    alternatives: tuple[RuleProposal, ...]
    properties: tuple[tuple[str, SampledField], ...]
    left_out: int
    """Number of columns that do not become properties, because they are too rare or there are too many."""
    subjects: Counter[str]
    """Counts of the sampled records by subject, under the proposed rule."""
    unaddressed: int
    """Number of sampled records without a subject under the proposed rule."""
    unaddressed_at: str
    """Place of the first sampled record without a subject, such as `orders-0@146`; empty if there is none."""
    notes: tuple[str, ...]


def propose(sample: TopicSample) -> Proposal:
    """Return a proposal for the stream of a sampled topic. For an empty sample, the subject is the topic's name."""
    columns = find_columns(sample.records)
    formats = count_formats(record.value for record in sample.records)
    ranked = _rank(columns, len(sample.records))
    subject = _choose(sample, ranked, columns)
    properties, left_out = _name_properties(columns)
    subjects, unaddressed_at = _try_out(subject, sample)
    return Proposal(
        sample=sample,
        columns=columns,
        formats=formats,
        subject=subject,
        alternatives=_list_alternatives(sample, subject, ranked, columns),
        properties=properties,
        left_out=left_out,
        subjects=subjects,
        unaddressed=len(sample.records) - subjects.total(),
        unaddressed_at=unaddressed_at,
        notes=(*sample.notes, *_note(sample, columns, formats)),
    )


def topic_literal(topic: str) -> str:
    """Return the topic's name as the beginning of a template.

    If its dots do not make valid tokens, return `{topic}`, which is one escaped token.
    """
    return topic if is_subject(topic) else "{topic}"


def _rank(columns: Sequence[SampledField], rows: int) -> list[SampledField]:
    """Return the columns that can become tokens of the subject, best first: headers before fields of the value,
    strings before numbers. Booleans come last, and only if there is nothing else: `true` says little as a token. Keys
    cannot. Of columns that always change together only the first is kept. `rows`: the number of sampled records.
    """
    fit = [
        column
        for column in columns
        if column.field.kind is not FieldKind.KEY and column.rows >= MIN_OBJECTS * rows and _makes_kinds(column)
    ]
    fit = [column for column in fit if column.type is not PropertyType.BOOLEAN] or fit
    order = (PropertyType.STRING, PropertyType.LONG, PropertyType.BOOLEAN)
    fit.sort(key=lambda column: (column.field.kind is FieldKind.VALUE, order.index(column.type)))
    ranked: list[SampledField] = []
    for column in fit:
        if not any(_says_same(column, other) for other in ranked):
            ranked.append(column)
    return ranked


def _makes_kinds(column: SampledField) -> bool:
    """Return whether a column can tell kinds of messages apart: nearly all records that could have it have it, it has
    at least two values, few enough for its type and for the number of records, and none of them long, and a template
    can name it.
    """
    limits = {PropertyType.STRING: MAX_VALUES, PropertyType.LONG: MAX_NUMBERS, PropertyType.BOOLEAN: 2}
    most = min(limits.get(column.type, 0), max(4, column.rows // 4), column.rows - 1)
    return (
        1 < column.distinct <= most
        and column.share >= MIN_SHARE
        and column.fits_template
        and max(map(len, column.counts)) <= MAX_TEXT
    )


def _says_same(one: SampledField, other: SampledField) -> bool:
    """Return whether two columns always change together, so that one says nothing new."""
    pairs = {pair for pair in zip(one.texts, other.texts, strict=True) if None not in pair}
    return len(pairs) == one.distinct == other.distinct


def _choose(sample: TopicSample, ranked: Sequence[SampledField], columns: Sequence[SampledField]) -> RuleProposal:
    """Return the subject rule to propose: of the best of the `ranked` columns and others of the same kind, headers or
    fields, MAX_TOKENS at most; else of a key that recurs; else of the topic's name alone.
    """
    if ranked:
        first = ranked[0].field.kind
        same_place = [column for column in ranked if column.field.kind is first]
        having = "JSON object" if first is FieldKind.VALUE else "record"
        return _make_choice(
            sample.topic, same_place[:MAX_TOKENS], f"fields that every {having} has, with few values each"
        )
    if (key := _find_key(columns)) is not None and key.distinct < key.present:
        return _make_choice(sample.topic, [key], "no header and no field has few values, but keys come back")
    return RuleProposal(topic_literal(sample.topic), "nothing in the sample tells kinds of messages apart")


def _make_choice(topic: str, columns: Sequence[SampledField], why: str) -> RuleProposal:
    ordered = tuple(sorted(columns, key=lambda column: column.distinct))
    return RuleProposal(".".join([topic_literal(topic), *(str(column.field) for column in ordered)]), why, ordered)


def _find_key(columns: Sequence[SampledField]) -> SampledField | None:
    for column in columns:
        if column.field.kind is FieldKind.KEY and column.share >= MIN_SHARE and column.type is not PropertyType.BINARY:
            return column
    return None


def _list_alternatives(
    sample: TopicSample, chosen: RuleProposal, ranked: Sequence[SampledField], columns: Sequence[SampledField]
) -> tuple[RuleProposal, ...]:
    found = [_make_choice(sample.topic, [column], f"{column.distinct} values") for column in ranked[: 2 * MAX_TOKENS]]
    if len(ranked) > 1:
        found.insert(0, _make_choice(sample.topic, ranked[: MAX_TOKENS + 1], "headers and fields of the value"))
    values = [column for column in ranked if column.field.kind is FieldKind.VALUE and column.distinct <= MAX_PAIRED]
    for pair in combinations(values[:MAX_TOKENS], 2):
        fewer, more = sorted(column.distinct for column in pair)
        found.append(_make_choice(sample.topic, pair, f"two fields of the value, {fewer} and {more} values"))
    if (key := _find_key(columns)) is not None:
        found.append(_make_choice(sample.topic, [*chosen.columns, key], f"with the key, {key.distinct} values"))
    found.append(RuleProposal(topic_literal(sample.topic), "one subject for all"))
    distinct = {choice.template: choice for choice in reversed(found) if choice.template != chosen.template}
    return tuple(reversed(distinct.values()))


def _name_properties(columns: Sequence[SampledField]) -> tuple[tuple[tuple[str, SampledField], ...], int]:
    """Return each property's name and column, and how many columns are left out because they are rare or too many.
    Keys are no properties.

    A field name that is not a plain word is changed into one. A field with the name and the values of an earlier
    column is passed over.
    """
    usable = [column for column in columns if column.field.kind is not FieldKind.KEY and column.present]
    kept = [column for column in usable if column.share >= RARE][:MAX_PROPERTIES]
    names: dict[str, SampledField] = {}
    for column in kept:
        word = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in column.field.name).strip("_")
        word = word if word and not word[0].isdigit() else f"p_{word}".rstrip("_")
        if word in names and _copies(column, names[word]):
            continue
        while word in names:
            word = f"{column.field.kind.value}_{word}"
        names[word] = column
    return tuple(names.items()), len(usable) - len(kept)


def _copies(column: SampledField, other: SampledField) -> bool:
    """Return whether two columns have the same name and values, such as a header and a field."""
    return column.field.name == other.field.name and column.texts == other.texts


def _try_out(choice: RuleProposal, sample: TopicSample) -> tuple[Counter[str], str]:
    """Return how many of the sample's records get each subject by the rule, and the place of the
    first that gets none; "" if all get one.
    """
    rule = SubjectRule.from_template(choice.template)
    subjects: Counter[str] = Counter()
    lost = ""
    for row, record in enumerate(sample.records):
        texts = {column.field: column.texts[row] for column in choice.columns}
        values = [encode_text(texts[field], field.kind) for field in rule.fields]
        subject = rule.build(values, sample.topic, record.partition)
        if isinstance(subject, Unaddressed):
            lost = lost or sample.name_place(record)
        else:
            subjects[subject] += 1
    return subjects, lost


def encode_text(text: str | None, kind: FieldKind) -> bytes | None:
    """Return the raw bytes that stand for this text of a field: a JSON string for fields of the value, also for a
    number, else the text itself. None for None.
    """
    if text is None:
        return None
    return json.dumps(text).encode() if kind is FieldKind.VALUE else text.encode()


def _note(sample: TopicSample, columns: Sequence[SampledField], formats: Counter[ValueFormat]) -> list[str]:
    notes = []
    if not sample.records:
        notes.append("the topic holds no record that can be read, so the subject is the topic's name; look again later")
    for form, count in formats.most_common():
        if form.is_encoded:
            share = f"{count} of {len(sample.records)} values"
            hint = _SCHEMAS if form in _DECLARED else "not decoded yet"
            notes.append(f"{share} are {form.value}: {hint}; subjects come from headers, key and topic only")
    notes += _note_json(sample, formats)
    if unnamed := count_unnamed(sample.records):
        notes.append(f"{unnamed} records have JSON fields with a dot in their name or none: no path can name them")
    braced = [column.field.name for column in columns if not column.fits_template]
    if braced:
        notes.append(f"names with braces can be properties, but no part of a template: {', '.join(braced[:3])}")
    return notes


def _note_json(sample: TopicSample, formats: Counter[ValueFormat]) -> Iterator[str]:
    """Yield a note, with the place of one record, for broken JSON, for JSON arrays as values, and for fields that
    hold arrays: no path can name what is in them.
    """
    for form, (what, why) in _BEYOND.items():
        if formats[form]:
            first = next(record for record in sample.records if recognise(record.value) is form)
            share = f"{formats[form]} of {len(sample.records)} values"
            yield f"{what}: {share}, such as {sample.name_place(first)}: {why}"
    if arrays := find_arrays(sample.records):
        names = ", ".join([*arrays][:_SHOWN]) + (" ..." if len(arrays) > _SHOWN else "")
        place = sample.name_place(next(iter(arrays.values())))
        yield f"arrays are no properties and no part of a subject: {names}, such as in {place}"
