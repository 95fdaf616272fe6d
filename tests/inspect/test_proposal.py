"""Choices from samples: subject, alternatives, properties."""

from __future__ import annotations

import json

from overlay.inspect.proposal import propose
from overlay.inspect.sample import TopicSample
from tests.inspect.samples import make_flights, make_record, make_sample


def test_headers_with_few_values_make_the_subject_broadest_first() -> None:
    found = propose(make_flights())
    assert found.subject.template == "flights.{header:origin}.{header:dest}"
    assert (found.unaddressed, len(found.subjects)) == (0, 30)
    assert "flights.JFK.D0" in found.subjects


def test_the_alternatives_name_other_fields_and_the_key() -> None:
    templates = [choice.template for choice in propose(make_flights()).alternatives]
    assert "flights.{header:dest}" in templates
    assert "flights.{header:origin}.{header:dest}.{key}" in templates
    assert templates[-1] == "flights"
    assert len(templates) == len(set(templates))


def test_two_fields_of_the_value_with_few_values_are_an_alternative_to_a_header() -> None:
    records = [
        make_record(
            at, headers={"source": "ab"[at % 2]}, value={"id": f"o{at}", "status": "xyz"[at % 3], "to": f"t{at % 7}"}
        )
        for at in range(100)
    ]
    found = propose(make_sample(records))
    assert found.subject.template == "orders.{header:source}"
    pairs = {choice.template: choice.why for choice in found.alternatives}
    assert pairs["orders.{value:status}.{value:to}"] == "two fields of the value, 3 and 7 values"


def test_properties_have_types_and_no_copies() -> None:
    found = {name: (str(column.field), str(column.type)) for name, column in propose(make_flights()).properties}
    assert found == {
        "origin": ("{header:origin}", "string"),
        "dest": ("{header:dest}", "string"),
        "flight": ("{header:flight}", "long"),
        "delay": ("{value:delay}", "double"),
        "leg_km": ("{value:leg.km}", "long"),
        "late": ("{value:late}", "boolean"),
    }


def test_fields_of_the_value_serve_where_no_header_does() -> None:
    sample = make_sample(make_record(at, value={"kind": "ab"[at % 2], "id": at}) for at in range(40))
    assert propose(sample).subject.template == "orders.{value:kind}"


def test_a_boolean_makes_the_subject_only_where_nothing_else_does() -> None:
    def choose(**values: str) -> str:
        records = [
            make_record(at, value={"vip": at % 5 < 2, **{n: v[at % len(v)] for n, v in values.items()}})
            for at in range(60)
        ]
        return propose(make_sample(records)).subject.template

    assert choose(status="npc", country="abcd") == "orders.{value:status}.{value:country}"
    assert choose() == "orders.{value:vip}"


def test_a_field_that_says_what_another_says_is_no_second_token() -> None:
    sample = make_sample(
        make_record(at, headers={"code": "AB"[at % 2], "name": ("alpha", "beta")[at % 2]}) for at in range(40)
    )
    assert propose(sample).subject.template == "orders.{header:code}"


def test_a_field_that_many_records_lack_is_no_token() -> None:
    sample = make_sample(make_record(at, headers={"kind": "ab"[at % 2]} if at % 4 else {}) for at in range(40))
    assert propose(sample).subject.template == "orders"


def test_keys_that_come_back_make_the_subject_where_nothing_better_does() -> None:
    returning = make_sample(make_record(at, key=f"customer-{at % 30}") for at in range(60))
    assert propose(returning).subject.template == "orders.{key}"
    unique = make_sample(make_record(at, key=f"order-{at}") for at in range(60))
    assert propose(unique).subject.template == "orders"


def test_rare_records_without_the_field_are_counted() -> None:
    sample = make_sample(make_record(at, headers={"kind": "ab"[at % 2]} if at else {}) for at in range(100))
    found = propose(sample)
    assert (found.subject.template, found.unaddressed) == ("orders.{header:kind}", 1)


def make_orders(count: int, broken: int) -> TopicSample:
    """Orders of two kinds, of which the first `broken` are cut off, and one array behind them."""
    texts = [json.dumps({"kind": "ab"[at % 2], "lines": [at]}).encode() for at in range(count)]
    values = [text[:3] if at < broken else text for at, text in enumerate(texts)] + [b"[1]"]
    return make_sample(make_record(at, raw=value) for at, value in enumerate(values))


def test_broken_json_does_not_hide_a_field_and_is_named() -> None:
    found = propose(make_orders(99, broken=20))
    assert found.subject.template == "orders.{value:kind}"
    assert found.subject.why == "fields that every JSON object has, with few values each"
    assert (found.unaddressed, found.unaddressed_at) == (21, "orders-0@0")
    assert found.notes == (
        "broken JSON: 20 of 100 values, such as orders-0@0: what a value holds behind its fault cannot be read",
        "JSON arrays: 1 of 100 values, such as orders-0@99: no path can name their fields",
        "arrays are no properties and no part of a subject: lines, such as in orders-0@20",
    )


def test_a_field_of_few_json_objects_is_no_token() -> None:
    assert propose(make_orders(99, broken=60)).subject.template == "orders"


def test_an_empty_topic_has_its_name_for_a_subject() -> None:
    found = propose(TopicSample("a..b", 3))
    assert (found.subject.template, found.subjects) == ("{topic}", {})
    assert "holds no record" in found.notes[0]


def test_values_that_are_not_decoded_are_named() -> None:
    framed = b"\x00\x00\x00\x00\x2a\x06JFK\x06LAX\x02"
    found = propose(make_sample(make_record(at, raw=framed, headers={"kind": "ab"[at % 2]}) for at in range(40)))
    assert found.subject.template == "orders.{header:kind}"
    assert found.notes == (
        "40 of 40 values are Avro with a schema registry: fields can be named once the stream's file has the schemas, "
        "under `values`; subjects come from headers, key and topic only",
    )


def test_two_fields_of_one_word_get_two_names() -> None:
    sample = make_sample(make_record(at, headers={"content-type": "a", "content type": "b"}) for at in range(9))
    assert [name for name, _ in propose(sample).properties] == ["content_type", "header_content_type"]
