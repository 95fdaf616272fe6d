"""The examples that Hypothesis draws in `make test` are the same in each run."""

from __future__ import annotations

import os

import pytest
from hypothesis.internal.conjecture.providers import HypothesisProvider

from overlay.units import INT64_MAX


@pytest.mark.skipif(os.environ.get("OVERLAY_EXAMPLES") == "new", reason="other examples are wanted each time")
def test_examples_have_no_constants_of_the_modules_that_are_loaded() -> None:
    """Which test files a process runs before a test is chance."""
    constants = HypothesisProvider(None)._local_constants
    assert INT64_MAX not in constants.integers
    assert not len(constants)
