"""Which ledger a job plans with after faults: the one that the last call has extended, or none. Without Kafka."""

from __future__ import annotations

from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from overlay.client.read.bounds import ReadBounds
from overlay.config import ServiceConfig, StreamConfig
from overlay.errors import OverlayError, SourceUnavailable
from overlay.index.ledger.ledger import Ledger
from overlay.state.partitions import Sources
from spark.job import following, keeping
from spark.job.keeping import LOOK_S, ServiceRuns, StreamKeeper

NO_LEDGER = ReadBounds((), Sources((), {}))
ENDS = {("t", 0): 1, ("t", 1): 1}
ONLY = (("t", 0), 1)
OUTCOMES: list[OverlayError | None] = [
    None,
    OverlayError("it is not the ledger"),
    SourceUnavailable("away"),
    ServiceRuns(),
]
CALLS = st.lists(
    st.tuples(st.sampled_from([0.0, 1.0, LOOK_S]), st.booleans(), st.sampled_from(OUTCOMES)), min_size=1, max_size=8
)
"""Of each call: how many seconds pass before it, whether the stream has just got a second partition, and what becomes of an
attempt to extend the ledger."""


@given(CALLS)
# a stream that has got its second partition meanwhile is extended at once, and the next batch as well
@example([(0.0, False, OUTCOMES[1]), (1.0, True, None), (1.0, False, None)])
def test_the_ledger_is_that_of_the_last_call(calls: list[tuple[float, bool, OverlayError | None]]) -> None:
    clock = SimpleNamespace(now=100.0)
    with pytest.MonkeyPatch.context() as patch, StreamKeeper(SERVICE, STREAM, lambda: NO_LEDGER) as keeper:
        patch.setattr(keeping, "monotonic", lambda: clock.now)
        patch.setattr(following, "BEGIN_S", 0.0)
        patch.setattr(keeper._followed, "find_open", lambda: None)
        failed_at = -LOOK_S
        for pause, is_new, outcome in calls:
            clock.now += pause
            attempt = Attempt(outcome)
            patch.setattr(keeper, "_extend_patiently", attempt)
            is_kept = False
            with suppress(OverlayError):
                is_kept = keeper.extend(ENDS, ONLY if is_new else None)
            assert keeper.ledger is (attempt.ledger if is_kept else None)
            # nothing is tried only while the last attempt is one that failed
            assert attempt.is_made or clock.now < failed_at + LOOK_S
            if attempt.is_made:
                failed_at = -LOOK_S if outcome is None else clock.now


SERVICE = ServiceConfig.model_validate({"kafka": {"bootstrap.servers": "127.0.0.1:1"}})
STREAM = StreamConfig.model_validate({"name": "S", "topics": ("t",)})


class Attempt:
    """One attempt to extend the ledger. `ledger`: the extended one."""

    def __init__(self, outcome: OverlayError | None) -> None:
        self.ledger, self.is_made = Ledger(), False
        self._outcome = outcome

    async def __call__(self, *_: Any) -> Ledger:
        self.is_made = True
        if self._outcome is not None:
            raise self._outcome
        return self.ledger
