"""Which filters refuse which chunks, by examples: pruning that does nothing would pass every test of soundness."""

from __future__ import annotations

from typing import Any

import pytest

from overlay.config.consumer import FilterConfig
from overlay.filter import compile_properties, compile_sql
from overlay.index.skip.chunk_header import Header
from overlay.index.skip.derive import derive, derive_subjects
from overlay.index.skip.expressions import MOST_TERMS
from overlay.index.skip.probes import Conditions, Everything, Part, SubjectIs, Unsure
from overlay.index.skip.prune import evaluate
from overlay.match import choose_values
from overlay.subject import Pattern
from tests.filter.strategies import to_time
from tests.index.partitions import Record, forget, load, say, seal, sql, stream

NOW = 1_700_000_000_000
MINUTE = 60_000

CONFIG = stream(
    properties={
        "carrier": {"type": "string"},
        "tail": {"type": "string"},
        "delay": {"type": "long"},
        "fare": {"type": "double"},
        "sent": {"type": "timestamp"},
        "ok": {"type": "boolean"},
        "raw": {"type": "binary"},
        "at": {"type": "timestamp", "from": "{timestamp}"},
        "origin": {"type": "string"},
        "free": {"type": "long"},
        "h.priority": {"type": "long"},
    },
    subject={"template": "flights.{header:origin}.{key}"},
    index={
        "terms": ["carrier", "delay", "ok", "raw", "h.priority"],
        "zones": ["tail", "delay", "fare", "sent", "h.priority"],
    },
)


def fly(offset: int, origin: str = "JFK", *, at: int = NOW, priority: int | None = None, **said: Any) -> Record:
    message = say(origin=origin, **said)
    if priority is not None:
        message["header"] = {"priority": priority}
    return Record(offset, f"flights.{origin}.k", at, message)


def chunk(number: int, *flights: dict[str, Any]) -> Header:
    first = 10 * number
    return seal(CONFIG, [fly(first + i, **flight) for i, flight in enumerate(flights)], first, first + 10)


CHUNKS = [
    # 0: all alike
    chunk(0, *2 * [{"carrier": "AA", "tail": "N1", "delay": 5, "fare": 9.5, "sent": to_time(NOW), "ok": True, "raw": b"\xff"}]),
    # 1: two of each
    chunk(
        1,
        {"carrier": "AA", "tail": "N12", "delay": -5, "fare": 1.0, "sent": to_time(NOW - MINUTE), "ok": True, "raw": b"a"},
        {"carrier": "UA", "tail": "N2", "delay": 50, "fare": 2.5, "sent": to_time(NOW - 9 * MINUTE), "ok": False, "raw": b"b"},
    ),
    # 2: one has nothing
    chunk(2, {"carrier": "DL", "tail": "X", "delay": 100, "fare": 7.0, "sent": to_time(NOW), "ok": False}, {"origin": "LGA"}),
    # 3: no consumer has anything
    chunk(3, *({"origin": "EWR", "at": NOW - age * MINUTE, "priority": 4 + age} for age in (5, 4))),
]  # fmt: skip


def answer(conditions: Conditions) -> str:
    """A letter for each chunk: N, M or A."""
    return "".join("NMA"[level] for level in evaluate(conditions, load(CONFIG, CHUNKS)).levels)


