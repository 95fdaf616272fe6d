"""overlay/dispatch/undelivered.py against a list of everything that is held."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from overlay.dispatch.undelivered import Undelivered

SOURCES = (("t", 0), ("t", 1), ("u", 0))


@given(st.lists(st.tuples(st.sampled_from(SOURCES), st.integers(1, 4), st.integers(0, 3)), max_size=30))
def test_what_is_held(steps: list[tuple[tuple[str, int], int, int]]) -> None:
    """Each step offers a run of one partition, with gaps, then settles some of what is held in the stream's order."""
    holds, held = Undelivered(), list[tuple[int, tuple[str, int], int]]()
    sequence, offsets = 0, dict.fromkeys(SOURCES, 0)
    for source, size, settled in steps:
        run = sequence + 2 * np.arange(1, size + 1)
        at = offsets[source] + 3 * np.arange(1, size + 1)
        holds.add(source, run, at)
        held += zip(run.tolist(), [source] * size, at.tolist(), strict=True)
        sequence, offsets[source] = int(run[-1]), int(at[-1])
        position = held[settled - 1][0] if 0 < settled <= len(held) else 0
        holds.let_go(position)
        held = [each for each in held if each[0] > position]
        assert holds.count == len(held)
        firsts = {source: min(at for _, of, at in held if of == source) for _, source, _ in held}
        assert holds.first_offsets == firsts
        assert {source for source in SOURCES if holds.has(source)} == firsts.keys()
