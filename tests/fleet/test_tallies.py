"""Advisories and dead letters by cause, in windows."""

from __future__ import annotations

from typing import Any

import pytest

from overlay.consumer.advisories import encode_advisory
from overlay.consumer.effects import Advise, Advisory, DeadLetter, Sample
from overlay.fleet import tallies
from overlay.fleet.findings import Finding, Kind
from overlay.fleet.live import LivePicture, encode_event
from overlay.fleet.status import Refusal
from overlay.fleet.tallies import KEPT_WINDOWS, RECENT_WINDOWS, WINDOW_MS, Tallies
from overlay.output.dead_letters import describe_dead_letter

from .statuses import NOW, make_status


def make_key(kind: Advisory, consumer: str = "c") -> bytes:
    return encode_advisory(Advise(kind), "S", consumer, "id", NOW)[0].encode()


def describe(found: Tallies, now: int = NOW) -> list[tuple[Any, ...]]:
    found.flush(now)
    return [(row["consumer"], row["cause"], row["minutes"], row["hour"]) for row in found.describe(now)]


def test_advisories_are_counted_by_consumer_and_cause() -> None:
    found = Tallies()
    for kind in (Advisory.NAK, Advisory.NAK, Advisory.MAX_DELIVER):
        found.take_event(make_key(kind), NOW, NOW)
    found.take_event(make_key(Advisory.NAK, "d"), NOW - 20 * WINDOW_MS, NOW)
    assert describe(found) == [("c", "max_deliveries", 1, 1), ("c", "msg_naked", 2, 2), ("d", "msg_naked", 0, 1)]


@pytest.mark.parametrize("kind", Advisory)
def test_each_kind_of_advisory_is_known(kind: Advisory) -> None:
    found = Tallies()
    found.take_event(make_key(kind), NOW, NOW)
    assert len(describe(found)) == 1 and not found.refused


def test_other_events_are_left_out() -> None:
    found = Tallies()
    sample = encode_advisory(Sample(1, 1, 1, 1), "S", "c", "id", NOW)[0].encode()
    own = encode_event(Finding(Kind.NO_WORKER, "", "x"), NOW, is_open=True)[0]
    for key in (sample, own, b"$JS.EVENT.ADVISORY.API", b"$OVERLAY.EVENT.UNREADABLE.t", None):
        found.take_event(key, NOW, NOW)
    assert describe(found) == [] and not found.refused


def test_dead_letters_are_counted_by_their_headers() -> None:
    found = Tallies()
    for reason in ("max_deliver", "max_deliver", "term", "strange", "stranger"):
        letter = DeadLetter(1, reason, 3, 0, 0)
        found.take_letter(describe_dead_letter(letter, "S", "c", 0, 7), NOW, NOW)
    causes = {cause: hour for _, cause, _, hour in describe(found)}
    assert causes == {"dead letter: max_deliver": 2, "dead letter: term": 1, "dead letter: other": 2}


def test_windows_pass() -> None:
    found = Tallies()
    found.take_event(make_key(Advisory.NAK), NOW, NOW)
    assert describe(found) == [("c", "msg_naked", 1, 1)]
    found.take_event(make_key(Advisory.NAK), NOW + WINDOW_MS, NOW + WINDOW_MS)
    assert describe(found, NOW + WINDOW_MS) == [("c", "msg_naked", 2, 2)]
    later = NOW + RECENT_WINDOWS * WINDOW_MS
    assert describe(found, later) == [("c", "msg_naked", 1, 2)]
    assert describe(found, NOW + KEPT_WINDOWS * WINDOW_MS) == [("c", "msg_naked", 0, 1)]
    assert describe(found, NOW + (KEPT_WINDOWS + 1) * WINDOW_MS) == [] and not found.rows


def test_rows_are_put_into_a_table_once_a_second() -> None:
    """Each write to a table of Faust is a record of its changelog."""
    found = Tallies()
    for _ in range(1_000):
        found.take_event(make_key(Advisory.NAK), NOW, NOW)
    assert not found.rows
    found.flush(NOW)
    row = found.rows["S/c/msg_naked"]
    found.flush(NOW + 1)
    assert found.rows["S/c/msg_naked"] is row


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        (b"\xff", Refusal.MALFORMED),
        (b"$JS.EVENT.ADVISORY.CONSUMER.ZORK.S.c", Refusal.MALFORMED),
        (b"$JS.EVENT.ADVISORY.CONSUMER.PAUSE.S", Refusal.MALFORMED),
        (b"$JS.EVENT.ADVISORY.CONSUMER.PAUSE.S.a\nb", Refusal.MALFORMED),
        (b"$JS.EVENT.ADVISORY.CONSUMER.PAUSE.S." + b"x" * 256, Refusal.MALFORMED),
    ],
    ids=["text", "kind", "names", "control character", "length"],
)
def test_strange_keys_are_counted(key: bytes, reason: Refusal) -> None:
    found = Tallies()
    if key != b"\xff":
        found.take_event(key, NOW, NOW)
        assert found.refused == {reason: 1}
    else:
        found.take_event(key, NOW, NOW)
        found.take_letter([("Overlay-Stream", key)], NOW, NOW)
        found.take_letter([], NOW, NOW)
        assert found.refused == {reason: 3}
    assert describe(found) == []


def test_times_of_strangers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Tallies()
    found.take_event(make_key(Advisory.NAK), NOW + KEPT_WINDOWS * WINDOW_MS + 1, NOW)
    assert found.refused == {Refusal.FUTURE: 1}
    found.take_event(make_key(Advisory.NAK), NOW - KEPT_WINDOWS * WINDOW_MS, NOW)
    assert describe(found) == []
    monkeypatch.setattr(tallies, "MOST_TALLIES", 1)
    for consumer in ("c", "d", "c"):
        found.take_event(make_key(Advisory.NAK, consumer), NOW, NOW)
    assert describe(found) == [("c", "msg_naked", 2, 2)]
    assert found.refused[Refusal.LIMIT] == 1


def test_the_picture_has_them() -> None:
    live = LivePicture()
    live.memory.fold(make_status(), NOW)
    live.tallies.take_event(make_key(Advisory.NAK), NOW, NOW)
    live.tallies.take_event(b"\xff", NOW, NOW)
    live.judge(0)
    answer = live.describe(0)
    assert answer["advisories"] == [
        {"stream": "S", "consumer": "c", "cause": "msg_naked", "minutes": 1, "hour": 1, "seen": NOW}
    ]
    assert answer["ignored"]["malformed"] == 1
