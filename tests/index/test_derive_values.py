"""Which chunks filter values refuse: RabbitMQ's Bloom filters, asked of our own."""

from __future__ import annotations

from overlay.config.consumer import FilterConfig
from overlay.config.stream import StreamConfig
from overlay.index.skip.derive import derive, derive_values
from overlay.index.skip.expressions import MOST_TERMS
from overlay.index.skip.probes import Everything, Has, Nothing, Probe, SubjectIs, Unsure, leaves
from overlay.index.skip.prune import evaluate
from overlay.index.skip.terms import UNFILTERED, value_term
from overlay.match import Values, choose_values
from overlay.subject import Pattern
from tests.index.partitions import Record, load, seal, stream


def parts(probe: Probe) -> list[Probe]:
    return list(leaves(probe))


def choose(config: StreamConfig, *values: str, match_unfiltered: bool = False) -> Values | None:
    return choose_values(FilterConfig(values=values, match_unfiltered=match_unfiltered), config)


def test_filter_values_are_terms() -> None:
    ours = stream(filter_value={"header": "v"})
    eu, us = Has(value_term(b"eu")), Has(value_term(b"us"))
    assert derive_values(choose(ours, match_unfiltered=True)) == Everything()
    assert parts(derive_values(choose(ours, "eu", "us", "eu"))) == [eu, us]
    assert parts(derive_values(choose(ours, "eu", match_unfiltered=True))) == [eu, Has(UNFILTERED)]
    assert parts(derive_values(choose(ours, "", "eu"))) == [eu, Has(UNFILTERED)]
    assert parts(derive_values(choose(ours, ""))) == [Has(UNFILTERED)]
    assert derive_values(choose(ours, *map(str, range(MOST_TERMS + 1)))) == Unsure()


def test_filter_values_that_are_subjects() -> None:
    assert derive_values(choose(stream(), "c", "a.b", match_unfiltered=True)) == SubjectIs(
        (Pattern("a.b"), Pattern("c"))
    )
    assert derive_values(choose(stream(), "", "a b", "*", match_unfiltered=True)) == Nothing()


def test_unfiltered_records() -> None:
    """RabbitMQ's meaning: a chunk of records without value passes only when match_unfiltered asks for it."""
    ours = stream(filter_value={"header": "v"}, subject={"key": True})
    headers = [seal(ours, [Record(i, "a", value=value)], i, i + 1) for i, value in enumerate((b"eu", b"us", None, b""))]

    def ask(*values: str, match_unfiltered: bool = False) -> str:
        wanted = choose(ours, *values, match_unfiltered=match_unfiltered)
        return "".join(
            "NMA"[level] for level in evaluate(derive(ours, values=wanted, now=0), load(ours, headers)).levels
        )

    assert ask("eu") == "MNNN"
    assert ask("eu", match_unfiltered=True) == "MNMM"
    assert ask("eu", "us") == "MMNN"
    assert ask(match_unfiltered=True) == "AAAA"
