from __future__ import annotations

import pytest

from bench.dataset import SELECTIVITIES, Dataset, load
from bench.errors import WrongAnswer
from bench.sides import Tally, Work


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    return load("nowhere:9092", 2.5)


@pytest.mark.parametrize(("name", "share"), [("0.1%", 0.001), ("33%", 0.33), ("100%", 1.0)])
def test_filters_match_what_their_names_say(dataset: Dataset, name: str, share: float) -> None:
    found = dataset.count(SELECTIVITIES[name], dataset.records) / dataset.records
    assert found == pytest.approx(share, rel=0.05)


def test_counts_follow_the_repetition(dataset: Dataset) -> None:
    rows = len(dataset.subjects)
    once, part = dataset.count("flights.JFK.>", rows), dataset.count("flights.JFK.>", 1000)
    assert dataset.records == rows * 5 // 2
    assert dataset.count("flights.JFK.>", 3 * rows) == 3 * once
    assert dataset.count("flights.JFK.>", 2 * rows + 1000) == 2 * once + part
    assert part == sum(subject.startswith("flights.JFK.") for subject in dataset.subjects[:1000].to_pylist())


def test_a_wrong_count_ends_the_bench(dataset: Dataset) -> None:
    work = dataset.plan("lz4", "flights.JFK.>")
    expected = dataset.count("flights.JFK.>", 1000)
    dataset.check("peer", work, Tally(1000, expected, 1.0))
    dataset.check("peer", work, Tally(work.records, None, 1.0))
    with pytest.raises(WrongAnswer, match="the data set says"):
        dataset.check("peer", work, Tally(1000, expected + 1, 1.0))
    with pytest.raises(WrongAnswer, match="are there"):
        dataset.check("peer", work, Tally(work.records + 1, None, 1.0))


def test_clients_without_subjects_test_the_headers_that_decide() -> None:
    def wanted(pattern: str) -> dict[str, str]:
        return Work("", "", 1, pattern).list_wanted()

    assert wanted("flights.>") == {}
    assert wanted("flights.JFK.>") == {"origin": "JFK"}
    assert wanted("flights.*.SFO.UA") == {"dest": "SFO", "carrier": "UA"}
    assert wanted("flights.JFK.HNL.HA") == {"origin": "JFK", "dest": "HNL", "carrier": "HA"}
