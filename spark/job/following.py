"""The ledger of a job's stream while a service keeps it, or while the job may not keep it.

A batch takes no sequences that nothing has given out. While a service runs, batches end where its ledger ends, and
a batch that reads further, since the service has begun after it, waits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from overlay.client.read.bounds import ReadBounds
from overlay.errors import OverlayError
from overlay.index.ledger.ledger import Ledger
from overlay.kafka.log_position import TopicPartition

FOLLOW_S = 60.0
"""Seconds for which a batch waits for sequences that a service has not given out yet. A worker that was stopped is a member
of its group for some of these, and then the job keeps the ledger."""
BEGIN_S = 10.0
"""The same for a stream that has no ledger yet, of which the service may know nothing."""
PAUSE_S = 0.2
"""Seconds between two looks at a ledger that a service keeps."""

Offsets = Mapping[TopicPartition, int]


class NotNumbered(OverlayError):
    """Records have no stream sequence yet, and the stream has a ledger that gives them some. The operator acts as the
    message says; a job that is started again goes on when they have their sequences.
    """


@dataclass(slots=True)
class Followed:
    """The ledger of a stream as it is in Kafka. `look`: reads it, with the log's bounds. `ledger`: as it was read last,
    None if there was none.
    """

    stream: str
    look: Callable[[], ReadBounds]
    ledger: Ledger | None = None

    def has_come_to(self, ends: Offsets, waited_s: float, reason: str, *, may_come: bool) -> bool:
        """Read the ledger, and return whether a batch that reads up to `ends` can begin: if there is a ledger, when it has
        come to them. If not, the caller asks again. Without a ledger that is True after BEGIN_S.

        `waited_s`: for how long the batch has waited. `may_come`: whether a service may give the sequences.
        `reason`: why the job does not give them. Raises NotNumbered if they are not to be had, and what `look` raises.
        """
        bounds = self.look()
        self.ledger = bounds.ledger
        if self.ledger is None:
            return not may_come or waited_s >= BEGIN_S
        missing = find_missing(self.ledger, bounds.log_starts, ends)
        if missing and not (may_come and waited_s < FOLLOW_S):
            (topic, partition), end = missing
            raise NotNumbered(
                f"{topic}-{partition}: the ledger of stream {self.stream} has not come to offset {end}, up to which a batch"
                f" reads, and the job does not give sequences itself: {reason}. Nothing of the batch is delivered. Start"
                " the job again once that is mended"
            )
        return not missing

    def limit(self, ends: Offsets) -> dict[TopicPartition, int]:
        """Read the ledger, and return `ends`, each lowered to where the ledger has come; unchanged without a ledger.
        Raises what `look` raises."""
        bounds = self.look()
        if (ledger := bounds.ledger) is None:
            return dict(ends)
        return {s: min(end, max(ledger.end_of(s), bounds.log_starts.get(s, 0))) for s, end in ends.items()}


def find_missing(ledger: Ledger, log_starts: Offsets, ends: Offsets) -> tuple[TopicPartition, int] | None:
    """Return the first partition in which a ledger has not come to its offset in `ends`, with that offset; None if it has
    come to all of them. `log_starts`: the first offset that the log of each partition still has."""
    missing = [(s, end) for s, end in ends.items() if max(ledger.end_of(s), log_starts.get(s, 0)) < end]
    return min(missing, default=None)
