"""Subjects that are asked for and that no record of a stream can have."""

from __future__ import annotations

from collections.abc import Iterable

from overlay.config.stream import StreamConfig
from overlay.subject import Pattern
from overlay.subject.pattern import REST, intersects


def explain_outside(stream: StreamConfig, pattern: Pattern, *, is_named: bool = True) -> str:
    """Return a sentence for the user if no record of a stream can have a subject that the pattern matches, "" if one can.
    `is_named`: whether a file describes the stream; otherwise it has one topic, whose name is its only subject.
    """
    where = f"stream {stream.name}" if is_named else f"topic {stream.topic_names[0]}"
    subjects, built = stream.patterns, stream.subject.rule.patterns()
    if not is_named and isinstance(subject := stream.subject.rule.build((), stream.topic_names[0], 0), str):
        subjects = built = (Pattern(subject),)
    for words, own in (("subjects are", subjects), ("subject rule builds", built)):
        if not any(intersects(pattern, each) for each in own):
            known = ", ".join(each.text for each in own)
            line = f"no record of {where} has a subject like {pattern}: its {words} {known}"
            return line + _complete(pattern, built)
    return ""


def _complete(pattern: Pattern, built: Iterable[Pattern]) -> str:
    """Return the hint for a pattern that lacks tokens at its end, with a blank before it; "" for other patterns."""
    if pattern.tokens[-1] == REST:
        return ""
    whole = Pattern(f"{pattern}.{REST}")
    return f". Did you mean {whole}?" if any(intersects(whole, own) for own in built) else ""
