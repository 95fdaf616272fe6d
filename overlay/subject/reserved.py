"""The subjects that JetStream keeps for itself: `$JS.>`, `$JSC.>` and `$NRG.>`, but not `$JS.EVENT.>`.

A stream may not capture them. A server therefore refuses any stream subject that could match one of them, unless the
stream never answers its publishers (`no_ack`). Streams over Kafka are of that kind: producers write to Kafka and expect
no answer. So what is refused here is a pattern that names a reserved space by its first token, while one that reaches
in only because it begins with a wildcard may stand, the default `>` among them; and no rule ever builds a
reserved subject (SubjectRule.build says OUTSIDE), so those stay out of every stream.
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
    """Whether JetStream keeps this literal subject for itself."""
    return subject.startswith(_RESERVED_STARTS) and not subject.startswith(_ALLOWED_START)


def may_be_reserved(pattern: Pattern) -> bool:
    """Whether some subject of the pattern may be reserved. In doubt yes: `$JS.*.>` is, though it holds allowed ones."""
    return any(intersects(pattern, reserved) for reserved in _RESERVED) and not is_subset(pattern, _ALLOWED)


def check_stream_subject(text: str, *, shown: str = "") -> Pattern:
    """The pattern that `text` writes. Raises SubjectError when it is not legal, or a stream may not capture it.

    The error quotes `shown` where that is given: the template, say, that makes the subjects of this pattern.
    """
    pattern = Pattern.parse(text)
    if pattern.tokens[0] not in (ONE, REST) and may_be_reserved(pattern):
        spaces = ", ".join(f"'{reserved}'" for reserved in _RESERVED)
        raise SubjectError(
            f"stream subject {shown or text!r} overlaps {spaces}, which JetStream keeps for itself: "
            f"begin it with another token, or stay within '{_ALLOWED}'"
        )
    return pattern
