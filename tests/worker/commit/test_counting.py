"""What the results of rounds add to the metrics."""

from __future__ import annotations

from overlay.kafka.passed_over import PassedOver
from overlay.metrics import Metrics
from overlay.scan import Malformed
from overlay.scan.header import Fault
from overlay.worker.commit.counting import Counting
from overlay.worker.round.task import Corruption, RoundResult

C, D = ("S", "c"), ("S", "d")


def test_filter_results_add_up_over_rounds() -> None:
    metrics = Metrics()
    counting = Counting(metrics, {})
    counting.take(RoundResult(results={(C, "true"): 2, (C, "false"): 5, (D, "unknown"): 1}))
    counting.take(RoundResult(results={(C, "true"): 3}, nulls={(D, "unparsable"): 4}))
    found = {
        (each.labels["consumer"], each.labels["result"]): each.value
        for family in metrics.filter_results.collect()
        for each in family.samples
        if each.name.endswith("_total")
    }
    assert found == {("c", "true"): 5, ("c", "false"): 5, ("d", "unknown"): 1}
    assert metrics.records_evaluated.labels(*C)._value.get() == 10
    assert metrics.records_evaluated.labels(*D)._value.get() == 1
    assert metrics.filter_nulls.labels(*D, "unparsable")._value.get() == 4


def test_a_batch_that_cannot_be_read_is_reported_once() -> None:
    """Several cursors may meet the same one."""
    told: list[PassedOver] = []
    counting = Counting(Metrics(), {}, told.append)
    bad = Malformed(Fault.CRC, 17, 20)
    for skipped in (False, True):
        counting.take(RoundResult(corruptions=[Corruption("S", ("t", 2), bad, skipped)]))
    assert told == [PassedOver("t", 2, 17, "crc", Fault.CRC.text)]
