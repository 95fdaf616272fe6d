"""The ledger of a job's stream while a service keeps it, or while the job may not keep it.

A batch takes no sequences that nothing has given out. While a service runs, batches end where its ledger ends, and
a batch that reads further, since the service has begun after it, waits.

What lies behind an open transaction in the index topic is not known, and may be the first rounds of the ledger. So a batch
waits for the end of the transaction, and a stream whose ledger cannot be seen yet is not taken for one without a ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from overlay.client.read.bounds import ReadBounds
from overlay.errors import OverlayError
from overlay.index.ledger.ledger import Ledger
from overlay.kafka.admin import Admin
from overlay.kafka.log_position import TopicPartition
from overlay.kafka.open_transaction import find_open_transaction
from overlay.logs import get_logger

log = get_logger(__name__)

FOLLOW_S = 60.0
"""Seconds for which a batch waits for sequences that a service has not given out yet. A worker that was stopped is a member
of its group for some of these, and then the job keeps the ledger."""
BEGIN_S = 10.0
"""The same for a stream that has no ledger yet, of which the service may know nothing."""
OPEN_S = 120.0
"""Seconds for which a batch waits for the end of a transaction in the index topic: twice the transaction.timeout.ms that
producers have by default."""
PATIENCE_S = 5.0
"""Seconds after which the job says that it waits for such an end: transactions of a service end sooner."""
PAUSE_S = 0.2
"""Seconds between two looks at a ledger that a service keeps."""

Offsets = Mapping[TopicPartition, int]


class NotNumbered(OverlayError):
    """Records have no stream sequence yet, and the stream has a ledger that gives them some. The operator acts as the
    message says; a job that is started again goes on when they have their sequences.
    """


@dataclass(slots=True)
class Followed:
    """The ledger of a stream as it is in Kafka. `topic`: its index topic. `look`: reads the ledger, with the log's bounds.
    `find_open`: as the function of that name, for this topic. `ledger`: as it was read last, None if there was none.
    """

    stream: str
    topic: str
    look: Callable[[], ReadBounds]
    find_open: Callable[[], int | None]
    ledger: Ledger | None = None
    _told: int = field(default=-1, init=False)
    """Where the open transaction begins of which the log has a line, -1 if there was none."""
    _open_at: int = field(default=-1, init=False)
    """Where the open transaction begins that was seen last, -1 if this batch has met none."""
    _open_since: float = field(default=0.0, init=False)
    """For how long the batch had waited when this transaction was first seen, in seconds."""
    _held_until: float = field(default=0.0, init=False)
    """For how long the batch had waited when it was held up by a transaction last, in seconds."""

    def has_come_to(self, ends: Offsets, waited_s: float, reason: str, *, may_come: bool) -> bool:
        """Read the ledger, and return whether a batch that reads up to `ends` can begin: if there is a ledger, when it has
        come to them. If not, the caller asks again. Without a ledger that is True after BEGIN_S in which no transaction is open
        in the index topic: a service may begin the ledger when one has ended that a former owner has left.

        `waited_s`: for how long the batch has waited. `may_come`: whether a service may give the sequences.
        `reason`: why the job does not give them. Raises NotNumbered if they are not to be had, and what `look` and
        `find_open` raise.
        """
        open_at = self.find_open()  # before the look, which then sees what had ended here
        bounds = self.look()
        self.ledger = bounds.ledger
        missing = None if self.ledger is None else find_missing(self.ledger, bounds.log_starts, ends)
        if self.ledger is not None and missing is None:
            return True
        age_s = self._note_open(open_at, waited_s)
        # a service that is catching up has a short transaction open at each look
        if open_at is not None and (self.ledger is None or age_s >= PATIENCE_S):
            self.hold(open_at, waited_s)
            return False
        free_s = waited_s - self._held_until
        if self.ledger is None:
            return not may_come or free_s >= BEGIN_S
        if missing and not (may_come and free_s < FOLLOW_S):
            (topic, partition), end = missing
            raise NotNumbered(
                f"{topic}-{partition}: the ledger of stream {self.stream} has not come to offset {end}, up to which a batch"
                f" reads, and the job does not give sequences itself: {reason}. Nothing of the batch is delivered. Start"
                " the job again once that is mended"
            )
        return False

    def hold(self, open_at: int, waited_s: float) -> None:
        """Log, once for each transaction and when it is PATIENCE_S old, that a batch waits for the end of the one that begins
        at this offset of the index topic. `waited_s`: for how long the batch has waited. Raises NotNumbered when that one
        has been open for OPEN_S."""
        age_s = self._note_open(open_at, waited_s)
        self._held_until = waited_s
        reason = (
            f"the ledger of stream {self.stream} waits for the end of a transaction that began at {self.topic}-0@{open_at}:"
            " nothing behind it can be read"
        )
        if age_s >= OPEN_S:
            raise NotNumbered(
                f"{reason}. Nothing of the batch is delivered. Start the job again when the transaction has ended. Before you"
                " abort it see docs/operations.md: sequences that were given out may be lost with it"
            )
        if age_s >= PATIENCE_S and open_at != self._told:
            self._told = open_at
            log.warning("records wait for their sequences", stream=self.stream, reason=reason)

    def _note_open(self, open_at: int | None, waited_s: float) -> float:
        """Take up where the open transaction begins, None for none. Return for how long that one has been seen, in seconds."""
        if waited_s < max(self._open_since, self._held_until):  # the wait of another batch
            self._open_at, self._held_until = -1, 0.0
        if open_at is None:
            self._open_at = -1
        elif open_at != self._open_at:
            self._open_at, self._open_since = open_at, waited_s
        if self._open_at < 0:
            self._open_since = 0.0
        return waited_s - self._open_since

    def limit(self, ends: Offsets) -> dict[TopicPartition, int]:
        """Read the ledger, and return `ends`, each lowered to where the ledger has come; unchanged without a ledger, unless
        a transaction is open in the index topic. Raises what `look` and `find_open` raise."""
        bounds = self.look()
        if (ledger := bounds.ledger) is None:
            if self.find_open() is None:
                return dict(ends)
            ledger = Ledger()
        return {s: min(end, max(ledger.end_of(s), bounds.log_starts.get(s, 0))) for s, end in ends.items()}


async def find_open(admin: Admin, topic: str) -> int | None:
    """Return the offset at which the first open transaction of an index topic begins: it keeps readers from the high
    watermark. None if there is none, and for a topic that does not exist or may not be seen. Raises SourceUnavailable,
    CredentialsRefused."""
    if not await admin.find_topics([topic], with_config=False, denied={}):
        return None
    found = await find_open_transaction(admin, (topic, 0))
    return None if found is None else found[0]


def find_missing(ledger: Ledger, log_starts: Offsets, ends: Offsets) -> tuple[TopicPartition, int] | None:
    """Return the first partition in which a ledger has not come to its offset in `ends`, with that offset; None if it has
    come to all of them. `log_starts`: the first offset that the log of each partition still has."""
    missing = [(s, end) for s, end in ends.items() if max(ledger.end_of(s), log_starts.get(s, 0)) < end]
    return min(missing, default=None)
