"""Errors of Spark's tasks and queries, as text for users and logs."""

from __future__ import annotations


def explain(error: Exception) -> str:
    """Return the text to show for an error.

    For one that came through Java, this is the overlay's own message if there is one.
    """
    text = str(error)
    for line in text.splitlines():
        kind, colon, words = line.partition(": ")
        if colon and kind.startswith(("overlay.", "spark.")):
            return words
    return text
