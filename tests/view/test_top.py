"""The screen of `overlay top`, by its lines."""

from __future__ import annotations

from typing import Any

import pytest
from rich.cells import cell_len

from overlay.cli.top import ORDERS, paint
from overlay.view.top import HELP, Choice, Line, Order, Span, Style, count_rows, cut, draw, fit, press, rank, split_keys

WIDTH, HEIGHT = 120, 20


def make_consumer(name: str, **fields: Any) -> dict[str, Any]:
    usual = {"stream": "S", "state": "running", "worker": "a", "rate": 0.0, "lag": 0, "lag_s": 0.0, "unacked": 0}
    return {**usual, "name": name, "redelivered": 0, **fields}


def make_worker(name: str, **fields: Any) -> dict[str, Any]:
    usual = {"state": "running", "shards": [0], "consumers": 2, "clock_ahead_seconds": 0.0, "seen": 98_000}
    return {"worker": name, **usual, **fields}


def make_picture(consumers: int = 2, **fields: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {
        "time": 100_000,
        "workers": [make_worker("a")],
        "shards": [{"shard": 0}],
        "consumers": [make_consumer(f"c{number:03}") for number in range(consumers)],
        "findings": [],
    }
    return usual | fields


def read(lines: list[Line]) -> list[str]:
    return [paint(line, colours=False) for line in lines]


def test_a_screen() -> None:
    consumers = [
        make_consumer("slow", rate=1.0, lag=1_204_311, lag_s=90.0, unacked=7),
        make_consumer("quick", rate=12_000.0),
    ]
    finding = {"kind": "worker_silent", "about": "b", "text": "no status since noon"}
    silent = make_worker("b", state="silent", shards=[], seen=59_000)
    found = make_picture(consumers=0, findings=[finding]) | {"consumers": consumers}
    found["workers"] = [make_worker("a"), silent]
    lines = read(draw(found, Choice(), WIDTH, HEIGHT, "overlay"))
    assert [line.rstrip() for line in lines] == [
        " overlay top  overlay  1 worker, 1 shard, 2 consumers, 12 k/s, lag 1,204,311",
        "! worker silent b: no status since noon",
        "worker                    state     shards          consumers   records/s  clock ahead     status",
        "a                         running   0                       2      12 k/s        0.0 s  2.0 s ago",
        "b                         silent    -                       2         0/s        0.0 s   41 s ago",
        "",
        "consumer"
        + " " * 22
        + "state        worker             records/s            lag  lag time    unacked  redelivered",
        "S/quick "
        + " " * 22
        + "running      a                     12 k/s              0       0 s          0            0",
        "S/slow  "
        + " " * 22
        + "running      a                      1.0/s      1,204,311      90 s          7            0",
        f"1-2 of 2 by rate   {HELP}"[:WIDTH],
    ]


@pytest.mark.parametrize(("width", "height"), [(200, 50), (80, 24), (40, 10), (20, 4), (3, 2), (1, 1)])
def test_a_screen_is_never_larger_than_the_terminal(width: int, height: int) -> None:
    found = make_picture(
        100, workers=[make_worker("ホスト" * 9)] * 12, findings=[{"kind": "k", "about": "", "text": "t" * 99}] * 9
    )
    lines = read(draw(found, Choice(), width, height, "overlay"))
    assert len(lines) <= max(height, 2) and max(map(cell_len, lines)) <= width


def test_names_keep_room_and_other_columns_go() -> None:
    assert [column.title for column in fit(120)][-1] == "redelivered"
    assert [column.title for column in fit(60)] == ["consumer", "state", "worker"]
    assert [(column.title, column.width) for column in fit(10)] == [("consumer", 10)]
    for width in range(20, 200):
        assert sum(column.width + 2 for column in fit(width)) - 2 == width


def test_many_findings_and_workers_are_counted() -> None:
    findings = [{"kind": "shard_without_owner", "about": str(number), "text": "t"} for number in range(7)]
    found = make_picture(workers=[make_worker(f"w{number}") for number in range(10)], findings=findings)
    lines = read(draw(found, Choice(), WIDTH, 40, "overlay"))
    assert [line for line in lines if line.startswith("!")][-2:] == [
        "! shard without owner 4: t",
        "! and 2 more, see `overlay workers`",
    ]
    assert "and 2 more, see `overlay workers`" in lines


ODD = [
    make_consumer("a", rate=5.0, redelivered=1),
    make_consumer("b", lag=9, lag_s=1.0),
    make_consumer("c", lag=None, unacked=3, state="stalled"),
    make_consumer("d", lag_s=7.0, state="catching up"),
]


@pytest.mark.parametrize(
    ("order", "names"),
    [
        *((Order.RATE, "abcd"), (Order.LAG, "bacd"), (Order.LAG_TIME, "dbac"), (Order.UNACKED, "cabd")),
        *((Order.REDELIVERED, "abcd"), (Order.STATE, "cdab"), (Order.NAME, "abcd")),
    ],
)
def test_each_order(order: Order, names: str) -> None:
    assert [row["name"] for row in rank(ODD, order)] == [*names]


def test_each_order_has_a_key_a_word_and_a_place_in_the_help() -> None:
    assert [order.word for order in Order] == [*ORDERS]
    assert len({order.key for order in Order}) == len(Order)
    for order in Order:
        assert press(Choice(first=9), order.key, 5) == Choice(order)
        assert f"{order.key} {order.word.replace('-', ' ')}" in HELP


def test_keys_move_and_end() -> None:
    choice = Choice(Order.LAG, 3)
    moved = {"\x1b[A": 2, "\x1b[B": 4, "\x1b[5~": 0, "\x1b[6~": 13, " ": 13, "g": 0, "x": 3}
    assert {key: press(choice, key, 10) for key in moved} == {key: Choice(Order.LAG, at) for key, at in moved.items()}
    assert [press(choice, key, 10) for key in ("q", "\x1b", "")] == [None] * 3


def test_keys_that_come_together_are_taken_one_by_one() -> None:
    assert split_keys("l\x1b[B\x1b[6~q") == ["l", "\x1b[B", "\x1b[6~", "q"]
    assert split_keys("\x1b") == ["\x1b"]
    assert split_keys("") == [""], "the terminal is gone"


def test_the_last_page_is_full() -> None:
    """However far a user has moved, and as many as `count_rows` says."""
    found = make_picture(100)
    lines = read(draw(found, Choice(Order.NAME, 10_000), WIDTH, HEIGHT, "overlay"))
    shown = [line.split()[0] for line in lines if line.startswith("S/")]
    assert shown[-1] == "S/c099" and len(shown) == count_rows(found, HEIGHT)
    assert lines[-1].startswith(f"{101 - len(shown)}-100 of 100 by name")


def test_states_have_colours() -> None:
    lines = draw(make_picture(consumers=0) | {"consumers": ODD}, Choice(), WIDTH, HEIGHT, "overlay")
    styles = {span.text.strip(): span.style for line in lines for span in line}
    assert (styles["running"], styles["stalled"], styles["catching up"]) == (Style.GOOD, Style.BAD, Style.ODD)
    assert paint((Span("x", Style.BAD), Span("y")), colours=True) == "\x1b[1;31mx\x1b[0my"


def test_lines_are_cut_by_cells() -> None:
    assert cut((Span("ab"), Span("ホスト")), 5) == (Span("ab"), Span("ホ "))
    assert cut((Span("abc"), Span("d")), 3) == (Span("abc"),)
