"""How long a batch waits for the ledger that others keep, without a Kafka: what is there is said look by look."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from overlay.index.ledger.ledger import Ledger
from spark.job import following
from spark.job.following import BEGIN_S, FOLLOW_S, OPEN_S, PATIENCE_S, Followed, NotNumbered

ENDS = {("t", 0): 10}


class Batch:
    """A batch that waits. `open_at`: the transaction that is open in the index topic now; `ledger`: whether there is one, which
    has not come to the batch's end."""

    def __init__(self) -> None:
        self.open_at: int | None = None
        self.has_ledger = False
        look: Callable[[], Any] = lambda: SimpleNamespace(  # noqa: E731
            ledger=Ledger() if self.has_ledger else None, log_starts={}
        )
        self.followed = Followed("S", "S.index", look, lambda: self.open_at)

    def look(self, waited_s: float) -> bool:
        return self.followed.has_come_to(ENDS, waited_s, "a service runs", may_come=True)


def test_a_stream_has_no_ledger_when_none_has_begun_while_nothing_was_open() -> None:
    batch = Batch()
    assert not batch.look(BEGIN_S - 0.1)
    batch.open_at = 7
    assert not batch.look(BEGIN_S + 2)
    batch.open_at = None
    assert not batch.look(BEGIN_S + 2.2), "a new owner may begin the ledger, now that the former one's is aborted"
    assert not batch.look(2 * BEGIN_S + 1.9)
    assert batch.look(2 * BEGIN_S + 2)
    assert not batch.look(0.0), "another batch waits by itself"


def test_short_transactions_of_a_service_hold_no_batch_up_and_are_not_told_of() -> None:
    batch = Batch()
    batch.has_ledger = True
    with capture_logs() as logs:
        for look in range(int(FOLLOW_S)):
            batch.open_at = look
            assert not batch.look(float(look))
    assert logs == []
    batch.open_at = 1_000
    with pytest.raises(NotNumbered, match="has not come to offset 10"):
        batch.look(FOLLOW_S)


def test_one_transaction_holds_a_batch_up_for_as_long_as_it_may_be_open() -> None:
    batch = Batch()
    batch.has_ledger = True
    assert not batch.look(20.0)
    batch.open_at = 7
    with capture_logs() as logs:
        for waited_s in (21.0, 21.0 + PATIENCE_S, 21.0 + OPEN_S - 1):
            assert not batch.look(waited_s)
    assert [each["event"] for each in logs] == ["records wait for their sequences"]
    with pytest.raises(NotNumbered, match=r"S\.index-0@7"):
        batch.look(21.0 + OPEN_S)
    assert following.PAUSE_S < PATIENCE_S
