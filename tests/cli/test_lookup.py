"""overlay/cli/lookup.py: which consumer the words [STREAM] NAME mean. With Kafka it is tested in test_consumer*.py."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from overlay.cli import lookup
from overlay.cli.lookup import choose, find_anywhere, find_served
from overlay.config import ConsumerConfig
from overlay.errors import CredentialsRefused, OverlayError

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


def make_files(*names: str) -> Any:
    """What `load` returns for a folder with these consumers of stream ORDERS."""
    return SimpleNamespace(
        consumers={("ORDERS", name): ConsumerConfig(stream="ORDERS", durable_name=name) for name in names}
    )


@pytest.mark.parametrize("wanted", ["bignorway", "ORDERS/bignorway"])
def test_a_consumer_that_was_made_by_request_is_suggested(wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    everywhere = SimpleNamespace(effective=lambda: make_files("paid", "big-norway"), definitions={})
    monkeypatch.setattr(lookup, "_read_registry", lambda *_: everywhere)
    with pytest.raises(OverlayError, match=re.escape(f"no consumer '{wanted}'. Did you mean ORDERS/big-norway?")):
        find_anywhere(make_files("paid"), wanted, FOLDER, {})


def test_files_are_looked_through_where_kafka_does_not_say_what_was_made_by_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> Any:
        raise CredentialsRefused("overlay.control: Kafka does not allow Read. Grant it")

    monkeypatch.setattr(lookup, "_read_registry", refuse)
    message = (
        "config: there is no consumer 'bignorway'. Did you mean ORDERS/big-norway? There is ORDERS/big-norway in its files."
        " Whether one was made by request is not known: overlay.control: Kafka does not allow Read. Grant it"
    )
    with pytest.raises(CredentialsRefused, match=re.escape(message)):
        find_anywhere(make_files("big-norway"), "bignorway", FOLDER, {})
