"""What a subject may have been meant to be that no sampled record has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher

from overlay.config.stream import StreamConfig
from overlay.config.suggestion import suggest
from overlay.inspect.column import find_columns
from overlay.inspect.proposal import encode_text
from overlay.inspect.sample import TopicSample
from overlay.subject import Pattern, Unaddressed
from overlay.subject.pattern import ONE, REST, intersects


def list_near(stream: StreamConfig, patterns: Iterable[Pattern], samples: Sequence[TopicSample]) -> Iterator[str]:
    """Yield a line for each pattern that no subject of the sampled records matches: with the pattern that was meant, if its
    tokens are similar to those that they have, or else with the nearest subjects, _SHOWN at most. Yield nothing without
    sampled subjects. Patterns that no record of the stream can match are passed over: overlay/view/doubts.py tells of them.
    Neither does it look at fields of values that are not JSON.
    """
    found = find_subjects(stream, samples)
    subjects = [subject.split(".") for subject in found]
    built = (*stream.patterns, *stream.subject.rule.patterns())
    records = sum(len(sample.records) for sample in samples)
    for pattern in patterns:
        is_outside = not all(intersects(pattern, own) for own in built)
        if not found or is_outside or any(pattern.matches(subject) for subject in found):
            continue
        line = f"none of {records} sampled records has a subject like {pattern}."
        if meant := find_meant(pattern, subjects):
            yield f"{line} Did you mean {meant}?"
        else:
            nearest = sorted(found, key=lambda subject: _measure(pattern, subject))
            yield f"{line} {'The nearest are' if len(found) > _SHOWN else 'They have'} {', '.join(nearest[:_SHOWN])}"


_SHOWN = 4
"""Subjects that a line shows at most."""


def _measure(pattern: Pattern, subject: str) -> tuple[int, float, str]:
    """Return how far a subject is from a pattern, to sort by: the tokens of the pattern that it does not have in their
    place, then how little alike the texts are.
    """
    tokens = subject.split(".")
    pairs = zip(pattern.tokens, tokens, strict=False)
    same = sum(1 for wanted, token in pairs if wanted in (ONE, REST, token))
    return len(pattern.tokens) - same, -SequenceMatcher(None, pattern.text, subject).ratio(), subject


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
