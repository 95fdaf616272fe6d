"""Patterns and subjects over few words, so that they meet."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.oracle.subjects import EVERY_PATTERN, EVERY_SUBJECT

patterns = st.sampled_from(EVERY_PATTERN)
subjects = st.sampled_from(EVERY_SUBJECT)
near_subjects = st.text(alphabet="ab.*> \t\r\n\f\v\u00a0é", max_size=8)
"""Legal and illegal texts; \\v and the no-break space are legal, unlike the other blanks."""

values = st.one_of(
    st.binary(max_size=12),
    st.text(max_size=8).map(str.encode),
    st.text(alphabet="aZ9.*>% \t\u2028é\U0001f600", max_size=8).map(str.encode),
)
