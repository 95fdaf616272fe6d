"""Ledger records: there and back, and whatever else may stand in a topic."""

from __future__ import annotations

import contextlib
import os
import struct

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from overlay.index.ledger.entries import (
    LedgerEntry,
    LedgerRun,
    decode,
    decode_key,
    encode,
    encode_key,
    parse,
    parse_values,
    read_round,
)
from overlay.index.skip import encode as chunks
from overlay.index.skip.encode import Flaw, Foreign, lay_out, wrap
from tests.index.headers import any_headers, uint32
from tests.oracle.ledger import write_value

FUZZ = int(os.environ.get("OVERLAY_FUZZ", "400"))
PLAIN = LedgerEntry(
    (
        LedgerRun("orders", 0, 5, 3, 9),
        LedgerRun("größe", 7, 0, 0, 12, 4, 0xFFFFFFFF),
        LedgerRun("orders", 2, 1, 1 << 40, 12),
    )
)


@st.composite
def any_rounds(draw: st.DrawFn) -> LedgerEntry:
    sequence = draw(st.integers(1, 1 << 60))
    runs = []
    for _ in range(draw(st.integers(1, 5))):
        count = draw(st.integers(0, 9) | st.integers(0, 1 << 40))
        topic = draw(st.sampled_from(["t", "flights", "a.b-c_d", "größe"]))
        epoch, crc = draw(st.integers(-1, 99)), draw(st.just(-1) | uint32)
        runs.append(
            LedgerRun(topic, draw(st.integers(0, 9)), draw(st.integers(0, 1 << 60)), count, sequence, epoch, crc)
        )
        sequence += count
    return LedgerEntry(tuple(runs))


@settings(deadline=None)
@given(any_rounds())
def test_there_and_back(round: LedgerEntry) -> None:
    key, value = encode("S", round)
    assert decode(value) == round
    assert decode_key(key) == ("S", round.first_sequence)
    plain = [(run.topic, run.partition, run.first_offset, run.count, run.epoch, run.crc) for run in round.runs]
    assert value == write_value(round.first_sequence, plain)


def test_the_layout_is_what_the_table_says() -> None:
    """Written with struct from the table in the module's docstring."""
    body = struct.pack("<qHI", 9, 2, 3) + b"\7\0" + "größe".encode() + b"\6\0orders"
    body += struct.pack("<Hiqqiq", 1, 0, 5, 3, -1, -1) + struct.pack("<Hiqqiq", 0, 7, 0, 0, 4, 0xFFFFFFFF)
    body += struct.pack("<Hiqqiq", 1, 2, 1, 1 << 40, -1, -1)
    assert encode("ORDERS", PLAIN) == (b"run ORDERS 9", wrap(2, body))
    assert decode(wrap(2, body)) == PLAIN


def test_keys() -> None:
    assert encode_key("S", 7) == b"run S 7"
    for other in (b"", b"run S", b"chunk t 0 7", b"run S 7 8", b"run S -7", b"\xff", b"run S x"):
        assert decode_key(other) is None


@pytest.mark.parametrize("runs", [(), (LedgerRun("t", 0, 0, 5, 1), LedgerRun("t", 1, 0, 5, 7))])
def test_a_round_is_runs_one_behind_the_other(runs: tuple[LedgerRun, ...]) -> None:
    with pytest.raises(ValueError, match="one run after the other"):
        LedgerEntry(runs)


def test_every_round_takes_up_a_sequence() -> None:
    """Else the key of the next one would be the same, and compaction would keep only that."""
    assert LedgerEntry((LedgerRun("t", 0, 5, 0, 3), LedgerRun("t", 1, 5, 0, 3))).next_sequence == 4
    assert LedgerEntry((LedgerRun("t", 0, 5, 0, 3), LedgerRun("t", 1, 5, 1, 3))).next_sequence == 4
    assert PLAIN.next_sequence == 12 + (1 << 40)


VALUE = encode("S", PLAIN)[1]
BODY = VALUE[6:]
RUNS_AT = len(BODY) - 3 * 34


def patch(at: int, layout: str, *numbers: int) -> bytes:
    """The value with other numbers at a place of its body, and a CRC that is right."""
    new = struct.pack(layout, *numbers)
    return wrap(2, BODY[:at] + new + BODY[at + len(new) :])


