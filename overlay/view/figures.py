"""Numbers in readable form. None is shown as a dash: unknown is not zero."""

from __future__ import annotations

UNKNOWN = "-"
_STEPS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


def show_count(count: int | None) -> str:
    """Return a count like `336,776`; `-` for None."""
    return UNKNOWN if count is None else f"{count:,}"


def show_rate(per_second: float | None) -> str:
    """Return a rate like `0/s`, `0.4/s`, `12/s`, `1.2 k/s` or `12 k/s`; `-` for None."""
    if per_second is None:
        return UNKNOWN
    for step, letter in _STEPS:
        if per_second >= step:
            return f"{_short(per_second / step)} {letter}/s"
    return f"{_short(per_second)}/s"


def _short(number: float) -> str:
    """Return a number with one decimal if it is above 0 and below 9.95, otherwise without decimals.

    For example: `0`, `0.4`, `9.9`, `12`, `1234`.
    """
    return f"{number:.1f}" if 0 < number < 9.95 else f"{number:.0f}"


def show_bytes(size: int | None) -> str:
    """Return a size like `0 B`, `12 kB` or `1.2 MB`, by powers of 1000; `-` for None."""
    if size is None:
        return UNKNOWN
    for step, letter in _STEPS:
        if size >= step:
            return f"{_short(size / step)} {letter}B"
    return f"{size} B"


def show_seconds(seconds: float | None) -> str:
    """Return a duration like `0 s`, `3 ms`, `1.5 s`, `42 s`, `3 min`, `2 h` or `5 d`; `-` for None."""
    if seconds is None:
        return UNKNOWN
    if 0 < seconds < 0.1:
        return f"{_short(seconds * 1000)} ms"
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{_short(seconds)} s"


def show_clock(seconds: float) -> str:
    """Return how far a clock is ahead, like `0.0 s` or `-1.2 s`."""
    # adding 0 makes a zero of the one with a sign
    return f"{round(seconds, 1) + 0.0:.1f} s"
