"""A cache keeps what was used last."""

from __future__ import annotations

from overlay.recent import Recent


def test_what_was_not_used_for_the_longest_time_goes_first() -> None:
    kept: Recent[str, int] = Recent()
    for key, value in (("a", 1), ("b", 2)):
        kept.put(key, value, 2)
    assert kept.get("a") == 1
    kept.put("c", 3, 2)
    assert (kept.get("a"), kept.get("b"), kept.get("c"), len(kept)) == (1, None, 3, 2)
    kept.put("a", 4, 2)
    kept.put("d", 5, 2)
    assert (kept.get("a"), kept.get("c")) == (4, None)
    kept.clear()
    assert len(kept) == 0
