"""Subjects: the rules that give records a subject, and the patterns that select by it. Pure: no
clock, no IO.
"""

from __future__ import annotations

from .escape import escape_token
from .matcher import Matcher
from .pattern import (
    Pattern,
    check_subject,
    find_plain_wildcard,
    intersects,
    is_subject,
    is_subset,
    overlapping,
)
from .reserved import check_stream_subject, is_reserved
from .rule import SubjectRule
from .values import Unaddressed

__all__ = [
    "Matcher",
    "Pattern",
    "SubjectRule",
    "Unaddressed",
    "check_stream_subject",
    "check_subject",
    "escape_token",
    "find_plain_wildcard",
    "intersects",
    "is_reserved",
    "is_subject",
    "is_subset",
    "overlapping",
]
