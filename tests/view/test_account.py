"""Explanations as text: plain when piped, in colours on a terminal, and in ASCII where nothing else can be shown."""

from __future__ import annotations

import io
import json

from rich.console import Console

from overlay.subject import Pattern
from overlay.view.account import MOST_STRIPS, DeliveringEngine, describe_explanation, print_explanation
from overlay.view.analysis import Observed
from overlay.view.explanation import Explanation, ReadConditions, explain
from overlay.view.strip import Strip
from tests.index.partitions import Record, load, seal, sql, stream

CONFIG = stream(properties={"n": "long"}, index={"chunk_records": 50})
OBSERVED = Observed(scanned=120, matched=3, in_vain=1, seconds=0.25)


SPARK = DeliveringEngine("spark", "Spark job 'J' delivers it", "J", "app-1")


def make_explanation() -> Explanation:
    """Two chunks; in the second a record of the subject that is asked for."""
    records = [Record(at, "a.x" if at == 70 else "a.y") for at in range(100)]
    chunks = load(CONFIG, [seal(CONFIG, records[at : at + 50], at, at + 50) for at in (0, 50)])
    wanted = ReadConditions(CONFIG, (Pattern("a.x"),), sql("n > 5", CONFIG), since=1_700_000_000_000)
    return explain(wanted, [(("t", 0), chunks, 0, 120)], 1_700_000_000_001)


def write(console: Console, observed: Observed | None = None, engine: DeliveringEngine | None = None) -> str:
    found = make_explanation()
    strips = [part.draw("t-0", 12) for part in found.parts]
    print_explanation(console, found, engine, strips, "streams/s.yaml", observed)
    assert isinstance(console.file, io.TextIOWrapper)
    console.file.flush()
    raw = console.file.buffer
    assert isinstance(raw, io.BytesIO)
    return raw.getvalue().decode(console.file.encoding)


def make_console(encoding: str = "utf-8", *, is_terminal: bool = False) -> Console:
    file = io.TextIOWrapper(io.BytesIO(), encoding)
    return Console(
        file=file,
        width=200,
        highlight=False,
        force_terminal=is_terminal,
        color_system="standard" if is_terminal else None,
    )


def test_everything_that_is_known() -> None:
    lines = [line.rstrip() for line in write(make_console(), OBSERVED).splitlines()]
    assert lines[:4] == [
        "stream    S, 120 offsets in 1 partition",
        "subjects  a.x",
        "filter    n > 5",
        "since     2023-11-14T22:13:20.000+00:00",
    ]
    assert [line.split()[:2] for line in lines[6:9]] == [["NO", "1"], ["MAYBE", "1"], ["ALL", "0"]]
    assert next(line.split()[2:5] for line in lines if line.startswith("subject a.x")) == ["2", "1", "0"]
    assert "not indexed  20 offsets, read" in lines
    assert "found        3 records, of 120 read" in lines
    assert "t-0  ·····░░░░░??" in lines
    assert "     · skipped   ░ read   ? not indexed, read" in lines
    assert lines[-4:] == ["", "  # streams/s.yaml", "  index:", "    zones: [n]"]


def test_a_consumer_of_a_job_names_it() -> None:
    assert write(make_console(), engine=SPARK).splitlines()[0] == "engine    spark: Spark job 'J' delivers it"
    assert write(make_console(), engine=DeliveringEngine("service")) == write(make_console())


def test_colours_are_an_addition() -> None:
    coloured = write(make_console(is_terminal=True))
    assert "\x1b[" in coloured and "░" in coloured
    assert "\x1b[" not in write(make_console())


def test_a_terminal_of_few_letters() -> None:
    shown = write(make_console("ascii"))
    assert "t-0  .....-----??" in shown and "- read" in shown


def test_many_partitions() -> None:
    found = make_explanation()
    filled = [Strip(f"t-{number}", found.parts[0].draw("", 5).cells) for number in range(MOST_STRIPS + 3)]
    strips = [Strip("empty", filled[0].cells[:0])] * MOST_STRIPS + filled
    console = make_console()
    print_explanation(console, found, None, strips, "s.yaml")
    console.file.flush()
    raw = console.file.buffer  # type: ignore[attr-defined]
    assert "and 3 more partitions" in raw.getvalue().decode()


def test_as_json() -> None:
    found = make_explanation()
    strips = [part.draw("t-0", 12) for part in found.parts]
    shown = json.loads(json.dumps(describe_explanation(found, SPARK, strips, OBSERVED)))
    assert shown["answers"]["NO"] == {"chunks": 1, "bytes": 1 << 20}
    assert shown["strips"] == {"t-0": ".....-----??"}
    assert shown["missing"] == {"terms": [], "zones": ["n"], "properties": {}}
    assert shown["observed"] == {"scanned": 120, "matched": 3, "in_vain": 1, "seconds": 0.25}
    assert shown["engine"] == {"name": "spark", "reason": "Spark job 'J' delivers it", "job": "J", "owner": "app-1"}
    bare = describe_explanation(found, None, strips, None)
    assert (bare["engine"], bare["observed"]) == (None, None)
