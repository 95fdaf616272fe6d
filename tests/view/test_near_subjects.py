"""What a subject may have been meant to be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from overlay.inspect.sample import SampledRecord, TopicSample
from overlay.subject import Pattern
from overlay.view import near_subjects
from overlay.view.near_subjects import find_subjects, list_near
from tests.config.folders import load_files

SHOP = """name: SHOP
topics: [shop.orders]
subject: {template: "shop.orders.{value:status}.{header:to}"}
"""
RECORDS = tuple(
    SampledRecord(0, at, None, b'{"status": "%s"}' % (b"paid", b"on hold")[at % 2], (("to", b"NO"),)) for at in range(6)
)


@pytest.fixture
def near(tmp_path: Path) -> Callable[[str], list[str]]:
    stream = load_files(tmp_path, {"streams/shop.yaml": SHOP}).streams["SHOP"]
    samples = [TopicSample("shop.orders", 1, 7, (*RECORDS, SampledRecord(0, 6, None, b"no JSON")))]
    assert find_subjects(stream, samples) == {"shop.orders.paid.NO": 3, "shop.orders.on%20hold.NO": 3}
    return lambda text: list(list_near(stream, [Pattern(text)], samples))


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("shop.orders.Paid.NO", "shop.orders.paid.NO"),
        ("shop.orders.payed.*", "shop.orders.paid.*"),
        ("shop.orders.payed.>", "shop.orders.paid.>"),
        ("shop.orders.onhold.No", "shop.orders.on%20hold.NO"),
    ],
)
def test_a_similar_subject_is_named(near: Callable[[str], list[str]], asked: str, meant: str) -> None:
    assert near(asked) == [f"none of 7 sampled records has a subject like {asked}. Did you mean {meant}?"]


@pytest.mark.parametrize("asked", ["shop.orders.zebra.*", "shop.orders.zebra.NO"])
def test_without_a_similar_one_the_subjects_that_there_are_are_named(
    near: Callable[[str], list[str]], asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = f"none of 7 sampled records has a subject like {asked}."
    (told,) = near(asked)
    known, _, names = told.removeprefix(line).partition(" have ")
    assert known == " They" and sorted(names.split(", ")) == ["shop.orders.on%20hold.NO", "shop.orders.paid.NO"]
    monkeypatch.setattr(near_subjects, "_SHOWN", 1)
    assert near(asked)[0].startswith(f"{line} The nearest are shop.orders.")


def test_the_subjects_with_most_tokens_in_place_come_first(near: Callable[[str], list[str]]) -> None:
    (told,) = near("shop.orders.paid.xxxxxx")
    assert told.endswith("They have shop.orders.paid.NO, shop.orders.on%20hold.NO")


@pytest.mark.parametrize("asked", ["shop.orders.paid.NO", "shop.>", "shop.orders.paid"])
def test_subjects_that_some_record_has_or_that_none_can_have_are_not_spoken_of(
    near: Callable[[str], list[str]], asked: str
) -> None:
    assert near(asked) == []
