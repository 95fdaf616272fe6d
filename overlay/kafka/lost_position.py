"""Positions that a log does not have any more: where their reader may go on, and what it is told if
it may not."""

from __future__ import annotations

from overlay.errors import CredentialsRefused, SourceChanged

from .admin import Admin
from .fetched import Changed, Denied
from .log_position import TopicPartition


async def find_start(admin: Admin, source: TopicPartition, position: int, advice: str) -> int:
    """Return the offset at which to go on in a log that may not have `position` any more:
    `position`, or the log's start if that is higher. If it is, the reader has lost the records in
    between.

    Raises SourceChanged, with `advice` in its text, if the last stable offset is below `position`:
    the log was truncated or created again. Raises as `Admin.find_bounds`.
    """
    first, end = (await admin.find_bounds([source]))[source]
    if position > end:
        raise SourceChanged(
            f"{source[0]}-{source[1]}: the log ends at {end}, below the position {position}: it was truncated or"
            f" created again. {advice}"
        )
    return max(first, position)


def refuse(found: Changed | Denied, source: TopicPartition, advice: str) -> SourceChanged | CredentialsRefused:
    """Return the error to raise for a log that cannot be read further: CredentialsRefused for Denied. `advice`: a
    sentence that says what to do about a changed log; not used for Denied.
    """
    if isinstance(found, Denied):
        return CredentialsRefused(f"{found.reason}. Grant Read on the topic")
    return SourceChanged(
        f"{source[0]}-{source[1]}: the log was truncated at {found.cut}, below the position {found.position}, and has"
        f" grown again. {advice}"
    )
