"""What is said of a question that can find nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from overlay.client.read.topic import describe_topic
from overlay.config.stream import StreamConfig
from overlay.filter import compile_sql
from overlay.inspect.sample import SampledRecord
from overlay.subject import Pattern
from overlay.view.doubts import hint_declaration, list_absent_properties, list_doubts, list_misread, list_missing
from tests.config.folders import load_files

ORDERS = """name: ORDERS
topics: [orders]
subjects: ["orders.>"]
subject: {template: "orders.{header:to}"}
properties: {total: {type: double, from: "{value:total}"}}
"""
RECORDS = [
    SampledRecord(
        0, number, None, b'{"total": %d, "customer": {"country": "NO"}, "vip": true}' % number, (("To", b"x"),)
    )
    for number in range(3)
]


@pytest.fixture
def orders(tmp_path_factory: pytest.TempPathFactory) -> StreamConfig:
    return load_files(tmp_path_factory.mktemp("config"), {"streams/orders.yaml": ORDERS}).streams["ORDERS"]


def doubt(stream: StreamConfig, *subjects: str, sql: str = "", is_named: bool = True) -> list[str]:
    compiled = compile_sql(sql, stream.properties) if sql else None
    return list(list_doubts(stream, [Pattern(text) for text in subjects], compiled, is_named=is_named))


def test_subjects(orders: StreamConfig) -> None:
    assert doubt(orders, "orders.>", "orders.*", "*.x", ">") == []
    (plain,) = doubt(orders, "orders.paid*")
    assert "in 'paid*' is an ordinary character" in plain
    assert doubt(orders, "invoices.>") == [
        "no record of stream ORDERS has a subject like invoices.>: its subjects are orders.>"
    ]
    assert doubt(orders, "orders.a.b") == [
        "no record of stream ORDERS has a subject like orders.a.b: its subject rule builds orders.*"
    ]
    assert doubt(orders, "orders") == [
        "no record of stream ORDERS has a subject like orders: its subjects are orders.>. Did you mean orders.>?"
    ]
    topic = describe_topic("orders", {})
    assert doubt(topic, "orders", ">", is_named=False) == []
    assert doubt(topic, "orders.>", is_named=False) == [
        "no record of topic orders has a subject like orders.>: its subjects are orders"
    ]


def test_filters(orders: StreamConfig) -> None:
    assert doubt(orders, sql="total > 5 AND a = 'x'") == []
    assert doubt(orders, sql="a = 'x' AND 1 = 2") == ["the filter is false for every record"]
    assert doubt(orders, sql="5") == ["the filter is unknown for every record"]
    assert doubt(orders, sql="TRUE") == []
    (never,) = doubt(orders, sql="total = 'x'")
    assert never.startswith("total = 'x' is true of no record")


def miss(
    stream: StreamConfig, sql: str, *, is_named: bool = True, records: list[SampledRecord] | None = None
) -> list[str]:
    sampled = RECORDS if records is None else records
    return list(list_missing(stream, compile_sql(sql, stream.properties), sampled, is_named=is_named))


def test_names_that_no_record_has(orders: StreamConfig) -> None:
    topic = describe_topic("orders", {"tot": {"type": "double", "from": "{value:totl}"}})
    assert miss(topic, "country = 'NO'", is_named=False) == [
        "none of 3 sampled records has the header 'country', which the filter names. For the JSON field say --property"
        " country:string=value:customer.country"
    ]
    assert miss(topic, "vip = 'true'", is_named=False)[0].endswith("--property vip:boolean=value:vip")
    assert miss(orders, "country = 'NO'") == [
        "none of 3 sampled records has the header 'country', which the filter names. For the JSON field add to the file of"
        ' stream ORDERS, under properties: country: {type: string, from: "{value:customer.country}"}'
    ]
    assert miss(topic, "tot > 5", is_named=False) == [
        "none of 3 sampled records has the JSON field 'totl', which the filter names. Did you mean total?"
    ]
    assert miss(topic, "to = 'x'", is_named=False)[0].endswith("Did you mean To?")
    assert miss(topic, "zebra = 'x'", is_named=False)[0].endswith("They have To")


def test_a_declared_property_comes_before_advice_to_declare_one(tmp_path: Path) -> None:
    properties = """properties:
  country: {type: string, from: "{value:customer.country}"}
  client_vip: {type: boolean, from: "{value:vip}"}
