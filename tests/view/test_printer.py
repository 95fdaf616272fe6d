"""Each format of `overlay read`: what it asks for, and that it has reached the output when `print` returns."""

from __future__ import annotations

import io

import pyarrow as pa
import pytest

from overlay.client import SCHEMA
from overlay.view.printer import open_printer

from .test_lines import make_batch

BATCHES = (make_batch({"value": b"1"}, {"value": b"2"}), make_batch({"value": None}))


class Output(io.BytesIO):
    """Shows what has been flushed."""

    seen = b""

    def flush(self) -> None:
        self.seen = self.getvalue()


@pytest.mark.parametrize(
    ("form", "after_each"),
    [
        ("raw", [b"1\n2\n", b"1\n2\n\n", b"1\n2\n\n"]),
        ("count", [b"", b"", b"3\n"]),
    ],
)
def test_what_is_there_after_each_batch(form: str, after_each: list[bytes]) -> None:
    out = Output()
    printer = open_printer(form, out)
    found = []
    for batch in BATCHES:
        printer.print(batch.select(printer.columns))
        found.append(out.seen)
    printer.close()
    assert [*found, out.seen] == after_each


@pytest.mark.parametrize("form", ["table", "json"])
def test_the_columns_asked_for_are_enough(form: str) -> None:
    out = Output()
    printer = open_printer(form, out)
    for count, batch in enumerate(BATCHES):
        printer.print(batch.select(printer.columns))
        assert len(out.seen.splitlines()) == (form == "table") + (2, 3)[count]


def test_arrow_s_stream_grows_with_each_batch_and_is_whole_without_any() -> None:
    out = Output()
    printer = open_printer("arrow-ipc", out)
    for batch in BATCHES:
        printer.print(batch)
    reader = pa.ipc.open_stream(out.seen)
    assert [reader.read_next_batch() for _ in BATCHES] == list(BATCHES)
    printer.close()
    assert pa.ipc.open_stream(out.seen).read_all().num_rows == 3
    empty = Output()
    open_printer("arrow-ipc", empty).close()
    assert pa.ipc.open_stream(empty.seen).read_all() == SCHEMA.empty_table()
