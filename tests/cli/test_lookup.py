"""overlay/cli/lookup.py: which consumer the words [STREAM] NAME mean. With Kafka it is tested in test_consumer*.py."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from overlay.cli.lookup import choose, find_served
from overlay.errors import OverlayError

IDS = [("A", "rome"), ("B", "oslo"), ("B", "rome")]
FOLDER = Path("config")


def test_a_name_of_one_consumer_is_enough() -> None:
    assert choose(IDS, "oslo", FOLDER) == choose(IDS, "B/oslo", FOLDER) == ("B", "oslo")
    assert choose(IDS, "A/rome", FOLDER) == ("A", "rome")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("rome", "config: several streams have a consumer 'rome'. Name one of A/rome, B/rome"),
        ("olso", "config: there is no consumer 'olso'. Did you mean B/oslo? There is A/rome, B/oslo, B/rome"),
    ],
)
def test_another_name_is_refused(name: str, message: str) -> None:
    with pytest.raises(OverlayError, match=re.escape(message)):
        choose(IDS, name, FOLDER)


def test_a_long_name_of_a_stream_hides_no_similar_consumer() -> None:
    with pytest.raises(OverlayError, match=re.escape("no consumer 'rom'. Did you mean rome? There is FLIGHTS/rome")):
        choose([("FLIGHTS", "rome")], "rom", FOLDER)


def test_the_service_is_asked_only_where_the_stream_is_left_out() -> None:
    control: Any = SimpleNamespace(list_names=lambda: IDS)
    assert find_served(control, "oslo", FOLDER) == ("B", "oslo")
    silent: Any = SimpleNamespace()
    assert find_served(silent, "C/rome", FOLDER) == ("C", "rome")
