"""Positions that a log does not have any more: where their reader may go on, and what it is told if
it may not."""

from __future__ import annotations

from overlay.errors import SourceChanged

from .admin import Admin
from .fetcher import Changed, Denied
from .log_position import TopicPartition


async def find_start(admin: Admin, source: TopicPartition, position: int, advice: str) -> int:
    """Return the offset at which to go on in a log that may not have `position` any more:
    `position`, or the log's start if that is higher. Then the reader has lost the records between.

    Raises SourceChanged, with `advice`, if the log ends below `position`, since it is then a
    different log.
    """
    first, end = (await admin.find_bounds([source]))[source]
    if position > end:
        raise SourceChanged(
            f"{source[0]}-{source[1]}: the log ends at {end}, below the position {position}: it was truncated or"
            f" created again. {advice}"
        )
    return max(first, position)


def refuse(found: Changed | Denied, source: TopicPartition, advice: str) -> SourceChanged:
    """Return the error for a log that cannot be read further. `advice`: what to do about a changed one."""
    if isinstance(found, Denied):
        return SourceChanged(found.reason)
    return SourceChanged(
        f"{source[0]}-{source[1]}: the log was truncated at {found.cut}, below the position {found.position}, and has"
        f" grown again. {advice}"
    )
