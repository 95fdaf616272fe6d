"""Which worker may be drained, and whether it is, as far as statuses tell. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from overlay.errors import OverlayError

from .findings import Picture
from .memory import WorkerRow


def find_target(picture: Picture, name: str, *, undo: bool = False) -> WorkerRow:
    """Return the row of a worker that may be drained, or with `undo` that may have shards again. Raises OverlayError with
    what to do if it is not there, not heard, or the only one that takes shards.
    """
    rows = {row.worker: row for row in picture.workers}
    if name not in rows:
        known = ", ".join(sorted(picture.live)) or "none"
        raise OverlayError(f"there is no worker {name}. Workers that are heard: {known}. See `overlay workers`")
    if name not in picture.live:
        raise OverlayError(
            f"worker {name} is silent: its shards go to others by themselves. See whether its process runs"
        )
    others = [row for row in picture.live.values() if row.worker != name and not row.drained and not row.trouble]
    if not others and not undo:
        raise OverlayError(
            f"worker {name} is the only one that takes shards: without it nothing would be served. Start another worker first,"
            " or stop this one if that is what you want"
        )
    return picture.live[name]


def is_settled(picture: Picture, name: str, *, undo: bool = False) -> bool:
    """Return whether a drained worker has no shard and each shard has one owner that serves it; or with `undo`, whether
    the worker takes shards again and has its part. False while the worker is not heard.
    """
    row = picture.live.get(name)
    if row is None or row.drained == undo or (undo and row.trouble):
        return False
    served = all(len(owners) == 1 and picture.find_trouble(number) is None for number, owners in picture.owners.items())
    if not undo:
        return served and not row.shards
    # the group has not dealt out yet while a worker has nothing and there is enough for all
    takers = sum(not each.drained for each in picture.live.values())
    return served and (bool(row.shards) or len(picture.owners) < takers)


def list_moves(before: Picture, after: Picture, name: str) -> Mapping[int, str]:
    """Return who has each shard now that the worker had before, by shard: a name, several with " and " between, or "-"
    for none. Empty if the worker had no shards.
    """
    had = [number for number, owners in before.owners.items() if name in owners]
    return {number: " and ".join(after.owners.get(number, ())) or "-" for number in had}
