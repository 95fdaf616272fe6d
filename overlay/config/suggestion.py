"""The name that a user may have meant.

It is apart from the rules that say it: nearly every command has it, and few check a stream.
"""

from __future__ import annotations

from difflib import get_close_matches


def suggest(word: str, known: list[str] | tuple[str, ...]) -> str:
    """Return ` Did you mean x?` with the most similar known word, or "" if none is similar."""
    by_lower = {name.lower(): name for name in known}
    near = get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return f" Did you mean {by_lower[near[0]]}?" if near else ""
