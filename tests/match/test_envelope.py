"""The envelope columns against the records that were put in."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from overlay.field import Field, FieldKind
from overlay.match.envelope import COLUMNS, envelope
from overlay.scan import Decoder, Records, make_plan
from overlay.subject import SubjectRule
from overlay.subject.dictionary import Codes, Dictionary
from tests.oracle.batches import Record
from tests.support.batches import build
from tests.support.strategies import any_records

ORIGIN = Field(FieldKind.HEADER, "origin")
RULE = SubjectRule.from_template("flights.{header:origin}")


def scan(records: list[Record]) -> tuple[Records, Codes, Dictionary]:
    dictionary = Dictionary(RULE, "flights", 3, lambda subject: not subject.endswith("null"))
    for piece in Decoder(make_plan([ORIGIN])).decode(np.frombuffer(build(records, codec=3), np.uint8)):
        assert isinstance(piece, Records)
        return piece, dictionary.encode(piece.buf, piece.at, piece.size), dictionary
    raise AssertionError("no slice")


def expect(record: Record, subject: str | None, sequenced: bool) -> dict[str, Any]:
    time = None if record.timestamp == -1 else datetime.fromtimestamp(record.timestamp / 1000, UTC).replace(tzinfo=None)
    return {
        "subject": subject,
        "sequence": record.offset + 1 if sequenced else None,
        "timestamp": time,
        "key": record.key,
        "value": record.value,
        "headers": [{"name": name.decode(errors="replace"), "value": value} for name, value in record.headers],
        "topic": "flights",
        "partition": 3,
        "offset": record.offset,
    }


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_any_rows_and_columns(data: st.DataObject) -> None:
    records = data.draw(any_records().filter(bool))
    piece, codes, dictionary = scan(records)
    rows = data.draw(st.lists(st.integers(0, len(records) - 1), max_size=10))
    columns = data.draw(st.sets(st.sampled_from(list(COLUMNS))))
    sequenced = data.draw(st.booleans())
    batch = envelope(piece, np.array(rows, np.int64), codes, dictionary, "flights", 3, columns, sequenced)
    batch.validate(full=True)
    assert batch.schema.names == [name for name in COLUMNS if name in columns]
    assert batch.num_rows == len(rows)
    subjects = [dictionary.subjects[code] if code >= 0 else None for code in codes.tolist()]
    for row, made in zip(rows, batch.to_pylist(), strict=True):
        expected = expect(records[row], subjects[row], sequenced)
        assert made == {name: expected[name] for name in made}


def test_types_and_no_rows() -> None:
    piece, codes, dictionary = scan([Record(7, -1, None, None, [])])
    none = envelope(piece, np.empty(0, np.int64), codes, dictionary, "flights", 3, COLUMNS, True)
    one = envelope(piece, np.zeros(1, np.int64), codes, dictionary, "flights", 3, COLUMNS, True)
    assert none.schema.equals(one.schema)
    assert one.schema.equals(pa.schema(list(COLUMNS.items())))
    assert one.to_pylist() == [expect(Record(7, -1, None, None, []), None, True)]


def test_columns_outlive_the_slice() -> None:
    piece, codes, dictionary = scan([Record(7, 5, b"k", b"v", [(b"origin", b"JFK")])])
    batch = envelope(piece, np.zeros(1, np.int64), codes, dictionary, "flights", 3, COLUMNS, True)
    before = batch.to_pylist()
    for array in (piece.buf, piece.offset, piece.timestamp, piece.end, piece.body):
        array[:] = 0
    dictionary.generation += 1
    dictionary.subjects.clear()
    assert batch.to_pylist() == before
    assert before[0]["subject"] == "flights.JFK"


def test_an_unknown_column_is_refused() -> None:
    piece, codes, dictionary = scan([Record(0, 0, None, None, [])])
    with pytest.raises(ValueError, match="no such envelope column: colour"):
        envelope(piece, np.zeros(1, np.int64), codes, dictionary, "flights", 3, ["colour"], True)


def test_large_fields_begin_a_new_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few they are: what is remembered of them is bounded by bytes as well."""
    monkeypatch.setattr("overlay.subject.dictionary.LIMIT_BYTES", 5_000)
    dictionary = Dictionary(RULE, "flights", 3, bool)
    for at in range(20):
        records = [Record(at, 1, b"", b"", [(b"origin", b"%d" % at + b"x" * 900)])]
        for piece in Decoder(make_plan([ORIGIN])).decode(np.frombuffer(build(records, base_offset=at), np.uint8)):
            assert isinstance(piece, Records)
            for code in dictionary.encode(piece.buf, piece.at, piece.size):  # the last slice of a fetch has none
                assert dictionary.subjects[code] == f"flights.{at}" + "x" * 900
    assert dictionary.generation == 3 and len(dictionary.subjects) <= 6