@pytest.mark.parametrize(
    ("value", "flaw"),
    [
        (None, Flaw.EMPTY),
        (b"", Flaw.EMPTY),
        (b"\2" + VALUE[1:], Flaw.VERSION),
        (b"\1", Flaw.KIND),
        (b"\1\1" + VALUE[2:], Flaw.KIND),
        (b"\1\3" + VALUE[2:], Flaw.KIND),
        (VALUE[:19], Flaw.SHORT),
        (VALUE[:-1], Flaw.CRC),
        (VALUE[:-1] + b"x", Flaw.CRC),
        (wrap(2, BODY + b"x"), Flaw.SIZES),
        (wrap(2, BODY[:-1]), Flaw.SIZES),
        (wrap(2, BODY[:14]), Flaw.SIZES),
        (patch(8, "<H", 0xFFFF), Flaw.SIZES),
        (patch(10, "<I", 0xFFFFFFFF), Flaw.SIZES),
        (patch(14, "<H", 0xFFFF), Flaw.SIZES),
        (patch(0, "<q", 0), Flaw.FIGURES),
        (patch(0, "<q", -5), Flaw.FIGURES),
        (patch(0, "<q", (1 << 62) - 2), Flaw.FIGURES),
        (patch(RUNS_AT, "<H", 2), Flaw.FIGURES),
        (patch(RUNS_AT + 2, "<i", -1), Flaw.FIGURES),
        (patch(RUNS_AT + 6, "<q", -1), Flaw.FIGURES),
        (patch(RUNS_AT + 14, "<q", -1), Flaw.FIGURES),
        (patch(RUNS_AT + 14, "<q", (1 << 62) - 5), Flaw.FIGURES),
        (patch(RUNS_AT + 14, "<q", (1 << 63) - 1), Flaw.FIGURES),
        (wrap(2, struct.pack("<qHI", 9, 0, 0)), Flaw.FIGURES),
    ],
)
def test_what_is_no_round_says_why(value: bytes | None, flaw: Flaw) -> None:
    assert parse_values([value]).flaws.tolist() == [flaw]
    answer = decode(value)
    assert isinstance(answer, Foreign)
    assert answer.reason


def test_either_kind_is_foreign_to_the_other() -> None:
    assert chunks.parse_values([VALUE]).flaws.tolist() == [Flaw.KIND]


@settings(max_examples=FUZZ, deadline=None)
@given(any_rounds(), st.data())
def test_damage_is_seen(round: LedgerEntry, data: st.DataObject) -> None:
    """Cut, flipped, stuffed: Foreign, and with a CRC that is right never an exception."""
    whole = encode("S", round)[1]
    value = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(value) - 1))
        match data.draw(st.sampled_from(["flip", "cut", "stuff"])):
            case "flip":
                value[at] ^= data.draw(st.integers(1, 255))
            case "cut" if at:
                del value[at:]
            case _:
                value[at:at] = data.draw(st.binary(min_size=1, max_size=4))
    damaged = bytes(value)
    if damaged != whole:
        assert isinstance(decode(damaged), Foreign)
    decode(wrap(2, damaged[6:]))


@settings(max_examples=FUZZ, deadline=None)
@given(st.binary(max_size=120))
def test_anything_else_is_foreign(value: bytes) -> None:
    assert isinstance(decode(value), Foreign)
    decode(wrap(2, value))


BROKEN = [VALUE[:-1], patch(0, "<q", 0), patch(RUNS_AT + 6, "<q", -1), wrap(2, BODY + b"x"), None, b"{}"]


@settings(deadline=None)
@given(
    st.lists(any_rounds() | st.sampled_from(BROKEN) | any_headers().map(lambda one: chunks.encode(one)[1]), max_size=8),
    st.binary(max_size=5),
)
def test_many_are_read_where_they_lie(found: list[LedgerEntry | bytes | None], before: bytes) -> None:
    buf, at, size = lay_out([encode("S", one)[1] if isinstance(one, LedgerEntry) else one for one in found])
    rounds = parse(np.concatenate([np.frombuffer(before, np.uint8), buf]), at + len(before), size)
    for row, one in enumerate(found):
        if isinstance(one, LedgerEntry):
            assert rounds.flaws[row] == Flaw.NONE
            assert read_round(rounds, row) == one
        else:
            assert rounds.flaws[row]
            assert rounds.starts[row] == rounds.starts[row + 1]
    assert rounds.starts[-1] == rounds.count.size


def name_rounds(*rounds: tuple[int, int], damaged: int = -1) -> list[bytes | None]:
    """Return the values of rounds: each a first sequence and a number of records. `damaged`: the number of one that cannot be
    read."""
    values: list[bytes | None] = [
        encode("S", LedgerEntry((LedgerRun("t", 0, sequence, count, sequence),)))[1] for sequence, count in rounds
    ]
    if damaged >= 0:
        values[damaged] = b"?"
    return values


@pytest.mark.parametrize(
    ("rounds", "next_sequence", "gap"),
    [
        (((1, 5), (6, 2)), 1, None),
        (((1, 5), (8, 2)), 1, 8),
        (((6, 5), (11, 2)), 6, None),
        (((7, 5), (12, 2)), 6, 7),
        (((7, 5), (12, 2)), 1, None),
        (((1, 0), (2, 3)), 1, None),
        (((1, 0), (3, 3)), 1, 3),
        ((), 9, None),
    ],
)
def test_a_gap_between_rounds_is_found(
    rounds: tuple[tuple[int, int], ...], next_sequence: int, gap: int | None
) -> None:
    """What precedes the first round is not known if the next sequence is 1. A restart takes up one sequence."""
    assert parse_values(name_rounds(*rounds)).find_gap(next_sequence) == gap


def test_a_round_that_cannot_be_read_may_fill_a_gap() -> None:
    assert parse_values(name_rounds((1, 5), (6, 2), (8, 2), damaged=1)).find_gap(1) is None


@given(
    name=st.text(max_size=3) | st.just("x" * (1 << 16)),
    numbers=st.lists(st.integers(), min_size=6, max_size=6),
)
@example("t", [1 << 31, 0, 1, 1, -1, -1])
def test_numbers_that_no_record_can_hold_are_refused(name: str, numbers: list[int]) -> None:
    with contextlib.suppress(ValueError):
        encode("S", LedgerEntry((LedgerRun(name, *numbers),)))
