"""What a subject may have been meant to be that no sampled record has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from overlay.config.stream import StreamConfig
from overlay.config.suggestion import suggest
from overlay.inspect.column import find_columns
from overlay.inspect.proposal import encode_text
from overlay.inspect.sample import TopicSample
from overlay.subject import Pattern, Unaddressed
from overlay.subject.pattern import ONE, REST, intersects


def list_near(stream: StreamConfig, patterns: Iterable[Pattern], samples: Sequence[TopicSample]) -> Iterator[str]:
    """Yield a line for each pattern that no subject of the sampled records matches, if one of its tokens is similar to one
    that they have in its place. Patterns that no record of the stream can match are passed over: overlay/view/doubts.py
    tells of them. Neither does it look at fields of values that are not JSON.
    """
    subjects = [subject.split(".") for subject in find_subjects(stream, samples)]
    built = (*stream.patterns, *stream.subject.rule.patterns())
    for pattern in patterns:
        if all(intersects(pattern, own) for own in built) and (meant := find_meant(pattern, subjects)):
            records = sum(len(sample.records) for sample in samples)
            yield f"none of {records} sampled records has a subject like {pattern}. Did you mean {meant}?"


def find_subjects(stream: StreamConfig, samples: Iterable[TopicSample]) -> Counter[str]:
    """Return the subjects of sampled records, each with the number of its records."""
    found: Counter[str] = Counter()
    rule = stream.subject.rule
    for sample in samples:
        texts = {column.field: column.texts for column in find_columns(sample.records)}
        for row, record in enumerate(sample.records):
            cells = [(field.kind, texts[field][row] if field in texts else None) for field in rule.fields]
            subject = rule.build([encode_text(text, kind) for kind, text in cells], sample.topic, record.partition)
            if not isinstance(subject, Unaddressed):
                found[subject] += 1
    return found


def find_meant(pattern: Pattern, subjects: Iterable[Sequence[str]]) -> str:
    """Return the pattern with the most similar tokens of these subjects in place of those that none of them has there; ""
    if one has no similar token, or if all tokens are there.
    """
    rows = [subject for subject in subjects if len(subject) >= len(pattern.tokens)]
    meant = []
    for at, token in enumerate(pattern.tokens):
        known = {subject[at] for subject in rows}
        if token in (ONE, REST) or token in known:
            meant.append(token)
            continue
        near = suggest(token, sorted(known))
        if not near:
            return ""
        token = near.removeprefix(" Did you mean ").removesuffix("?")
        meant.append(token)
        rows = [subject for subject in rows if subject[at] == token]
    text = ".".join(meant)
    return "" if text == pattern.text else text
