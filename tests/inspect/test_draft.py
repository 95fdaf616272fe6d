"""The files of a proposal: whatever the topic holds, they load without a problem."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from overlay.config import Loaded, load
from overlay.config.yaml_text import quote
from overlay.inspect.draft import (
    comment,
    describe_unaddressed,
    draft_consumers,
    draft_service,
    draft_stream,
    name_topics,
)
from overlay.inspect.proposal import propose
from overlay.inspect.sample import SampledRecord, TopicSample
from tests.inspect.samples import make_flights, make_record, make_sample

KAFKA = {"bootstrap.servers": "broker:9092", "security.protocol": "PLAINTEXT"}


def draft(*samples: TopicSample) -> dict[str, str]:
    names = name_topics(sample.topic for sample in samples)
    files = {"overlay.yaml": draft_service(KAFKA, 1)}
    for sample in samples:
        proposal, name = propose(sample), names[sample.topic]
        files[f"streams/{name.stem}.yaml"] = draft_stream(proposal, name)
        files |= {f"consumers/{stem}.yaml": text for stem, text in draft_consumers(proposal, name).items()}
    return files


def load_drafts(files: Mapping[str, str]) -> Loaded:
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            file = Path(folder, name)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        return load(Path(folder), environment={})


def test_flights_load_as_a_stream_and_two_consumers() -> None:
    loaded = load_drafts(draft(make_flights()))
    assert loaded.problems == ()
    stream = loaded.streams["FLIGHTS"]
    assert (stream.topic_names, stream.subjects) == (("flights",), ("flights.*.*",))
    assert stream.subject.template == "flights.{header:origin}.{header:dest}"
    assert loaded.consumers["FLIGHTS", "flights-all"].filters == ()
    assert loaded.consumers["FLIGHTS", "flights-JFK"].filters == ("flights.JFK.>",)


def test_the_stream_file_explains_itself() -> None:
    text = draft(make_flights())["streams/flights.yaml"]
    assert "from a sample of 60 records of 1 partition" in text
    assert "# {header:origin}: 3 values" not in text
    assert "#   {header:origin}: 3 values: JFK LGA EWR" in text
    assert '#   subject: {template: "flights.{header:dest}"}' in text
    assert max(map(len, text.splitlines())) <= 120


def test_what_stands_in_comments_works_too() -> None:
    """The filter and the policy that a consumer's file speaks of."""
    files = draft(make_flights())
    text = (
        files["consumers/flights-JFK.yaml"]
        .replace("# filter:", "filter:")
        .replace("ack_policy: none", "ack_policy: explicit")
    )
    loaded = load_drafts({**files, "consumers/flights-JFK.yaml": text})
    assert loaded.problems == ()
    assert str(loaded.consumers["FLIGHTS", "flights-JFK"].filter.sql) == "delay >= 15.0"


def test_outputs_have_as_many_partitions_as_their_source() -> None:
    sample = make_flights()
    several = TopicSample(sample.topic, 3, sample.span, sample.records)
    for source, wanted in ((several, 3), (sample, 1)):
        consumers = load_drafts(draft(source)).consumers
        assert [consumer.output.partitions for consumer in consumers.values()] == [wanted, wanted]


def test_records_without_a_subject_are_counted_with_the_place_of_one() -> None:
    records = [make_record(at, headers={"kind": "ab"[at % 2]} if at else {}) for at in range(100)]
    assert describe_unaddressed(propose(make_sample(records))) == (
        "1 of 100 records lack a field and would be left out, counted, such as orders-0@0"
    )
    values = [make_record(at, value={"kind": "ab"[at % 2]}) for at in range(99)] + [make_record(99, raw=b'{"kind')]
    text = draft(make_sample(values))["streams/orders.yaml"]
    assert "# at most 1 of 100 records lack a field and would be left out, counted, such as orders-0@99" in text


def test_values_that_do_not_fit_the_type_are_counted_with_the_place_of_one() -> None:
    values = [{"amount": f"{at}.5" if at in (7, 9) else at + 0.5} for at in range(200)]
    text = draft(make_sample(make_record(at, value=value) for at, value in enumerate(values)))["streams/orders.yaml"]
    assert 'amount: {type: double, from: "{value:amount}"}     # 2 of 200 are texts, such as orders-0@7\n' in text
    text = draft(make_sample(make_record(at, value={"n": at or True}) for at in range(200)))["streams/orders.yaml"]
    assert "# 1 of 200 is no long, such as orders-0@0\n" in text


def test_every_alternative_would_load() -> None:
    files = draft(make_flights())
    text = files["streams/flights.yaml"]
    found = [line.removeprefix("#   ") for line in text.splitlines() if line.startswith("#   subject: ")]
    assert len(found) > 3
    for line in found:
        changed = [line if old.startswith("subject: ") else old for old in text.splitlines()]
        whole = "\n".join(old for old in changed if not old.startswith("subjects: "))
        stream = {"overlay.yaml": files["overlay.yaml"], "streams/flights.yaml": whole + "\n"}
        assert load_drafts(stream).problems == (), line


