"""What `overlay read --last` says of records that are newer than those it prints."""

from __future__ import annotations

import pytest

from overlay.cli.read import _tell
from overlay.client import Progress


def test_newer_records_that_the_order_by_sequence_leaves_out_are_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    _tell(Progress(newer=1234))
    assert "by time 1,234 other records are newer" in capsys.readouterr().err
    _tell(Progress())
    assert capsys.readouterr().err == ""
