"""The subjects that JetStream reserves: `$JS.>`, `$JSC.>` and `$NRG.>`, but not `$JS.EVENT.>`.

A stream may not capture them. Therefore a server refuses any stream subject that could match one of
them, unless the stream never answers its publishers (`no_ack`). Streams over Kafka are of that
kind: producers write to Kafka and expect no answer. So a pattern is refused here only if its first
token names a reserved space. One that reaches it only through a leading wildcard is allowed,
including the default `>`. No rule ever builds a reserved subject (SubjectRule.build returns
OUTSIDE), so those stay out of every stream.
"""

from __future__ import annotations

from overlay.errors import SubjectError

from .pattern import ONE, REST, Pattern, intersects, is_subset

__all__ = ["check_stream_subject", "is_reserved", "may_be_reserved"]

_RESERVED = (Pattern("$JS.>"), Pattern("$JSC.>"), Pattern("$NRG.>"))
_ALLOWED = Pattern("$JS.EVENT.>")
_RESERVED_STARTS = tuple(pattern.text.removesuffix(REST) for pattern in _RESERVED)
_ALLOWED_START = _ALLOWED.text.removesuffix(REST)


def is_reserved(subject: str) -> bool:
    """Return whether JetStream reserves this subject (without wildcards): it begins with `$JS.`,
    `$JSC.` or `$NRG.`, but not with `$JS.EVENT.`.
    """
    return subject.startswith(_RESERVED_STARTS) and not subject.startswith(_ALLOWED_START)


def may_be_reserved(pattern: Pattern) -> bool:
    """Return whether the pattern can match a subject that JetStream reserves (is_reserved). True
    also if it matches allowed subjects besides, as `$JS.*.>` and `>` do.
    """
    return any(intersects(pattern, reserved) for reserved in _RESERVED) and not is_subset(pattern, _ALLOWED)


def check_stream_subject(text: str, *, shown: str = "") -> Pattern:
    """Return the pattern of a stream's subject. Raises SubjectError if `text` is no legal pattern,
    or if it can match a subject that JetStream reserves, unless its first token is a wildcard.

    In the second case the message quotes `shown` instead of `text` if `shown` is not empty, such as
    the template that makes the subjects of this pattern.
    """
    pattern = Pattern.parse(text)
    if pattern.tokens[0] not in (ONE, REST) and may_be_reserved(pattern):
        spaces = ", ".join(f"'{reserved}'" for reserved in _RESERVED)
        raise SubjectError(
            f"stream subject {shown or text!r} overlaps {spaces}, which JetStream keeps for itself: "
            f"begin it with another token, or stay within '{_ALLOWED}'"
        )
    return pattern