SQL = [
    # terms
    ("carrier = 'AA'", "MMNN"),
    ("carrier IN ('UA', 'DL')", "NMMN"),
    ("carrier = 'ZZ'", "NNNN"),
    ("carrier LIKE 'AA'", "MMNN"),
    ("carrier LIKE 'A%'", "MMMM"),
    ("carrier <> 'AA'", "MMMM"),
    ("ok", "MMNN"),
    ("NOT ok", "NMMN"),
    ("ok = TRUE", "MMNN"),
    ("ok <> TRUE", "NMMN"),
    ("raw = 0xFF", "MNNN"),
    ("raw LIKE '%'", "MMMM"),  # what is no UTF-8 is like nothing
    ("raw IS NOT NULL", "AAMM"),
    ("delay NOT IN (5, 100, free)", "NMNN"),
    ("delay NOT IN (-7, free)", "MMMN"),
    ("5 IN (delay, free)", "AMMM"),
    ("5 IN (delay, fare)", "ANNN"),
    ("carrier IS NULL", "NNMM"),
    ("carrier IS NOT NULL", "AAMM"),
    # zones of texts
    ("tail = 'N1'", "ANNN"),
    ("tail = 'N12'", "NMNN"),
    ("tail <> 'N1'", "NAMN"),
    ("tail < 'N1'", "NNNN"),
    ("tail <= 'N1'", "ANNN"),
    ("tail > 'N1'", "NAMN"),
    ("tail LIKE 'N1%'", "AMNN"),
    ("tail NOT LIKE 'N%'", "NNMN"),
    ("tail LIKE 'N_'", "MMNN"),
    ("tail LIKE '%1'", "MMMN"),
    ("tail LIKE '%'", "AAMN"),
    ("tail IN ('A', 'X')", "NNMN"),
    ("tail NOT IN ('N1', 'X')", "NANN"),
    ("tail IS NULL", "NNMA"),
    ("tail IS NOT NULL", "AAMN"),
    # zones of numbers
    ("delay = 5", "ANNN"),
    ("delay = 5.0", "ANNN"),
    ("delay = 5.5", "NNNN"),
    ("delay <> 5", "NMMN"),
    ("delay <> 5.5", "AAMN"),
    ("delay = 6", "NNNN"),
    ("delay > 50", "NNMN"),
    ("delay >= 50", "NMMN"),
    ("delay > 4.5", "AMMN"),
    ("delay >= 40 AND delay <= 60", "NMNN"),
    ("60 < delay", "NNMN"),
    ("-delay > -5", "NMNN"),
    ("delay + 10 > 60", "NNMN"),
    ("10 - delay > 5", "NMNN"),
    ("delay IN (5, 100)", "ANMN"),
    ("delay NOT IN (5, 100)", "NMNN"),
    ("delay * 2 > 60", "MMMN"),
    ("fare = 9.5", "ANNN"),
    ("fare < 2.5", "NMNN"),
    ("fare <= 1", "NMNN"),
    ("fare + 1.0 > 3.0", "MMMN"),
    # both: 40 lies between -5 and 50, and no record has it
    ("delay = 40", "NNNN"),
    # AND, OR
    ("delay = 5 OR carrier = 'UA'", "AMNN"),
    ("delay > 0 AND tail = 'N1'", "ANNN"),
    ("delay > 0 AND free = 1", "MMMN"),
    ("delay > 0 OR free = 1", "AMMM"),
    ("NOT (delay < 50 OR tail IS NULL)", "NMMN"),
    # types that are unlike
    ("delay = 'x'", "NNNN"),
    ("delay <> 'x'", "AAMN"),
    ("TRUE", "AAAA"),
    ("FALSE", "NNNN"),
    ("delay", "NNNN"),
    # the record's timestamp, and the clock
    ("at > 1699999999999", "AAAN"),
    ("at < UTC()", "MMMA"),
    ("at > UTC() - 60000", "MMMN"),
    ("at >= UTC()", "MMMN"),
    ("at = UTC() - 1", "MMMN"),
    ("at + 60000 > UTC()", "MMMN"),
    ("UTC() - 60000 < at", "MMMN"),
    ("at > 2 * UTC()", "NNNN"),
    ("at < 2 * UTC()", "AAAA"),
    ("at > UTC() % 7", "MMMM"),
    ("at > -UTC()", "AAAA"),
    ("sent > UTC() - 30000", "MNMN"),
    ("sent <= UTC() - 30000", "MAMN"),
    ("at <> UTC()", "MMMM"),
    ("at IS NOT NULL", "AAAA"),
    # subjects: the origin is a token
    ("origin = 'LGA'", "NNMN"),
    ("origin = 'EWR'", "NNNA"),
    ("origin IN ('JFK', 'LGA')", "AAAN"),
    ("origin = 'E.W'", "NNNN"),
    ("origin LIKE 'EWR'", "NNNA"),
    # what nothing is known of
    ("free = 1", "MMMM"),
    ("free IS NULL", "MMMM"),
    ("delay > free", "MMMN"),
    # a priority that is missing is 4
    ("h.priority > 4", "NNNA"),
    ("h.priority = 4", "AAAN"),
    ("h.priority < 5", "AAAN"),
    ("h.priority = 9", "NNNM"),
    ("h.priority IS NULL", "NNNN"),
    ("h.priority IS NOT NULL", "AAAA"),
]


@pytest.mark.parametrize(("text", "wanted"), SQL)
def test_what_an_expression_refuses(text: str, wanted: str) -> None:
    assert answer(derive(CONFIG, filter=sql(text, CONFIG), now=NOW)) == wanted


