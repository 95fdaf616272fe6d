"""Giving sequences out, round by round, without Kafka: the log positions of what was read, renewals, and the pauses
between rounds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from overlay.index.ledger.entries import parse_values
from overlay.index.ledger.ledger import Ledger
from overlay.index.skip.encode import RUNS, wrap
from overlay.kafka.log_position import LogPosition
from overlay.scan.decode import NO_STOP
from overlay.worker.round.sequencing import LINGER_S, RENEW_MS, Linger, Sequencing, cut, find_log_position
from overlay.worker.round.task import Task
from tests.oracle.batches import Record
from tests.oracle.ledger import write_value
from tests.support.batches import build
from tests.worker.round.test_pipeline import make_fetched


def test_log_positions_and_cuts_within_a_fetch() -> None:
    """Between batches the log position is that of the one before; what is cut out holds what is read."""
    batches = [build([Record(at + i, 5, b"k", b"v") for i in range(4)], base_offset=at) for at in (0, 4, 12)]
    fetched = make_fetched(b"".join(batches), 0)
    assert find_log_position(fetched, fetched.next_offset) == fetched.log_position
    assert (
        find_log_position(fetched, 8).crc == int(fetched.batches[1]["crc"])
        and find_log_position(fetched, 8).position == 8
    )
    assert find_log_position(fetched, 10) == LogPosition(10)
    assert cut(fetched, 4, 8).tobytes() == batches[1]
    assert cut(fetched, 5, 13).tobytes() == batches[1] + batches[2]
    assert cut(fetched, 8, 12).size == 0
    assert cut(fetched, 0, 99) is fetched.data
    aborted = make_fetched(b"".join(batches), 0, [(7, 4)])
    assert cut(aborted, 4, 8) is aborted.data


def test_machine_facts_are_renewed() -> None:
    """Partitions that have nothing new are named now and then, so that retention does not take what is known of them."""
    ledger = Ledger()
    sequencing = Sequencing({"S": ledger}, {"S": "i"})
    first = make_fetched(build([Record(0, 5, b"k", b"v")], base_offset=0), 0)
    later = make_fetched(build([Record(1, 5, b"k", b"v")], base_offset=1), 1)
    both = [Task("S", (topic, 0), first, 0, NO_STOP, (), sequenced=True) for topic in "tu"]
    rounds, given_out = sequencing.give_out(both, 0)
    assert len(rounds) == 1 and given_out == {"S": 3}
    again = [Task("S", ("t", 0), later, 1, NO_STOP, (), sequenced=True)]
    assert sequencing.give_out([replace(again[0], sequenced=False)], 1) == ([], {})
    rounds, given_out = sequencing.give_out(again, RENEW_MS + 1)
    assert len(rounds) == 2 and given_out == {"S": 5}  # the renewal takes a sequence
    assert ledger.end_of(("u", 0)) == 1 and ledger.sequence_of(("t", 0), np.arange(3)).tolist() == [1, 4, 0]


def test_ledgers_of_idle_streams_are_renewed() -> None:
    """Nothing comes for longer than the index topic keeps its records: what is known stays known."""
    ledger = Ledger()
    sequencing = Sequencing({"S": ledger, "ELSEWHERE": Ledger()}, {"S": "i"})
    first = make_fetched(build([Record(0, 5, b"k", b"v")], base_offset=0), 0)
    sequencing.give_out([Task("S", ("t", 0), first, 0, NO_STOP, (), sequenced=True)], 0)
    assert sequencing.give_out([], RENEW_MS - 1) == ([], {})
    rounds, given_out = sequencing.give_out([], RENEW_MS)
    assert (len(rounds), given_out, ledger.end_of(("t", 0))) == (1, {"S": 3}, 1)  # the renewal takes a sequence
    assert sequencing.give_out([], RENEW_MS + 1) == ([], {})


def test_rounds_of_a_busy_stream_linger() -> None:
    """At 1,000 records a second they are 5 ms apart; slower streams and longer rounds wait for nothing."""
    linger = Linger()
    assert linger.find_pause("S", 100, 10.0) == 0
    assert linger.find_pause("S", 102, 10.001) == pytest.approx(LINGER_S - 0.001)
    assert linger.find_pause("T", 50_000, 10.001) == 0
    assert linger.find_pause("S", 103, 10.003) == 0
    assert linger.find_pause("S", 9_000, 10.011) == 0


def test_a_renewal_leaves_out_what_a_stranger_has_named() -> None:
    """Bytes that are no text become longer when they are written again: the name would fit no record."""
    run = write_value(1, [("x" * 65_000, 0, 0, 1, -1, -1)])
    payload = run[6:].replace(b"x", b"\xff")
    ledger = Ledger()
    assert ledger.extend(parse_values([wrap(RUNS, payload)])).tolist() == [0]
    sequencing = Sequencing({"S": ledger}, {"S": "i"})
    first = make_fetched(build([Record(0, 5, b"k", b"v")], base_offset=0), 0)
    sequencing.give_out([Task("S", ("t", 0), first, 0, NO_STOP, (), sequenced=True)], 0)
    rounds, given_out = sequencing.give_out([], RENEW_MS)
    assert (len(rounds), given_out) == (1, {"S": 4})
