"""Which worker may be drained, and whether it is, as far as statuses tell. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from overlay.errors import OverlayError

from .findings import Picture
from .memory import WorkerRow


def find_target(picture: Picture, name: str, *, undo: bool = False) -> WorkerRow:
    """Return the row of the worker `name`, which may be drained, or with `undo` may have shards again. Raises OverlayError
    with what to do if there is no such worker, if it is silent, or (without `undo`) if no other worker takes shards.
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
    """Return whether the worker `name` is drained and has no shard, and each shard has exactly one owner, which serves it.
    With `undo`: whether it is not drained and without trouble, each shard has such an owner, and the worker has a shard,
    if there are enough for all workers that take any. False while the worker is silent.
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
    """Return, by number of each shard that the worker `name` had in `before`, which workers have it in `after`: a name,
    several with " and " between, or "-" for none. Empty if the worker had no shards.
    """
    had = [number for number, owners in before.owners.items() if name in owners]
    return {number: " and ".join(after.owners.get(number, ())) or "-" for number in had}
