"""What is known of the ids of a stream's schemas, and what unknown ids may cost. No clock."""

from __future__ import annotations

import pickle
from pathlib import Path

from overlay.config.schema_book import AGAIN_S, ASKED_A_MINUTE, MOST_SCHEMAS, MOST_UNKNOWN, SchemaBook


def test_an_id_is_open_until_it_is_settled() -> None:
    book = SchemaBook({7: "seven"}, None)
    assert book.list_open([7, 8, 9], 0.0) == [8, 9]
    before = book.known
    book.add(8, "eight")
    assert book.list_open([7, 8, 9], 0.0) == [9]
    assert (dict(before), dict(book.known)) == ({7: "seven"}, {7: "seven", 8: "eight"})


def test_an_unknown_id_is_asked_for_again_at_growing_distances() -> None:
    book, now = SchemaBook({}, None), 100.0
    pauses = []
    for _ in range(12):
        pause = book.note_unknown(9, now)
        assert not book.list_open([9], now + pause - 0.1)
        now += pause
        assert book.list_open([9], now) == [9]
        pauses.append(pause)
    assert pauses[:3] == [AGAIN_S[0], 2 * AGAIN_S[0], 4 * AGAIN_S[0]]
    assert pauses[-1] == AGAIN_S[1]
    book.add(9, "nine")
    assert not book.list_open([9], now)


def test_ids_that_are_not_known_take_bounded_memory() -> None:
    book = SchemaBook({}, None)
    for id in range(MOST_UNKNOWN + 5):
        book.note_unknown(id, 0.0)
    assert book.list_open(range(7), 0.0) == [0, 1, 2, 3, 4]


def test_a_book_is_full_at_its_limit() -> None:
    assert not SchemaBook(dict.fromkeys(range(MOST_SCHEMAS - 1)), None).is_full
    assert SchemaBook(dict.fromkeys(range(MOST_SCHEMAS)), None).is_full


def test_questions_of_a_minute_are_limited() -> None:
    book, now, sent = SchemaBook({}, None), 1_000.0, 0
    while now < 1_060.0:
        pause = book.take_turn(now)
        sent += pause == 0.0
        now += pause
    # those of a quiet minute, and of this one
    assert 2 * ASKED_A_MINUTE - 1 <= sent <= 2 * ASKED_A_MINUTE + 1


def test_one_asker_at_a_time() -> None:
    book, first, second = SchemaBook({}, None), object(), object()
    assert book.claim(first) and not book.claim(second)
    book.release(second)
    assert not book.claim(second)
    book.release(first)
    assert book.claim(second)


def test_what_is_known_is_no_part_of_a_config(tmp_path: Path) -> None:
    book = SchemaBook({7: "seven"}, tmp_path)
    assert book == SchemaBook({}, None)
    book.claim(object())
    copy = pickle.loads(pickle.dumps(book))
    assert (dict(copy.known), copy.folder) == ({7: "seven"}, tmp_path)
    assert copy.claim(object())
