"""Errors of Spark's tasks and queries, as text for users and logs."""

from __future__ import annotations


def explain(error: Exception) -> str:
    """Return the text to show for an error: its own text. If a line of that begins with the name of one of the overlay's
    errors, as in an error that came through Java, return only the message in that line.
    """
    text = str(error)
    for line in text.splitlines():
        kind, colon, words = line.partition(": ")
        if colon and kind.startswith(("overlay.", "spark.")):
            return words
    return text
