from __future__ import annotations

import pytest

from overlay.errors import SubjectError
from overlay.subject import check_stream_subject, is_reserved


@pytest.mark.parametrize(
    "text", ["$JS.>", "$JS.API.>", "$JS.*", "$JS.*.x", "$JS.EVENT", "$JSC.a", "$NRG.*.>", "$JS.*.>"]
)
def test_a_stream_may_not_name_the_reserved_spaces(text: str) -> None:
    with pytest.raises(SubjectError, match=r"overlaps '\$JS\.>', .* keeps for itself: begin it with another token"):
        check_stream_subject(text)


@pytest.mark.parametrize(
    "text", ["$JS.EVENT.>", "$JS.EVENT.ADVISORY.*", "$JS", "$JSX.>", "$js.>", "a.$JS.>", ">", "*.x"]
)
def test_a_stream_may_have_the_rest(text: str) -> None:
    assert str(check_stream_subject(text)) == text


def test_a_stream_subject_is_a_legal_pattern_first() -> None:
    with pytest.raises(SubjectError, match=r"column 5 of pattern '\$JS\.>\.x'"):
        check_stream_subject("$JS.>.x")


@pytest.mark.parametrize(
    ("subject", "answer"),
    [
        ("$JS.API.INFO", True),
        ("$JSC.x", True),
        ("$NRG.x", True),
        ("$JS", False),
        ("$JS.EVENT", True),
        ("$JS.EVENT.x", False),
        ("x.$JS.a", False),
    ],
)
def test_reserved_subjects(subject: str, answer: bool) -> None:
    assert is_reserved(subject) is answer
