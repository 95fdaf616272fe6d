from __future__ import annotations

import pytest

from bench.errors import PeerUnavailable
from bench.peers.java import read_report

REPORT = """\
start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, rebalance.time.ms, fetch.time.ms, \
fetch.MB.sec, fetch.nMsg.sec
2026-01-01 10:00:00:000, 2026-01-01 10:00:02:000, 400.0, 200.0, 1000000, 500000.0, 400, 1600, 250.0, 625000.0
"""


def test_the_tool_reports_its_own_time() -> None:
    tally = read_report(REPORT)
    assert (tally.records, tally.matched, tally.seconds) == (1_000_000, None, 1.6)
    assert tally.rate == 625_000


def test_no_report_is_explained_by_what_it_said() -> None:
    with pytest.raises(PeerUnavailable, match="UnknownTopic"):
        read_report("WARN something\n", "org.apache.kafka.UnknownTopic: x")
