"""Tables in HTML, which notebooks show for a value that has `_repr_html_`. All texts are foreign data and are escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from .texts import make_printable

MOST_CHARACTERS = 100
"""Most characters of a cell; the rest is cut off."""
_LEFT, _RIGHT = "text-align:left", "text-align:right"


def write_table(names: Sequence[str], rows: Iterable[Sequence[str | None]], numbers: Iterable[str] = ()) -> str:
    """Return an HTML table with a head of `names`, and a row of cells for each of `rows`. Texts are
    escaped, and cut to MOST_CHARACTERS characters; None is shown as null. `numbers`: names of the
    columns that are aligned to the right.
    """
    right = set(numbers)
    styles = [_RIGHT if name in right else _LEFT for name in names]
    head = "".join(_write_cell("th", name, style) for name, style in zip(names, styles, strict=True))
    body = "".join(
        f"<tr>{''.join(_write_cell('td', text, style) for text, style in zip(row, styles, strict=True))}</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def write_sheet(pairs: Iterable[tuple[str, str]]) -> str:
    """Return an HTML table of (name, value) pairs, one a row. Pairs with an empty value are left out.
    Texts are escaped, and cut to MOST_CHARACTERS characters.
    """
    body = "".join(
        f"<tr>{_write_cell('th', name, _LEFT)}{_write_cell('td', value, _LEFT)}</tr>" for name, value in pairs if value
    )
    return f"<table><tbody>{body}</tbody></table>"


def write_line(text: str) -> str:
    """Return an HTML paragraph of the text, escaped; "" for an empty text."""
    return f"<p>{_write_text(text)}</p>" if text else ""


def _write_cell(tag: str, text: str | None, style: str) -> str:
    if text is None:
        return f'<{tag} style="{style}"><i>null</i></{tag}>'
    cut = text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 1] + "…"
    return f'<{tag} style="{style}">{_write_text(cut)}</{tag}>'


def _write_text(text: str) -> str:
    return html.escape(make_printable(text))
