"""What has changed from one picture of the fleet to the next, row by row: what `/fleet/events` sends. Pure.

A picture is the JSON object that `/fleet` answers. Its tables are lists of rows, each with a key. A change is a JSON
object as well: it has each member of the picture that is no table and has another value now, and for each table with
changes an object of two members. `gone` lists the keys of rows to drop. After that, `rows` has by key what to set: of
a new row all fields, of another one those that changed. A row that has lost a field is in both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

KEYS: Mapping[str, tuple[str, ...]] = {
    "workers": ("worker",),
    "shards": ("shard",),
    "streams": ("name",),
    "consumers": ("stream", "name"),
    "findings": ("kind", "about"),
    "advisories": ("stream", "consumer", "cause"),
}
"""The tables of a picture, and which fields of a row make its key, with a slash between them."""

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class IndexedPicture:
    """A picture with the rows of its tables by their keys. `members`: all of the picture that is no table."""

    rows: Mapping[str, Mapping[str, Row]] = field(default_factory=lambda: {part: {} for part in KEYS})
    members: Mapping[str, Any] = field(default_factory=dict)


def index(picture: Mapping[str, Any]) -> IndexedPicture:
    """Return the tables of a picture, and what else it has. A table that it does not have is empty. Of rows with the same
    key the last one counts.
    """
    rows = {
        part: {"/".join(str(row[name]) for name in names): row for row in picture.get(part, ())}
        for part, names in KEYS.items()
    }
    return IndexedPicture(rows, {name: value for name, value in picture.items() if name not in KEYS})


def compare(old: IndexedPicture, new: IndexedPicture) -> dict[str, Any]:
    """Return what has changed from `old` to `new`, {} if nothing has. A row that is the same object in both is not looked
    into.
    """
    delta: dict[str, Any] = {name: value for name, value in new.members.items() if old.members.get(name) != value}
    for part, rows in new.rows.items():
        before = old.rows[part]
        gone = [key for key in before if key not in rows]
        changed: dict[str, Row] = {}
        for key, row in rows.items():
            known = before.get(key)
            if row is known or row == known:
                continue
            if known is not None and known.keys() <= row.keys():
                changed[key] = {name: value for name, value in row.items() if name not in known or known[name] != value}
                continue
            changed[key] = row
            if known is not None:
                gone.append(key)
        if gone or changed:
            delta[part] = {"gone": gone, "rows": changed}
    return delta
