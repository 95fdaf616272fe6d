"""Needs of a config, and how they stand against answers that a Kafka might give."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from overlay.inspect.answers import ClusterAnswers, Operations, TopicAnswer
from overlay.inspect.needs import ResourceKind, find_needs, plan_topic
from overlay.inspect.verdict import Finding, NeedState, count_missing, judge_all
from overlay.kafka.admin import Replicas
from tests.config.folders import CONSUMER, SERVICE, STREAM, load_files

ALL = frozenset({"Describe", "DescribeConfigs", "AlterConfigs", "Read", "Write", "Create", "Delete", "Alter"})
FULL = TopicAnswer(True, 3, "id", ALL, {"cleanup.policy": "delete", "retention.ms": "604800000"})
ABSENT = TopicAnswer(False)
INDEX = "overlay.FLIGHTS.index"
OWN = ("overlay.state", "overlay.control", "overlay.replies", "overlay.events", "overlay.fleet")


def judge(
    folder: Path,
    topics: Mapping[str, TopicAnswer],
    *,
    operations: Operations = frozenset({"IdempotentWrite"}),
    groups: Mapping[str, Operations] | None = None,
    **files: str,
) -> dict[str, Finding]:
    """Findings by name. `files`: stream and consumer texts, service for overlay.yaml."""
    texts = {
        "streams/flights.yaml": files.get("stream", STREAM),
        "consumers/late.yaml": files.get("consumer", CONSUMER),
    }
    loaded = load_files(folder, {"overlay.yaml": files.get("service", SERVICE), **texts})
    assert loaded.problems == ()
    found = {"flights": FULL, "late": ABSENT, INDEX: ABSENT, **dict.fromkeys(OWN, ABSENT), **topics}
    answers = ClusterAnswers(1, operations, found, groups or {"overlay.workers": ALL}, ("flights", "late"))
    return {finding.need.name: finding for finding in judge_all(find_needs(loaded), answers, loaded.service)}


def test_needs_name_every_resource_and_operation(tmp_path: Path) -> None:
    loaded = load_files(tmp_path, {"consumers/late.yaml": CONSUMER, "overlay.yaml": SERVICE + "shards: 2\n"})
    needs = {(need.kind, need.name): " ".join(need.operations) for need in find_needs(loaded)}
    assert needs == {
        (ResourceKind.SOURCE, "flights"): "Describe DescribeConfigs Read",
        (ResourceKind.OUTPUT, "late"): "Describe DescribeConfigs Write Create",
        (ResourceKind.INDEX, INDEX): "Describe DescribeConfigs AlterConfigs Read Write Create",
        (ResourceKind.STATE, "overlay.state"): "Describe Read Write Delete Create",
        (ResourceKind.CONTROL, "overlay.control"): "Describe Read Write Create",
        (ResourceKind.REPLIES, "overlay.replies"): "Describe Write Create",
        (ResourceKind.EVENTS, "overlay.events"): "Describe DescribeConfigs Read Write Create",
        (ResourceKind.FLEET, "overlay.fleet"): "Describe Write Create",
        (ResourceKind.TRANSACTION, "overlay.shard.0"): "Describe Write",
        (ResourceKind.TRANSACTION, "overlay.shard.1"): "Describe Write",
        (ResourceKind.TRANSACTION, "overlay.control.0"): "Describe Write",
        (ResourceKind.TRANSACTION, "overlay.control.1"): "Describe Write",
        (ResourceKind.GROUP, "overlay.workers"): "Describe Read",
        (ResourceKind.CLUSTER, "kafka-cluster"): "IdempotentWrite",
    }
    plans = {need.name: plan_topic(need, loaded.service) for need in find_needs(loaded)}
    assert [name for name, plan in plans.items() if plan] == ["late", INDEX, *OWN]
    plan = plans[INDEX]
    assert plan is not None and (plan.partitions, plan.config["cleanup.policy"]) == (1, "compact")
    state = plans["overlay.state"]
    assert state is not None
    assert (state.partitions, state.replication, state.config["cleanup.policy"]) == (2, 1, "delete")


def test_a_worker_that_publishes_nothing_needs_no_topic_for_it(tmp_path: Path) -> None:
    loaded = load_files(tmp_path, {"overlay.yaml": SERVICE + "fleet: {publish: false}\n"})
    assert ResourceKind.FLEET not in {need.kind for need in find_needs(loaded)}


def test_what_spark_jobs_need(tmp_path: Path) -> None:
    """A job for each stream, under its name, whatever the number of its consumers."""
    files = {
        "late.yaml": CONSUMER + "engine: spark\n",
        "other.yaml": CONSUMER.replace("durable_name: late", "durable_name: other") + "engine: spark\n",
    }
    loaded = load_files(tmp_path, {f"consumers/{name}": text for name, text in files.items()})
    assert loaded.problems == ()
    needs = {(need.kind, need.name): need for need in find_needs(loaded) if ".spark." in need.name}
    assert {key: " ".join(need.operations) for key, need in needs.items()} == {
        (ResourceKind.JOB, "overlay.spark.FLIGHTS"): "Describe Read Write Alter Delete Create",
        (ResourceKind.TRANSACTION, "overlay.spark.FLIGHTS"): "Describe Write",
        (ResourceKind.TRANSACTION, "overlay.spark.FLIGHTS.*"): "Describe Write",
        (ResourceKind.GROUP, "overlay.spark.FLIGHTS.late"): "Describe Read",
        (ResourceKind.GROUP, "overlay.spark.FLIGHTS.other"): "Describe Read",
    }
    job = needs[ResourceKind.JOB, "overlay.spark.FLIGHTS"]
    assert job.kind.is_own and plan_topic(job, loaded.service)
    # and what it shares with the service: it takes consumers over, and keeps the ledger and the chunk index
    used = {need.name for need in find_needs(loaded) if "Spark job FLIGHTS" in need.users}
    assert used - {name for _, name in needs} == {INDEX, "overlay.state", "overlay.shard.0", "overlay.workers"}


def test_topics_beside_the_outputs(tmp_path: Path) -> None:
    acked = CONSUMER.replace("ack_policy: none", "ack_policy: explicit") + "dead_letter: given-up\n"
    loaded = load_files(tmp_path, {"consumers/late.yaml": acked, "overlay.yaml": SERVICE})
    assert loaded.problems == ()
    needs = {need.kind: need for need in find_needs(loaded)}
    acks, letters = needs[ResourceKind.ACKS], needs[ResourceKind.LETTERS]
    assert (acks.name, " ".join(acks.operations)) == ("overlay.FLIGHTS.acks", "Describe DescribeConfigs Read Create")
    assert (letters.name, " ".join(letters.operations)) == ("given-up", "Describe DescribeConfigs Write Create")
    assert acks.kind.is_own and not letters.kind.is_own and plan_topic(acks, loaded.service)


def test_groups_of_readers(tmp_path: Path) -> None:
    """The groups whose committed offsets the service looks at: of consumers with acks, unless their file says otherwise."""
    acked = CONSUMER.replace("ack_policy: none", "ack_policy: explicit")
    files = {
        "late.yaml": acked,
        "grouped.yaml": acked.replace("durable_name: late", "durable_name: grouped\ndeliver_group: readers"),
        "always.yaml": acked.replace("durable_name: late", "durable_name: always\ninterest: always"),
        "plain.yaml": CONSUMER.replace("durable_name: late", "durable_name: plain"),
    }
    loaded = load_files(tmp_path, {f"consumers/{name}": text for name, text in files.items()})
    assert loaded.problems == ()
    needs = [need for need in find_needs(loaded) if need.kind is ResourceKind.GROUP]
    assert {need.name: need.operations for need in needs} == {
        "late": ("Describe",),
        "readers": ("Describe",),
        "overlay.workers": ("Describe", "Read"),
    }


def test_nothing_is_missing_where_topics_can_be_created(tmp_path: Path) -> None:
    found = judge(tmp_path, {})
    assert {name: finding.state for name, finding in found.items()} == {
        "flights": NeedState.OK,
        "late": NeedState.CREATED,
        INDEX: NeedState.CREATED,
        **dict.fromkeys(OWN, NeedState.CREATED),
        "overlay.shard.0": NeedState.UNKNOWN,
        "overlay.control.0": NeedState.UNKNOWN,
        "overlay.workers": NeedState.OK,
        "kafka-cluster": NeedState.OK,
    }
    assert count_missing(found.values()) == 0
    assert "it needs Describe and Write" in found["overlay.shard.0"].remarks[0]
    assert "can be asked once it is there" in found["late"].remarks[0]


def test_operations_that_are_not_allowed_are_named(tmp_path: Path) -> None:
    found = judge(
        tmp_path,
        {"flights": TopicAnswer(True, 3, "", frozenset({"Describe", "DescribeConfigs"})), "late": TopicAnswer(None)},
        groups={"overlay.workers": frozenset()},
        operations=frozenset(),
    )
    assert found["flights"].missing == ("Read",)
    assert found["late"].missing == ("Describe", "DescribeConfigs", "Write")
    assert found["overlay.workers"].missing == ("Describe", "Read")
    assert "only brokers before 2.8" in found["kafka-cluster"].remarks[0]
    assert count_missing(found.values()) == 3


def test_nothing_is_claimed_of_operations_that_kafka_does_not_tell(tmp_path: Path) -> None:
    found = judge(tmp_path, {}, operations=None, groups={"overlay.workers": None})
    assert (found["kafka-cluster"].state, found["kafka-cluster"].remarks) == (NeedState.OK, ())
    group = found["overlay.workers"]
    assert (group.state, group.missing) == (NeedState.UNKNOWN, ())
    assert group.remarks == ("Kafka does not say what this user may do; it needs Describe and Read",)


@pytest.mark.parametrize(
    ("topic", "word"),
    [
        (TopicAnswer(False, refusal="no", creation_denied=True), "may not create it"),
        (TopicAnswer(False, refusal="Invalid value x"), "Kafka would not create it: Invalid value x"),
    ],
)
def test_a_topic_that_cannot_be_created_is_missing(tmp_path: Path, topic: TopicAnswer, word: str) -> None:
    finding = judge(tmp_path, {"late": topic})["late"]
    assert finding.state is NeedState.MISSING
    assert word in finding.remarks[0]


def test_too_few_brokers_for_the_replication(tmp_path: Path) -> None:
    found = judge(tmp_path, {}, service=SERVICE + "topics: {replication: 3}\n")
    assert found["late"].state is NeedState.MISSING
    assert "topics.replication is 3, the cluster has 1 broker. Lower it" in found["late"].remarks[0]


def test_a_missing_source_has_a_did_you_mean(tmp_path: Path) -> None:
    finding = judge(tmp_path, {"flghts": ABSENT}, stream=STREAM.replace("[flights]", "[flghts]"))["flghts"]
    assert finding.state is NeedState.MISSING
    assert "Did you mean flights?" in finding.remarks[0]


def test_a_source_that_a_consumer_fills_will_be_there(tmp_path: Path) -> None:
    other = "name: LATE\ntopics: [late]\n"
    loaded = load_files(tmp_path, {"streams/late.yaml": other, "consumers/late.yaml": CONSUMER})
    topics = {"flights": FULL, **dict.fromkeys(("late", *OWN, INDEX, "overlay.LATE.index"), ABSENT)}
    answers = ClusterAnswers(1, ALL, topics, {}, ())
    found = judge_all(find_needs(loaded), answers, loaded.service)
    assert [finding.state for finding in found if finding.need.name == "late"] == [NeedState.CREATED, NeedState.CREATED]


def test_partitions_that_do_not_exist(tmp_path: Path) -> None:
    stream = STREAM.replace("[flights]", "[{topic: flights, partitions: [1, 3, 7]}]")
    finding = judge(tmp_path, {}, stream=stream)["flights"]
    assert finding.state is NeedState.MISSING
    assert finding.remarks == ("it has 3 partitions, the stream's file names 3, 7. Partitions count from 0",)


def test_a_state_topic_of_another_number_of_shards(tmp_path: Path) -> None:
    state = TopicAnswer(True, 1, "", ALL, {})
    finding = judge(tmp_path, {"overlay.state": state}, service=SERVICE + "shards: 4\n")["overlay.state"]
    assert finding.state is NeedState.OK
    assert finding.remarks == ("`shards` says 4, but its partitions decide: there are 1",)


def test_compaction_and_short_retention_are_remarks(tmp_path: Path) -> None:
    config = {"cleanup.policy": "compact,delete", "retention.ms": "5400000"}
    finding = judge(tmp_path, {"flights": TopicAnswer(True, 1, "", ALL, config)})["flights"]
    assert finding.state is NeedState.OK
    assert [remark.split(":")[0] for remark in finding.remarks] == [
        "it is compacted",
        "it keeps records for 1.5 h only",
    ]


def test_an_output_that_differs_is_used_as_it_is(tmp_path: Path) -> None:
    config = {"message.timestamp.type": "CreateTime"}
    finding = judge(tmp_path, {"late": TopicAnswer(True, 4, "", ALL, config)})["late"]
    assert finding.state is NeedState.OK
    assert finding.remarks == (
        "it has 4 partitions, output.partitions says 1; it is used as it is",
        "its message.timestamp.type is CreateTime, the file asks for LogAppendTime; it is used as it is",
    )


def test_an_output_that_would_hold_up_every_transaction_is_missing(tmp_path: Path) -> None:
    config = {"min.insync.replicas": "2"}
    replicas = (Replicas(3, 3), Replicas(3, 1))
    finding = judge(tmp_path, {"late": TopicAnswer(True, 1, "", ALL, config, replicas=replicas)})["late"]
    assert finding.state is NeedState.MISSING
    assert "its partition 1 has 1 of 3 replicas in sync, fewer than its min.insync.replicas of 2" in finding.remarks[0]
    state = TopicAnswer(True, 1, "", ALL, {}, replicas=(Replicas(1, 1, has_leader=False),))
    finding = judge(tmp_path, {"overlay.state": state})["overlay.state"]
    assert finding.state is NeedState.MISSING
    assert "partition 0 has no leader" in finding.remarks[0]


def test_more_replicas_asked_for_than_there_are_is_a_remark(tmp_path: Path) -> None:
    answer = TopicAnswer(True, 1, "", ALL, {"min.insync.replicas": "2"}, replicas=(Replicas(1, 1),))
    finding = judge(tmp_path, {"late": answer})["late"]
    assert finding.state is NeedState.OK
    assert finding.remarks[0].startswith("its min.insync.replicas is 2, and it has 1 replica: Kafka 4.3 makes do")


def test_the_right_to_act_as_a_broker_includes_all_others(tmp_path: Path) -> None:
    found = judge(tmp_path, {}, operations=frozenset({"ClusterAction"}))
    assert found["overlay.shard.0"].state is NeedState.OK
    assert found["late"].remarks == ()


def test_a_kafka_that_does_not_tell_permissions(tmp_path: Path) -> None:
    found = judge(tmp_path, {"flights": TopicAnswer(True, 3)}, groups={"other": ALL}, operations=None)
    assert found["flights"].state is NeedState.UNKNOWN
    assert "it needs Describe, DescribeConfigs and Read" in found["flights"].remarks[0]
    assert found["overlay.workers"].state is NeedState.UNKNOWN
    assert count_missing(found.values()) == 0


def test_an_index_that_may_not_be_kept(tmp_path: Path) -> None:
    """It is missing, and yet no reason not to start."""
    found = judge(tmp_path, {INDEX: TopicAnswer(False, creation_denied=True)})[INDEX]
    assert (found.state, found.missing) == (NeedState.MISSING, ("Create",))
    assert found.remarks[1].startswith("without it the service runs")
    (_, missing) = judge(tmp_path, {INDEX: TopicAnswer(True, 1, "", ALL - {"Write"}, {"cleanup.policy": "compact"})})[
        INDEX
    ].remarks
    assert missing.startswith("without it the service runs")
    (remark,) = judge(tmp_path, {INDEX: TopicAnswer(True, 1, "", ALL, {"cleanup.policy": "delete"})})[INDEX].remarks
    assert remark.startswith("it is not compacted")


@pytest.mark.parametrize(
    ("policy", "missing"), [("compact", ()), ("compact,delete", ("AlterConfigs",)), ("delete", ("AlterConfigs",))]
)
def test_the_retention_of_an_index_topic_is_raised_where_it_has_one(
    tmp_path: Path, policy: str, missing: tuple[str, ...]
) -> None:
    topic = TopicAnswer(True, 1, "", ALL - {"AlterConfigs"}, {"cleanup.policy": policy})
    found = judge(tmp_path, {INDEX: topic})[INDEX]
    assert found.missing == missing
    assert (found.state is NeedState.MISSING) == bool(missing)
    assert any("keep the index for longer" in remark for remark in found.remarks) == bool(missing)
