"""`overlay explain` against a real broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from overlay.clock import now_ms
from overlay.state.job_plan import BatchPlan, ConsumerPlan
from spark.job.journal import Journal
from tests.support.kafka import NewTopicFixture, SureProducer

from .trips import Trips


@pytest.fixture
def trips(bootstrap: str, new_topic: NewTopicFixture, tmp_path: Path) -> Trips:
    """Ten chunks of a hundred records, of which the fourth and the fifth go to rome; `n` counts."""
    trips = Trips(tmp_path / "config", bootstrap, new_topic())
    with (trips.folder / "streams" / "trips.yaml").open("a") as file:
        file.write("properties: {n: long}\nindex: {chunk_records: 100, zones: [n]}\n")
    trips.add_consumer("rome")
    trips.add_consumer("late", to="*", filter="{sql: \"n >= 350 AND carrier = 'AA'\"}")
    for run in range(10):
        producer = SureProducer(trips.bootstrap)
        for number in range(run * 100, run * 100 + 100):
            to, carrier = ("rome" if run in (3, 4) else "oslo"), ("AA" if number % 10 == 0 else "UA")
            headers = [("to", to), ("n", str(number)), ("carrier", carrier)]
            producer.produce(trips.topic, b"x" * 300, headers=headers)
        assert producer.flush(30) == 0
    return trips


def test_a_consumer_before_and_with_an_index(trips: Trips) -> None:
    before = trips.run_json("explain", "rome")
    assert (before["unindexed"], before["seconds"]) == (1_000, None)
    assert "overlay index build TRIPS" in before["advice"][0]
    assert set(before["strips"][f"{trips.topic}-0"]) == {"?"}

    trips.run("index", "build", "TRIPS")
    found = trips.run_json("explain", "TRIPS/rome")
    assert {name: share["chunks"] for name, share in found["answers"].items()} == {"NO": 8, "MAYBE": 0, "ALL": 2}
    (rule,) = found["rules"]
    assert (rule["rule"], rule["asked"], rule["refused"], rule["passed"]) == ("subject trips.rome", 10, 8, 2)
    assert (found["unindexed"], found["outdated"], found["observed"]) == (0, 0, None)
    strip = found["strips"][f"{trips.topic}-0"]
    assert len(strip) == 64 and strip.strip(".") == "#" * 13


def test_the_job_of_a_consumer_is_named(trips: Trips) -> None:
    """Without Spark: the plan is written as a driver does."""
    trips.add_consumer("rome", engine="spark")
    nothing = {"name": "spark", "reason": "no Spark job has begun with it", "job": "", "owner": ""}
    assert trips.run_json("explain", "rome")["engine"] == nothing
    consumers = {"rome": ConsumerPlan("", 0, 5, 0)}
    plan = BatchPlan(1, now_ms(), "TRIPS", "", {(trips.topic, 0): (0, 9)}, consumers, {}, owner="app-7")
    with Journal({"bootstrap.servers": trips.bootstrap}, trips.prefix, "J", 1) as journal:
        journal.write(plan.complete(now_ms()))
    sentence = "Spark job 'J' delivers it, as application app-7"
    assert trips.run("explain", "rome").splitlines()[0] == f"engine    spark: {sentence}"
    found = trips.run_json("explain", "rome")["engine"]
    assert found == {"name": "spark", "reason": sentence, "job": "J", "owner": "app-7"}
    assert trips.run_json("explain", "late")["engine"] == {"name": "service", "reason": "", "job": "", "owner": ""}
    assert trips.run_json("explain", "--stream", "TRIPS")["engine"] is None


def test_what_is_read_and_what_to_index(trips: Trips) -> None:
    trips.run("index", "build", "TRIPS")
    found = trips.run_json("explain", "late", "--analyze")
    assert {name: share["chunks"] for name, share in found["answers"].items()} == {"NO": 3, "MAYBE": 7, "ALL": 0}
    assert found["missing"] == {"terms": ["carrier"], "zones": [], "properties": {"carrier": "string"}}
    seen = found["observed"]
    assert (seen["matched"], seen["in_vain"]) == (65, 0)
    assert 650 <= seen["scanned"] <= 1_000 and seen["seconds"] > 0

    said = trips.run("explain", "late", "--analyze")
    lines = said.splitlines()
    assert f"  # {trips.folder / 'streams' / 'trips.yaml'}" in lines
    at = lines.index("  properties:")
    assert lines[at : at + 4] == ["  properties:", "    carrier: string", "  index:", "    terms: [carrier]"]
    assert "skipped" in said and "matched" in said and "65 records, of" in said
    (strip,) = (line for line in lines if line.startswith(f"{trips.topic}-0"))
    assert set(strip.split()[1]) == set("·░█") or set(strip.split()[1]) == set("·█")


def test_filter_values(trips: Trips) -> None:
    with (trips.folder / "streams" / "trips.yaml").open("a") as file:
        file.write("filter_value: {header: to}\n")
    trips.add_consumer("valued", to="*", filter="{values: [rome]}")
    trips.run("index", "build", "TRIPS")
    found = trips.run_json("explain", "valued")
    assert {name: share["chunks"] for name, share in found["answers"].items()} == {"NO": 8, "MAYBE": 2, "ALL": 0}
    (rule,) = (rule for rule in found["rules"] if rule["rule"].startswith("bloom"))
    assert (rule["rule"], rule["asked"], rule["refused"]) == ("bloom rome", 10, 8)
    assert (found["values"], found["match_unfiltered"]) == (["rome"], False)
    question = ("--stream", "TRIPS", "--value", "rome", "--match-unfiltered")
    assert trips.run_json("explain", *question, "--analyze")["observed"]["matched"] == 200
    assert "rome, records without a value" in trips.run("explain", *question)
    assert "a consumer has its own" in trips.run("explain", "rome", "--value", "x", code=2)
    assert "goes with `values`" in trips.run("explain", "--stream", "TRIPS", "--match-unfiltered", code=2)


def test_a_stream_and_a_question(trips: Trips) -> None:
    trips.run("index", "build", "TRIPS")
    question = ["--stream", "TRIPS", "--subject", "trips.oslo", "--sql", "n < 250"]
    found = trips.run_json("explain", *question)
    assert {name: share["chunks"] for name, share in found["answers"].items()} == {"NO": 7, "MAYBE": 1, "ALL": 2}
    assert [rule["rule"] for rule in found["rules"]] == ["subject trips.oslo", "zone n in ..249"]
    assert trips.run_json("explain", *question, "--until", "2001-01-01T00:00:00Z")["answers"]["NO"]["chunks"] == 10
    assert trips.run_json("explain", *question, "--since", "1h")["answers"]["NO"]["chunks"] == 7


def test_a_property_filter(trips: Trips) -> None:
    trips.run("index", "build", "TRIPS")
    question = ["--stream", "TRIPS", "--properties", '{"application_properties": {"n": 250}}']
    found = trips.run_json("explain", *question, "--analyze")
    assert {name: share["chunks"] for name, share in found["answers"].items()} == {"NO": 9, "MAYBE": 1, "ALL": 0}
    assert found["observed"]["matched"] == 1
    assert "this is no JSON" in trips.run("explain", "--stream", "TRIPS", "--properties", "{", code=2)
    assert "Leave one of them out" in trips.run("explain", *question, "--sql", "n = 1", code=2)
    assert "a consumer has its own" in trips.run("explain", "rome", "--properties", "{}", code=2)


def test_names_and_calls(trips: Trips) -> None:
    assert "Did you mean TRIPS/rome?" in trips.run("explain", "TRIPS/rom", code=1)
    assert "Did you mean TRIPS?" in trips.run("explain", "--stream", "TRIPZ", code=1)
    assert "name a CONSUMER or a --stream" in trips.run("explain", code=2)
    assert "not both" in trips.run("explain", "rome", "--stream", "TRIPS", code=2)
    assert "a consumer has its own" in trips.run("explain", "rome", "--sql", "n > 1", code=2)
    assert "--since: 'soon' is no point in time" in trips.run("explain", "rome", "--since", "soon", code=2)
    assert "== is no operator" in trips.run("explain", "--stream", "TRIPS", "--sql", "n == 1", code=1)
    (trips.folder / "streams" / "more.yaml").write_text(f"name: MORE\ntopics: [{trips.topic}]\n")
    (trips.folder / "consumers" / "more.yaml").write_text(
        f"stream: MORE\ndurable_name: rome\ndeliver_subject: {trips.output('more')}\nack_policy: none\n"
    )
    assert "Name one of MORE/rome, TRIPS/rome" in trips.run("explain", "rome", code=1)
