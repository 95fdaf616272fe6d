"""Whether an open transaction keeps committed readers from the end of a log."""

from __future__ import annotations

from .admin import Admin
from .log_position import TopicPartition


async def find_open_transaction(admin: Admin, partition: TopicPartition) -> tuple[int, int] | None:
    """Return the offset at which the first open transaction of a partition begins, and the high watermark; None if there is
    none. Raises as `Admin.find_bounds`.
    """
    # the end first: what is written and committed in between would look like a transaction that is open
    end = (await admin.find_bounds([partition], committed=False))[partition][1]
    stable = (await admin.find_bounds([partition]))[partition][1]
    return (stable, end) if stable < end else None
