"""Ledgers behind an open transaction, whose end no reader of committed records reaches.

Until that transaction has ended it is unknown which sequences were given out. So nothing is said of such a ledger,
above all not that it is lost. A shard waits PATIENCE_S for the first such ledger. Then it leaves out the streams with
such ledgers, and serves its other streams. The watch of the session looks for the ends of these transactions
(`find_ended`), and a new session takes the streams up. A session that follows the ledger of another shard leaves no
stream out: it reads on when the transaction has ended, and says after PATIENCE_S that the stream waits (following.py).

Transactions in an index topic are those of the shard that keeps the ledger, and InitProducerId ends them. One stays
open in these cases: Kafka has lost its marker, and the partition does not tell of it (overlay/output/lost_markers.py);
the keeper had another transactional id, as before a change of the number of shards; another program has written to the
topic.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from overlay.errors import OverlayError
from overlay.kafka.admin import Admin
from overlay.kafka.open_transaction import find_open_transaction
from overlay.logs import get_logger

log = get_logger(__name__)

PATIENCE_S = 5.0
"""Seconds for which a shard waits for the end of a transaction before it leaves the stream out."""


@dataclass(frozen=True, slots=True)
class Blocked:
    """An index topic that cannot be read to its end. `offset`: the last stable offset, at which the first open
    transaction begins. `end`: the high watermark when that was seen."""

    topic: str
    offset: int
    end: int

    def explain(self, stream: str) -> str:
        """Return, for operators, why the stream waits, and what to do."""
        return (
            f"the ledger of stream {stream} waits for the end of a transaction that began at {self.topic}-0@{self.offset}:"
            " nothing behind it can be read. The stream goes on by itself when it has ended. The worker ends a transaction of"
            " its shard whose marker Kafka has lost, once the leader of the partition tells of it; Kafka aborts others when the"
            " transaction.timeout.ms of their producers has passed, but for those that `kafka-transactions.sh find-hanging`"
            " finds. Before you abort one see docs/operations.md: sequences that were given out may be lost with it"
        )


async def find_blocked(admin: Admin, topic: str) -> Blocked | None:
    """Return that an index topic is blocked, since it cannot be read to its high watermark now; None if it can. Raises
    SourceUnavailable, CredentialsRefused."""
    found = await find_open_transaction(admin, (topic, 0))
    return None if found is None else Blocked(topic, *found)


async def find_ended(admin: Admin, topics: Collection[Blocked]) -> str:
    """Return that a transaction has ended, for one of `topics` that can be read to its `end` now, or to its high watermark if
    that is lower. Return an empty text if there is none, or if Kafka does not tell."""
    places = {(each.topic, 0): each for each in topics}
    try:
        stable = await admin.find_bounds(places)
        ends = await admin.find_bounds(places, committed=False)
    except OverlayError as error:
        log.warning("index topics behind open transactions cannot be looked at", reason=str(error))
        return ""
    for place, was in places.items():
        if stable[place][1] >= min(was.end, ends[place][1]):
            return f"the transaction that was open at {was.topic}-0@{was.offset} has ended"
    return ""
