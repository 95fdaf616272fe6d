"""docs/filters.md: what the page shows is so."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from overlay.errors import FilterSyntaxError
from overlay.filter import Limits, compile_properties, compile_sql
from overlay.filter.fields import FIELDS, OPERATORS, RESERVED
from overlay.filter.nodes import Section
from overlay.filter.properties import ENTRIES

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "filters.md").read_text(encoding="utf-8")
ANSWERS = {"true": True, "false": False, "unknown": None}


def find_blocks(language: str) -> list[str]:
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    return [text for own, text in blocks if own == language]


def read_rows(head: str) -> list[list[str]]:
    """The cells of the table below `head`, backquotes taken off."""
    table = PAGE[PAGE.index(head) :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip().strip("`") for cell in row.strip("|").split("|")] for row in table]


STREAM = YAML(typ="safe").load(next(block for block in find_blocks("yaml") if "name: FLIGHTS" in block))
TYPES = STREAM["properties"]


@pytest.mark.parametrize("text", find_blocks("sql")[0].splitlines())
def test_examples_are_filters_of_the_stream(text: str) -> None:
    assert compile_sql(text, TYPES).columns


def test_the_consumer_of_the_page_has_a_filter() -> None:
    consumer = YAML(typ="safe").load(next(block for block in find_blocks("yaml") if "durable_name" in block))
    assert compile_sql(consumer["filter"]["sql"], TYPES)


@pytest.mark.parametrize(("text", "answer"), read_rows("| expression | answer |"))
def test_answers(text: str, answer: str) -> None:
    assert compile_sql(text).matches(json.loads(find_blocks("json")[0])) is ANSWERS[answer]


def test_the_property_filter_of_the_page() -> None:
    (block,) = (block for block in find_blocks("yaml") if block.startswith("filter:"))
    mapping = YAML(typ="safe").load(block)["filter"]["properties"]
    message: dict[str, dict[str, object]] = {
        "properties": {"subject": "flights.JFK.LAX.AA", "group_sequence": 10},
        "application_properties": {"carrier": "AA", "tail": "N14228"},
    }
    assert compile_properties(mapping, TYPES).matches(message) is True
    del message["application_properties"]["tail"]
    assert compile_properties(mapping, TYPES).matches(message) is False


@pytest.mark.parametrize(("wrong", "right"), read_rows("| refused | write |"))
def test_what_is_refused_and_what_to_write(wrong: str, right: str) -> None:
    with pytest.raises(FilterSyntaxError):
        compile_sql(wrong, TYPES)
    assert compile_sql(right, TYPES)


def test_the_error_of_the_page() -> None:
    (shown,) = (block for block in find_blocks("") if block.startswith("line 1"))
    with pytest.raises(FilterSyntaxError) as error:
        compile_sql(shown.splitlines()[1].strip())
    assert str(error.value) == shown.rstrip()


def test_tables_of_words_and_fields_are_complete() -> None:
    section = PAGE[PAGE.index("Words are upper case") :].split("\n\n")[0]
    assert set(re.findall(r"\b[A-Z]{2,}\b", section)) == OPERATORS
    assert RESERVED - {word.lower() for word in OPERATORS} <= set(section.split("`")[3].split())
    fields = {name.strip("` ") for row in read_rows("| field | type |") for name in row[0].split(",")}
    assert fields == set(FIELDS[Section.PROPERTIES])
    for row in read_rows("| field | type |"):
        assert {FIELDS[Section.PROPERTIES][name.strip("` ")] for name in row[0].split(",")} == {row[1]}


def test_limits_of_the_page() -> None:
    table = PAGE[PAGE.index("| length of an expression |") :].split("\n\n")[0]
    numbers = [int(number.replace(",", "")) for number in re.findall(r"\| ([0-9,]+)", table)]
    default = Limits()
    assert numbers == [default.length, default.tokens, default.depth, ENTRIES]