def test_values_of_high_cardinality_stay_out_of_the_files() -> None:
    sample = make_sample(make_record(at, key=f"secret-{at}", headers={"id": f"private-{at}"}) for at in range(50))
    assert not any("secret-" in text or "private-" in text for text in draft(sample).values())


def test_topics_of_similar_names_get_files_of_their_own() -> None:
    names = name_topics(["a.b", "A-b", "a.b", "...", "x" * 249])
    assert len({name.stem.lower() for name in names.values()}) == len(names) == 4
    topics = ["a.b", "A-b", "a..b", ".hidden", "overlay.mine", "x" * 249, "_", "a" * 199 + ".b"]
    loaded = load_drafts(draft(*(TopicSample(topic, 1) for topic in topics)))
    assert loaded.problems == ()
    assert sorted(stream.topic_names[0] for stream in loaded.streams.values()) == sorted(topics)


def test_no_output_is_one_of_the_sources() -> None:
    sample = make_flights()
    names = name_topics(["flights"])["flights"]
    stems = draft_consumers(propose(sample), names, ["flights", "flights-all", "flights-all-out", "flights-JFK"])
    assert list(stems) == ["flights-all-out-out", "flights-JFK-out"]


def test_two_consumers_have_two_names() -> None:
    # the commonest first token makes the name that the first consumer got, since t-all is taken
    sample = make_sample(tuple(make_record(at, headers={"kind": ("all-out", "b")[at % 3 == 0]}) for at in range(60)))
    names = name_topics(["t"])["t"]
    assert list(draft_consumers(propose(sample), names)) == ["t-all", "t-all-out"]
    assert len(draft_consumers(propose(sample), names, ["t", "t-all"])) == 2


def test_secrets_become_references_and_dollars_stay() -> None:
    kafka = {
        **KAFKA,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "a${b}",
        "sasl.password": "hush",
    }
    text = draft_service(kafka, 5)
    assert "hush" not in text
    service = load_drafts({"overlay.yaml": text}).service
    assert service.kafka == {**kafka, "sasl.password": "env:SASL_PASSWORD"}
    assert (
        load_drafts({"overlay.yaml": draft_service(service.kafka | {"sasl.password": "file:/a b"}, 1)}).service.kafka[
            "sasl.password"
        ]
        == "file:/a b"
    )
    assert service.topics.replication == 3


@pytest.mark.parametrize(
    "name", ['a"b', "a{b}", "}{", "größe", "日本", "a\nb", "a: b # c", "\u2028", "a'b\\", "😀", " "]
)
def test_weird_header_names_load(name: str) -> None:
    sample = make_sample(make_record(at, headers={name: "ab"[at % 2]}) for at in range(20))
    loaded = load_drafts(draft(sample))
    assert loaded.problems == ()
    (found,) = loaded.streams["ORDERS"].properties.values()
    assert found.source is not None
    assert found.source.name == name
    braced = bool(set("{}") & set(name))
    assert loaded.streams["ORDERS"].subject.template == (None if braced else f"orders.{{header:{name}}}")


_names = st.text(st.characters(codec="utf-8"), max_size=12)
_records = st.lists(
    st.builds(
        SampledRecord,
        st.just(0),
        st.integers(0, 9),
        st.none() | st.binary(max_size=8),
        st.none()
        | st.binary(max_size=8)
        | st.sampled_from(
            [
                b'{"a":{"b":1}}',
                b'{"a":"x"}',
                b'{"$ref":true,"\xc2\x85":"y"}',
                b'{"a":-1e400,"c":[1]}',
                b'{"a":"\'"}',
                b"[{",
            ]
        ),
        st.lists(st.tuples(st.sampled_from(["h", "i"]) | _names, st.none() | st.binary(max_size=3)), max_size=4).map(
            tuple
        ),
    ),
    max_size=12,
)


@settings(max_examples=80, deadline=None)
@given(_records, st.sampled_from(["orders", "a.b", "a..b"]))
def test_whatever_a_topic_holds_the_files_load(records: list[SampledRecord], topic: str) -> None:
    """With the filter that a consumer's file has in a comment."""
    files = draft(TopicSample(topic, 1, len(records), tuple(records)))
    filtered = {name: text.replace("# filter:", "filter:") for name, text in files.items()}
    assert load_drafts(filtered).problems == ()


@given(st.text(st.characters(codec="utf-8"), max_size=30))
def test_quoted_texts_come_back(text: str) -> None:
    assert YAML(typ="safe", pure=True).load(f"a: {quote(text)}") == {"a": text}
    assert all(line.startswith("# ") and len(line.splitlines()) == 1 for line in comment(text))
