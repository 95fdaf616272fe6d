"""Subjects: the rules that give records a subject, and the patterns that select by it. Pure: no clock, no IO."""

from __future__ import annotations

from overlay.subject.escape import escape_token, unescape_token
from overlay.subject.matcher import Matcher
from overlay.subject.pattern import Pattern, check_subject, intersects, is_subject, is_subset, overlapping
from overlay.subject.reserved import check_stream_subject, is_reserved
from overlay.subject.rule import SubjectRule
from overlay.subject.values import Unaddressed

__all__ = [
    "Matcher",
    "Pattern",
    "SubjectRule",
    "Unaddressed",
    "check_stream_subject",
    "check_subject",
    "escape_token",
    "intersects",
    "is_reserved",
    "is_subject",
    "is_subset",
    "overlapping",
    "unescape_token",
]
