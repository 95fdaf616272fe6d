"""Links between the records of a shard's state, by which a reader notices that some are lost.

A state partition may lose committed records: a replica that lacked its last records becomes the
leader (an unclean election), or an operator aborts a transaction whose marker is lost. The owner may
not notice, and continue with what it has in memory. A reader that applied the records of both parts
would pass over what the lost ones said: the position of a consumer that was left out, or messages
that wait for an ack. These would never be delivered.

So each record says where the records end that its writer knew (`after`). A reader follows these links
back from the last record. A record whose predecessor is lost is void, and so are the records that
build on it, up to the next one that holds the whole state. The state is always that of one moment. If
it is too old, messages are delivered again, and none is passed over.

The links also tell of a record that was aborted, and that Kafka shows as committed because the marker
of its abort is lost. The next owner did not know that record, so no link leads to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_ROOT = -1
"""The predecessor of a record that follows no other one."""


@dataclass(frozen=True, slots=True)
class Link:
    """A state record's place in its log.

    `offset`: its own. `end`: the offset after the record and the records of machines that follow it. `after`: the end
    of the records that its writer knew; None if the record does not say (as in earlier versions), and then it follows
    the record before it. `is_whole`: it holds the whole state of the shard.
    """

    offset: int
    end: int
    after: int | None
    is_whole: bool


def find_void(links: Sequence[Link], log_start: int) -> frozenset[int]:
    """Return the offsets of the state records that must not be applied (void): a record that they build on is
    lost, or the later records do not build on them, since they were aborted. Empty if there are none. Records
    before the last valid one that holds the whole state are left out: it replaces them.

    `links`: of all records of a state partition, in order. `log_start`: the partition's first offset.
    Records below it were deleted once a checkpoint had replaced them, and are not lost.
    """
    before = _find_predecessors(links, log_start)
    row = max((row for row, former in enumerate(before) if former is not None), default=_ROOT)
    counted: set[int] = set()
    first = 0
    while row != _ROOT:
        counted.add(row)
        # a whole record replaces what precedes it, void or not
        first = row if links[row].is_whole else 0
        row = _ROOT if (former := before[row]) is None else former
    return frozenset(link.offset for row, link in enumerate(links) if row >= first and row not in counted)


def _find_predecessors(links: Sequence[Link], log_start: int) -> list[int | None]:
    """Return the row of each record's predecessor; _ROOT for a record that needs none, since it is
    whole, follows nothing, or follows records below `log_start`; None for a record whose
    predecessor is lost, or builds on a lost one."""
    found: list[int | None] = []
    rows = dict[int, int]()
    for row, link in enumerate(links):
        former: int | None
        if link.is_whole or (link.after is not None and link.after <= log_start):
            former = _ROOT
        elif link.after is None:
            former = row - 1
        else:
            former = rows.get(link.after)
        is_void = former is not None and former != _ROOT and found[former] is None
        found.append(None if is_void else former)
        rows[link.end] = row
    return found