@pytest.mark.parametrize(
    ("filter", "wanted"),
    [
        ({"application_properties": {"tail": "&p:N1"}}, "AMNN"),
        ({"application_properties": {"tail": "&s:2"}}, "MMMN"),
        ({"application_properties": {"tail": "N1", "delay": 5}}, "ANNN"),
        # present is also what cannot be read
        ({"application_properties": {"tail": None}}, "MMMM"),
        ({"application_properties": {"delay": "&p:N"}}, "NNNN"),
        ({"application_properties": {"carrier": "UA"}}, "NMNN"),
    ],
)
def test_what_a_property_filter_refuses(filter: dict[str, Any], wanted: str) -> None:
    assert answer(derive(CONFIG, filter=compile_properties(filter, CONFIG.properties), now=NOW)) == wanted


@pytest.mark.parametrize(
    ("patterns", "wanted"),
    [
        (["flights.JFK.>"], "AAMN"),
        (["flights.*.x"], "NNNN"),
        (["*.EWR.*"], "NNNA"),
        (["flights.LGA.k", "flights.EWR.>"], "NNMA"),
        (["flights"], "NNNN"),
        (["flights.>"], "AAAA"),
        ([], "AAAA"),
    ],
)
@pytest.mark.parametrize("counted", [True, False])
def test_what_subjects_refuse(patterns: list[str], wanted: str, counted: bool) -> None:
    conditions = derive(CONFIG, list(map(Pattern, patterns)), now=NOW)
    headers = CHUNKS if counted else [forget(header, "counts") for header in CHUNKS]
    found = "".join("NMA"[level] for level in evaluate(conditions, load(CONFIG, headers)).levels)
    # without counts nothing says that all match, save where all there can be do
    assert found == (wanted if counted or wanted == "AAAA" else wanted.replace("A", "M"))


@pytest.mark.parametrize(
    ("window", "wanted"),
    [
        ({"since": NOW - MINUTE}, "AAAN"),
        ({"until": NOW - 4 * MINUTE}, "NNNM"),
        ({"until": NOW}, "NNNA"),
        ({"since": NOW, "until": NOW + 1}, "AAAN"),
        ({"since": NOW + 1}, "NNNN"),
        ({"start": 10, "stop": 25}, "NAMN"),
        ({"start": 5}, "MAAA"),
        ({"stop": 0}, "NNNN"),
        ({"since": NOW - MINUTE, "start": 11}, "NMAN"),
    ],
)
def test_what_a_window_refuses(window: dict[str, Any], wanted: str) -> None:
    assert answer(derive(CONFIG, now=NOW, **window)) == wanted


def test_parts_that_all_records_pass_are_not_tested_again() -> None:
    conditions = derive(CONFIG, [Pattern("flights.JFK.>")], filter=sql("delay > 4", CONFIG), now=NOW, start=5)
    answers = evaluate(conditions, load(CONFIG, CHUNKS))
    assert answers.asked == Part.SUBJECT | Part.FILTER | Part.WINDOW
    assert list(map(Part, answers.residual)) == [
        Part.WINDOW,
        Part.FILTER,
        Part.SUBJECT | Part.FILTER,
        Part.SUBJECT | Part.FILTER,  # refused by its subjects, and not asked any more
    ]


def test_tallies_add_up_to_what_is_refused() -> None:
    conditions = derive(CONFIG, [Pattern("flights.JFK.>")], filter=sql("delay > 4 AND carrier = 'AA'", CONFIG), now=NOW)
    answers = evaluate(conditions, load(CONFIG, CHUNKS))
    shown = {str(probe): (tally.asked, tally.refused, tally.passed) for probe, tally in answers.tallies.items()}
    assert shown == {
        "subject flights.JFK.>": (4, 1, 2),
        "zone delay in 5..": (3, 0, 1),
        "bloom carrier = AA": (3, 1, 0),
    }
    assert answers.levels.tolist() == [1, 1, 0, 0]


def test_subjects_that_the_stream_has_anyway() -> None:
    small = stream(subjects=["a.>", "b"], subject={"key": True})
    assert derive_subjects(small, [Pattern("b"), Pattern("a.>")]) == Everything()
    assert derive_subjects(small, [Pattern("a.>")]) == SubjectIs((Pattern("a.>"),))
    assert derive_subjects(CONFIG, [Pattern("*.*.*")]) == Everything()
    assert derive_subjects(CONFIG, [Pattern("*.*")]) == SubjectIs((Pattern("*.*"),))


