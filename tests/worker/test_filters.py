"""SQL and property filters in a running service, against the row evaluator on what confluent-kafka reads."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from overlay.config import load
from overlay.config.filters import compile_filter
from tests.oracle.properties import Declared, answer
from tests.support.kafka import NewTopicFixture, SureProducer
from tests.worker.scenes import (
    Headers,
    Scene,
    Seen,
    Served,
    await_caught_up,
    check_output,
    expect,
    read_committed,
    serve,
)

pytestmark = pytest.mark.kafka

DECLARED: Declared = {
    "delay": ("double", "{header:delay}"),
    "seats": ("long", "{value:plane.seats}"),
    "tail": ("string", "{value:tail}"),
    "p.message_id": ("long", ""),
}
PROPERTIES = {name: {"type": type, **({"from": of} if of else {})} for name, (type, of) in DECLARED.items()}
FILTERS: dict[str, dict[str, object]] = {
    "headers": {"sql": "delay > 30 AND carrier IN ('AA', 'UA')"},
    "negated": {"sql": "NOT (delay > 30 AND carrier IN ('AA', 'UA'))"},
    "values": {"sql": "seats >= 100 AND tail LIKE 'N_%'"},
    "broken": {"sql": "tail IS NULL OR seats IS NULL"},
    "known": {"sql": "p.subject = 't.a' AND p.group_id <> '3' AND p.message_id > 10 AND h.priority = 4"},
    "pairs": {"properties": {"properties": {"subject": "&s:.b"}, "application_properties": {"carrier": "&p:A"}}},
    "none": {"sql": "delay > 1000"},
}
VALUES = [
    b'{"tail": "N1", "plane": {"seats": 180}}',
    b'{"tail": "N\\u00e9", "plane": {"seats": 99.0}}',
    b'{"plane": {"seats": "many"}, "tail": 5}',
    b'{"tail": null}',
    b'{"tail": ',
    b"late",
    b"\0\0\0\0\7\2\6abc",
    b"Obj\1\4",
    b"\xff",
    None,
]
DELAYS = ["60", "30.5", "-2", "1e2", "late", "", None]
CARRIERS = ["AA", "UA", "DL", b"\xff", None]


def produce_mixed(bootstrap: str, topic: str, count: int) -> None:
    """Every kind of value meets every delay and carrier, for the numbers of them have no common factor."""
    producer = SureProducer(bootstrap, {"linger.ms": 5, "compression.type": "lz4"})
    for number in range(count):
        carrier, delay = CARRIERS[number % 5], DELAYS[number % 7]
        headers: Headers = [("to", "ab"[number % 2]), ("message-id", str(number % 23))]
        headers += [("carrier", carrier)] if carrier is not None else []
        headers += [("delay", delay)] if delay is not None else []
        headers += [("priority", "5")] if number % 11 == 0 else []
        producer.produce(topic, VALUES[(number // 3) % len(VALUES)], str(number % 7), 0, headers=headers)
    assert producer.flush(30) == 0


def read_wanted(scene: Scene, source: list[Seen], name: str, *filters: str) -> tuple[list[Seen], Counter[str]]:
    """What a consumer must be given of the source, and how often each answer and each reason for a null comes up."""
    loaded = load(scene.folder)
    stream = loaded.streams["S"]
    filter = compile_filter(loaded.consumers["S", name].filter, stream)
    assert filter is not None
    wanted, counts = [], Counter[str]()
    for record in expect(source, filters):
        subject = f"t.{(record.header(b'to') or b'').decode()}"
        said, reasons = answer(filter, record, subject, record.topic, record.partition, DECLARED)
        counts.update([str(said), *reasons])
        wanted += [record] if said else []
    return wanted, counts


def read_counts(served: Served, name: str) -> Counter[str]:
    """The same counts as the service has them in its metrics."""
    found = Counter[str]()
    words = {"true": "True", "false": "False", "unknown": "None"}
    evaluated = 0
    for family in served.service.metrics.registry.collect():
        for sample in family.samples:
            if sample.labels.get("consumer") != name:
                continue
            if sample.name == "overlay_filter_results_total":
                found[words[sample.labels["result"]]] += int(sample.value)
            elif sample.name == "overlay_filter_nulls_total":
                found[sample.labels["reason"]] += int(sample.value)
            elif sample.name == "overlay_records_evaluated_total":
                evaluated = int(sample.value)
    assert evaluated == found["True"] + found["False"] + found["None"]
    return found


def test_every_consumer_gets_what_its_filter_accepts(scene: Scene, bootstrap: str, new_topic: NewTopicFixture) -> None:
    topic = new_topic()
    scene.add_stream("S", topic, properties=PROPERTIES)
    outputs = {name: scene.add_consumer("S", name, filter=filter) for name, filter in FILTERS.items()}
    outputs["part"] = scene.add_consumer("S", "part", "t.b", filter=FILTERS["values"])
    produce_mixed(bootstrap, topic, 3_000)
    source = read_committed(bootstrap, topic)
    with serve(scene) as served:
        await_caught_up(served, *outputs)
        for name, output in outputs.items():
            wanted, counts = read_wanted(scene, source, name, *(["t.b"] if name == "part" else []))
            assert read_counts(served, name) == counts
            assert bool(wanted) == (name != "none"), "a filter that proves nothing"
            check_output(read_committed(bootstrap, output), wanted, consumer=name)
            if name in ("values", "part"):
                assert min(counts[word] for word in ("unparsable", "malformed", "undecoded")) > 0


def test_policies_choose_by_subject_and_filters_what_is_delivered(
    scene: Scene, bootstrap: str, new_topic: NewTopicFixture
) -> None:
    topic = new_topic()
    scene.add_stream("S", topic, properties={"n": {"type": "long", "from": "{value:n}"}})
    produce_numbers(bootstrap, topic, 0, 20)
    sql = {"sql": "n % 4 < 2"}
    outputs = {
        "last": scene.add_consumer("S", "last", "t.a", deliver_policy="last", filter=sql),
        "lasts": scene.add_consumer("S", "lasts", "t.*", deliver_policy="last_per_subject", filter=sql),
        "new": scene.add_consumer("S", "new", deliver_policy="new", filter=sql),
    }
    with serve(scene) as served:
        await_caught_up(served, *outputs)
        produce_numbers(bootstrap, topic, 20, 30)
        await_caught_up(served, *outputs)
    source = read_committed(bootstrap, topic)
    # the last records of t.a and t.b are 18 and 19, which the filter does not accept
    after = [record for record in source if record.offset in (20, 21, 24, 25, 28, 29)]
    check_output(read_committed(bootstrap, outputs["last"]), [r for r in after if r.offset % 2 == 0], consumer="last")
    check_output(read_committed(bootstrap, outputs["lasts"]), after, consumer="lasts")
    check_output(read_committed(bootstrap, outputs["new"]), after, consumer="new")


def test_a_changed_filter_holds_from_the_position_on(scene: Scene, bootstrap: str, new_topic: NewTopicFixture) -> None:
    topic = new_topic()
    scene.add_stream("S", topic, properties={"n": {"type": "long", "from": "{value:n}"}})
    for start, sql in ((0, "n % 2 = 0"), (10, "n % 2 = 1")):
        output = scene.add_consumer("S", "c", filter={"sql": sql})
        produce_numbers(bootstrap, topic, start, start + 10)
        with serve(scene) as served:
            await_caught_up(served, "c")
    wanted = [r for r in read_committed(bootstrap, topic) if r.offset % 2 == (r.offset >= 10)]
    check_output(read_committed(bootstrap, output), wanted)


def produce_numbers(bootstrap: str, topic: str, start: int, end: int) -> None:
    """Even numbers go to a, odd ones to b."""
    producer = SureProducer(bootstrap)
    for number in range(start, end):
        producer.produce(topic, json.dumps({"n": number}), partition=0, headers=[("to", "ab"[number % 2])])
    assert producer.flush(30) == 0
