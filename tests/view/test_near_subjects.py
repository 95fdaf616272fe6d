"""What a subject may have been meant to be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from overlay.inspect.sample import SampledRecord, TopicSample
from overlay.subject import Pattern
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


@pytest.mark.parametrize("asked", ["shop.orders.paid.NO", "shop.>", "shop.orders.zebra.*", "shop.orders.paid"])
def test_other_subjects_are_not_spoken_of(near: Callable[[str], list[str]], asked: str) -> None:
    assert near(asked) == []