def test_long_lists_are_asked_by_their_ends() -> None:
    items = ", ".join(str(1000 + i) for i in range(MOST_TERMS + 1))
    assert answer(derive(CONFIG, filter=compile_sql(f"delay IN ({items})", CONFIG.properties), now=NOW)) == "NNNN"
    items += ", 7"
    assert answer(derive(CONFIG, filter=compile_sql(f"delay IN ({items})", CONFIG.properties), now=NOW)) == "NMMN"


def test_a_filter_without_types_is_not_asked() -> None:
    assert derive(CONFIG, filter=compile_sql("delay = 1"), now=NOW).filter == Unsure()


@pytest.mark.parametrize(
    ("subject", "text", "wanted"),
    [
        ({"header": "subject"}, "p.subject = 'order.created'", "ANM"),
        ({"header": "subject"}, "p.subject LIKE 'order.%'", "ANM"),
        ({"header": "subject"}, "p.subject LIKE 'new order.%'", "MMM"),  # no subject has a space
        ({"header": "subject"}, "p.subject LIKE 'order.c%'", "MNM"),
        ({"header": "subject"}, "p.subject IS NULL", "NNN"),
        ({"header": "subject"}, "p.subject = 'no subject'", "NNN"),
        ({"key": True}, "p.subject = 'order.created'", "MMM"),
        ({"topic": True}, "p.subject = 'order.created'", "MMM"),
    ],
)
def test_the_subject_property_where_it_is_the_subject(subject: dict[str, Any], text: str, wanted: str) -> None:
    """Elsewhere a header of that name comes first, and no chunk header says what it holds."""
    ours = stream(subject=subject)
    kinds = (["order.created"], ["user.login"], ["user.login", "order.created"])
    headers = [
        seal(ours, [Record(10 * number + i, kind) for i, kind in enumerate(inside)], 10 * number, 10 * number + 10)
        for number, inside in enumerate(kinds)
    ]
    found = evaluate(derive(ours, filter=sql(text, ours), now=0), load(ours, headers))
    assert "".join("NMA"[level] for level in found.levels) == wanted


def test_bloom_and_sql_together() -> None:
    """The combined example of RabbitMQ's text on filtering: order.created of the last hour, by region and by price."""
    ours = stream(
        subject={"header": "subject"},
        properties={
            "region": {"type": "string"},
            "price": {"type": "double"},
            "premium_customer": {"type": "boolean"},
            "p.creation_time": {"type": "timestamp", "from": "{timestamp}"},
        },
        index={"terms": ["region"], "zones": ["price"]},
    )
    text = (
        "p.subject = 'order.created' AND p.creation_time > UTC() - 3600000 AND region IN ('AMER', 'EMEA', 'APJ') AND "
        "(h.priority > 4 OR price >= 99.99 OR premium_customer = TRUE)"
    )
    hour = 60 * MINUTE

    def event(offset: int, subject: str, age: int, region: str, price: float) -> Record:
        message = say(region=region, price=price, premium_customer=False)
        message["properties"] = {"subject": subject, "creation_time": to_time(NOW - age)}
        message["header"] = {"priority": 4}
        return Record(offset, subject, NOW - age, message)

    kinds = [
        ("user.login", 0, "EMEA", 100.0),  # another event
        ("order.created", 2 * hour, "EMEA", 100.0),  # too old, for ever
        ("order.created", 0, "LATAM", 100.0),  # another region
        ("order.created", MINUTE, "EMEA", 120.0),
        ("order.created", MINUTE, "APJ", 5.0),  # cheap, but it may be urgent
    ]
    headers = [
        seal(ours, [event(10 * row + i, *kind) for i in range(5)], 10 * row, 10 * row + 10)
        for row, kind in enumerate(kinds)
    ]
    created = choose_values(FilterConfig(values=("order.created",)), ours)
    conditions = derive(ours, values=created, filter=sql(text, ours), now=NOW)
    answers = evaluate(conditions, load(ours, headers))
    assert answers.levels.tolist() == [0, 0, 0, 1, 1]
    assert [Part(int(part)) for part in answers.residual[3:]] == [Part.FILTER, Part.FILTER]
    # the Bloom filter on its own refuses what is no order
    alone = derive(ours, values=created, now=NOW)
    assert evaluate(alone, load(ours, headers)).levels.tolist() == [0, 2, 2, 2, 2]
    matching = [event(0, *kind).message for kind in kinds]
    assert [sql(text, ours).matches(message, now=NOW) for message in matching] == [False, False, False, True, False]