"""
    text = ORDERS.partition("properties:")[0] + properties
    stream = load_files(tmp_path, {"streams/orders.yaml": text}).streams["ORDERS"]
    assert miss(stream, "Country = 'NO'")[0].endswith("which the filter names. Did you mean country?")
    assert miss(stream, "[customer.country] = 'NO'")[0].endswith("Did you mean country?")
    assert miss(stream, "vip = 'true'")[0].endswith("Did you mean client_vip?")
    assert miss(stream, "countri = 'NO'")[0].endswith("Did you mean country?")
    # beside the field that is declared there is one of just this name
    buyer = load_files(tmp_path / "b", {"streams/orders.yaml": text.replace("country: {", "buyer: {")}).streams[
        "ORDERS"
    ]
    (other,) = miss(buyer, "country = 'NO'", records=[SampledRecord(0, 1, None, b'{"country": "NO"}', ())])
    assert "Did you mean" not in other and '"{value:country}"' in other
    (near,) = miss(stream, "contry = 'NO'", records=[SampledRecord(0, 1, None, b'{"contry": "NO"}', ())])
    assert "Did you mean country? For the JSON field add to the file of stream ORDERS" in near


def test_properties_that_no_record_has(orders: StreamConfig) -> None:
    assert list(list_absent_properties(orders, RECORDS)) == []
    topic = describe_topic("orders", {"tot": {"type": "double", "from": "{value:totl}"}})
    assert list(list_absent_properties(topic, RECORDS)) == [
        "none of 3 sampled records has the JSON field 'totl', from which the property tot is read. Did you mean total?"
    ]
    assert list(list_absent_properties(topic, [])) == []


def test_names_that_some_record_has_or_that_need_none(orders: StreamConfig) -> None:
    assert miss(orders, "total > 5 AND To = 'x'") == []
    assert miss(orders, "p.subject = 'x' AND p.creation_time > 5 AND h.priority > 3") == []
    assert miss(orders, "country = 'NO'", records=[]) == []


AMOUNTS = [
    SampledRecord(
        0, at, None, b'{"amount": %s, "id": "%d", "at": 1700000000000}' % (amount, at), (("size", b"%d" % at),)
    )
    for at, amount in enumerate([b"12.5"] * 98 + [b"3", b"4"])
]


def test_the_hint_has_the_type_and_the_place_of_the_sampled_values(orders: StreamConfig) -> None:
    topic = describe_topic("orders", {})

    def hint(name: str, type: str = "double", *, is_named: bool = False) -> str:
        return hint_declaration(orders if is_named else topic, name, type, AMOUNTS, is_named=is_named)

    assert hint("amount") == "say --property amount:double=value:amount"
    assert hint("amount", is_named=True) == (
        'add to the stream\'s file, under properties: amount: {type: double, from: "{value:amount}"}'
    )
    assert (hint("size"), hint("size", is_named=True).rpartition("properties: ")[2]) == (
        "say --property size:long",
        "size: long",
    )
    assert hint("at", "timestamp") == "say --property at:timestamp=value:at"
    assert hint("id") == (
        "say --property id:string=value:id; its values are texts, so compare it with a text in quotes"
    )
    assert hint("zebra") == ""


def test_a_name_that_no_record_has_is_answered_with_the_names_that_there_are(tmp_path: Path) -> None:
    text = (
        ORDERS.partition("properties:")[0]
        + """properties:
  client_vip: {type: boolean, from: "{value:customer.vip}"}
  amount: {type: double, from: "{value:amount}"}
  totals: {type: double, from: "{value:t}"}
"""
    )
    stream = load_files(tmp_path, {"streams/orders.yaml": text}).streams["ORDERS"]

    def hint(name: str, near: str = "", records: list[SampledRecord] = AMOUNTS) -> str:
        return hint_declaration(stream, name, "double", records, is_named=True, near=near)

    absent = "one of 100 sampled records has a header or a JSON field 'total'; the stream declares totals, "
    assert hint("total").startswith(f"n{absent}")
    assert hint("total", "did you mean totals? If not, ").startswith(f"did you mean totals? N{absent}")
    assert hint("total", records=[]) == ""
    assert (hint("Amount"), hint("customer.vip"), hint("vip")) == (
        "did you mean amount?",
        "did you mean client_vip?",
        "did you mean client_vip?",
    )
    assert hint("size", "did you mean x? If not, ").startswith("did you mean x? If not, add to the stream's file")


def test_the_fields_of_a_stream_without_properties_are_named(tmp_path: Path) -> None:
    text = ORDERS.partition("properties:")[0]
    stream = load_files(tmp_path, {"streams/orders.yaml": text}).streams["ORDERS"]
    assert hint_declaration(stream, "total", "double", AMOUNTS, is_named=True).endswith(
        "has a header or a JSON field 'total'; they have the JSON fields at, amount, id"
    )


def test_values_that_do_not_spell_the_type(orders: StreamConfig) -> None:
    def misread(sql: str, **declared: str) -> list[str]:
        topic = describe_topic(
            "orders", {name: {"type": type, "from": f"{{value:{name}}}"} for name, type in declared.items()}
        )
        return list(list_misread(topic, compile_sql(sql, topic.properties), AMOUNTS))

    assert misread("amount > 5", amount="long") == [
        "98 % of the sampled values of amount are no long, such as 12.5: try double"
    ]
    assert misread("id > 5", id="long") == ["100 % of the sampled values of id are no long, such as 0: try string"]
    assert misread("amount = '12.5'", amount="string")[0].endswith("no string, such as 12.5: try double")
    assert misread("amount > 5 AND id = '5' AND at < UTC()", amount="double", id="string", at="timestamp") == []
    assert misread("nothing > 5", nothing="long") == []
