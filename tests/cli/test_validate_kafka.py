"""`overlay validate --kafka` against a broker without ACLs, and against one where a user may do little."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Consumer
from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, AdminClient, ResourcePatternType
from confluent_kafka.admin._resource import ResourceType
from pyspark.sql import SparkSession
from structlog.testing import capture_logs

from overlay.cli.doctor import doctor
from overlay.cli.init import init
from overlay.cli.validate import validate
from overlay.client.read.bounds import ReadBounds
from overlay.config import load
from overlay.errors import CredentialsRefused, SourceUnavailable
from overlay.inspect.needs import Need, ResourceKind, find_needs
from overlay.local import Broker, start
from overlay.state.partitions import Sources
from spark.job import keeping
from spark.job.keeping import StreamKeeper
from tests.config.folders import write_folder
from tests.support.kafka import PATIENT, NewTopicFixture, make_topic, produce_values
from tests.support.security import PASSWORD, USER, make_security
from tests.support.service import find_free_port
from tests.support.waiting import wait_until
from tests.worker.scenes import Served, produce, read_committed

ACLS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    # the broker itself and the tests' administrator come in through the plain listener
    "super.users": "User:ANONYMOUS",
}
# what the service's user has in the test that lacks only Read on the source
OWN = ("ov.state", "ov.control", "ov.replies", "ov.events", "ov.fleet")
GRANTS = (
    (ResourceType.TOPIC, "orders", "DESCRIBE"),
    (ResourceType.TOPIC, "orders", "DESCRIBE_CONFIGS"),
    (ResourceType.TOPIC, "late", "DESCRIBE"),
    (ResourceType.TOPIC, "late", "DESCRIBE_CONFIGS"),
    (ResourceType.TOPIC, "late", "WRITE"),
    (ResourceType.TOPIC, "ov.ORDERS.index", "CREATE"),
    (ResourceType.TOPIC, "ov.ORDERS.index", "DESCRIBE"),
    *((ResourceType.TOPIC, topic, operation) for topic in OWN for operation in ("CREATE", "DESCRIBE")),
    (ResourceType.GROUP, "ov.workers", "READ"),
)


def list_topics(bootstrap: str) -> list[str]:
    return sorted(AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=20).topics)


def write_config(folder: Path, kafka: Mapping[str, str], topic: str, output: str) -> Path:
    service = f"kafka: {json.dumps(dict(kafka))}\ntopics: {{prefix: ov}}\n"
    stream = f"name: ORDERS\ntopics: [{topic}]\n"
    consumer = f"stream: ORDERS\ndurable_name: late\ndeliver_subject: {output}\nack_policy: none\n"
    files = {"overlay.yaml": service, "streams/flights.yaml": stream, "consumers/late.yaml": consumer}
    return write_folder(folder, files)


def run(folder: Path, *options: str) -> Result:
    return CliRunner().invoke(validate, [str(folder), "--kafka", *options])


def read_needs(result: Result) -> dict[str, Any]:
    answer = json.loads(result.output)["kafka"]
    assert "needs" in answer, answer
    return {need["name"]: need for need in answer["needs"]}


def test_a_config_that_can_run(bootstrap: str, new_topic: NewTopicFixture, tmp_path: Path) -> None:
    topic = new_topic()
    folder = write_config(tmp_path, {"bootstrap.servers": bootstrap}, topic, f"{topic}-out")
    before = list_topics(bootstrap)
    result = run(folder, "--json")
    assert result.exit_code == 0
    answers = {name: need["answer"] for name, need in read_needs(result).items()}
    assert answers == {
        topic: "ok",
        f"{topic}-out": "will be created",
        "ov.ORDERS.index": "will be created",
        **dict.fromkeys(OWN, "will be created"),
        "ov.shard.0": "ok",
        "ov.control.0": "ok",
        "ov.workers": "ok",
        "kafka-cluster": "ok",
    }
    assert list_topics(bootstrap) == before


def test_people_get_a_table(bootstrap: str, new_topic: NewTopicFixture, tmp_path: Path) -> None:
    topic, output = new_topic(cleanup_policy="compact"), new_topic(partitions=3, min_insync_replicas=2)
    result = run(write_config(tmp_path, {"bootstrap.servers": bootstrap}, topic, output))
    assert result.exit_code == 0, result.output
    assert f"source topic {topic} (stream ORDERS): it is compacted" in result.output
    assert "it has 3 partitions, output.partitions says 1; it is used as it is" in result.output
    assert "its min.insync.replicas is 2, and it has 1 replica: Kafka 4.3 makes do" in result.output
    assert result.output.endswith("12 needs, 0 missing; nothing was created\n")


def test_a_property_that_no_sampled_record_has_is_a_note(
    bootstrap: str, new_topic: NewTopicFixture, tmp_path: Path
) -> None:
    topic = new_topic()
    produce_values(bootstrap, topic, [b'{"amount": 1.5}'] * 3)
    folder = write_config(tmp_path, {"bootstrap.servers": bootstrap}, topic, new_topic())
    with (folder / "streams/flights.yaml").open("a") as file:
        file.write('properties: {amount: {type: double, from: "{value:ammount}"}}\n')
    note = (
        "stream ORDERS: none of 3 sampled records has the JSON field 'ammount', from which the property amount is read."
        " Did you mean amount?"
    )
    result = run(folder, "--json")
    assert (result.exit_code, json.loads(result.output)["notes"]) == (0, [note])


def test_what_is_missing_is_an_error(bootstrap: str, new_topic: NewTopicFixture, tmp_path: Path) -> None:
    topic = new_topic()
    folder = write_config(tmp_path, {"bootstrap.servers": bootstrap}, topic + "x", f"{topic}-out")
    with (folder / "consumers/late.yaml").open("a") as file:
        file.write("output: {config: {retention.ms: soon}}\n")
    result = run(folder, "--json")
    needs = read_needs(result)
    assert result.exit_code == 1
    assert f"Did you mean {topic}?" in needs[topic + "x"]["remarks"][0]
    assert "Kafka would not create it: Invalid value soon" in needs[f"{topic}-out"]["remarks"][0]


def test_an_unreachable_kafka(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overlay.inspect.cluster.REACH_S", 0.5)
    folder = write_config(tmp_path, {"bootstrap.servers": "127.0.0.1:1"}, "t", "u")
    result = run(folder, "--json")
    assert result.exit_code == 1
    assert "127.0.0.1:1: Kafka cannot be reached" in json.loads(result.output)["kafka"]["error"]
    assert isinstance(run(folder).exception, SourceUnavailable)


@dataclass(frozen=True, slots=True)
class Guarded:
    """A broker with ACLs, and how its user with few rights reaches it."""

    broker: Broker
    kafka: Mapping[str, str]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    security = make_security(tmp_path_factory.mktemp("security"))
    with start(tmp_path_factory.mktemp("guarded"), properties={**security.properties, **PATIENT, **ACLS}) as broker:
        for topic in ("orders", "late", "hidden"):
            make_topic(broker.bootstrap, topic)
        produce_values(broker.bootstrap, "orders", [b'{"a": 1}'] * 3)
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        grants = [grant(kind, name, operation) for kind, name, operation in GRANTS]
        for future in admin.create_acls(grants).values():
            future.result(20)
        client = security.client("SASL_PLAINTEXT", broker)
        yield Guarded(broker, {name: str(value) for name, value in client.items()})


RESOURCES = {
    ResourceKind.SOURCE: ResourceType.TOPIC,
    ResourceKind.OUTPUT: ResourceType.TOPIC,
    ResourceKind.INDEX: ResourceType.TOPIC,
    ResourceKind.STATE: ResourceType.TOPIC,
    ResourceKind.CONTROL: ResourceType.TOPIC,
    ResourceKind.REPLIES: ResourceType.TOPIC,
    ResourceKind.EVENTS: ResourceType.TOPIC,
    ResourceKind.FLEET: ResourceType.TOPIC,
    ResourceKind.TRANSACTION: ResourceType.TRANSACTIONAL_ID,
    ResourceKind.GROUP: ResourceType.GROUP,
}


def grant(kind: ResourceType, name: str, operation: str) -> AclBinding:
    literal, allow = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
    return AclBinding(kind, name, literal, f"User:{USER}", "*", AclOperation[operation], allow)


@pytest.mark.kafka
def test_a_user_who_may_not_read_the_source(guarded: Guarded, tmp_path: Path) -> None:
    folder = write_config(tmp_path, guarded.kafka, "orders", "late")
    before = list_topics(guarded.broker.bootstrap)
    result = run(folder, "--json")
    needs = read_needs(result)
    assert result.exit_code == 1
    assert {name: (need["answer"], need["missing_operations"]) for name, need in needs.items()} == {
        "orders": ("missing", ["Read"]),
        "late": ("ok", []),
        "ov.ORDERS.index": ("will be created", []),
        **dict.fromkeys(OWN, ("will be created", [])),
        "ov.shard.0": ("cannot be asked", []),
        "ov.control.0": ("cannot be asked", []),
        "ov.workers": ("cannot be asked", []),
        "kafka-cluster": ("ok", []),
    }
    assert needs["orders"]["remarks"] == ["this user lacks Read on it. Grant it"]
    assert "it needs Describe, Read, Write and Delete" in needs["ov.state"]["remarks"][0]
    assert list_topics(guarded.broker.bootstrap) == before


@pytest.mark.kafka
def test_a_group_is_asked_for_where_groups_are_in_use(guarded: Guarded, tmp_path: Path) -> None:
    administrator = {"bootstrap.servers": guarded.broker.bootstrap}
    folder = write_config(tmp_path, guarded.kafka, "orders", "late")
    consumer = Consumer({**administrator, "group.id": "ov.workers", "enable.auto.commit": False})
    consumer.subscribe(["late"])
    try:
        wait_until(lambda: consumer.poll(0.1) or consumer.assignment(), 30, "the group has a member")
        assert read_needs(run(folder, "--json"))["ov.workers"]["answer"] == "ok"
    finally:
        consumer.close()


@pytest.mark.kafka
def test_a_topic_that_the_user_may_not_see_or_create(guarded: Guarded, tmp_path: Path) -> None:
    needs = read_needs(run(write_config(tmp_path, guarded.kafka, "hidden", "nowhere"), "--json"))
    assert needs["hidden"]["missing_operations"] == ["Describe", "DescribeConfigs", "Read"]
    assert needs["nowhere"]["answer"] == "missing"
    assert "or this user may not describe it" in needs["nowhere"]["remarks"][0]


@pytest.mark.kafka
def test_what_doctor_may_not_ask_is_a_note(guarded: Guarded, tmp_path: Path) -> None:
    folder = write_config(tmp_path, guarded.kafka, "orders", "late")
    result = CliRunner().invoke(doctor, ["--config", str(folder), "--json"])
    assert result.exit_code == 1
    found = {(each["severity"], each["text"]) for each in json.loads(result.output)["found"]}
    assert ("error", "this user lacks Read on it") in found
    assert ("note", "this user may not read the settings of the brokers, so they are not looked at") in found


@pytest.mark.kafka
def test_a_wrong_password(guarded: Guarded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overlay.inspect.cluster.REACH_S", 2.0)
    kafka = {**guarded.kafka, "sasl.password": "wrong"}
    assert isinstance(run(write_config(tmp_path, kafka, "orders", "late")).exception, CredentialsRefused)


@pytest.mark.kafka
def test_init_with_a_password_writes_none(guarded: Guarded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PASSWORD_OF_TEST", PASSWORD)
    kafka = {**guarded.kafka, "sasl.password": "env:PASSWORD_OF_TEST"}
    settings = [word for name, value in kafka.items() for word in ("-X", f"{name}={value}")][2:]
    arguments = ["--bootstrap", guarded.kafka["bootstrap.servers"], "--dir", str(tmp_path), *settings, "--topic"]
    refused = CliRunner().invoke(init, [*arguments, "orders"])
    assert isinstance(refused.exception, CredentialsRefused)
    assert "orders: this user may not read it. Grant Read and Describe" in str(refused.exception)
    admin = AdminClient({"bootstrap.servers": guarded.broker.bootstrap})
    for future in admin.create_acls([grant(ResourceType.TOPIC, "late", "READ")]).values():
        future.result(20)
    result = CliRunner().invoke(init, [*arguments, "late"])
    assert result.exit_code == 0, result.output
    assert not any(PASSWORD in file.read_text() for file in tmp_path.rglob("*.yaml"))
    assert read_needs(run(tmp_path, "--json"))["late"]["answer"] == "ok"


@pytest.mark.kafka
def test_what_is_listed_is_enough_to_run(guarded: Guarded, tmp_path: Path) -> None:
    """With exactly the operations that validate lists the service delivers, to a topic that it creates; a stream whose topic
    may not be looked at is stopped, with what to grant, and holds up no other stream."""
    folder = write_config(tmp_path, guarded.kafka, "enough", "enough-out")
    service = f"kafka: {json.dumps(dict(guarded.kafka))}\ntopics: {{prefix: enough}}\n"
    write_folder(
        folder,
        {
            "overlay.yaml": service + f"http: {{listen: '127.0.0.1:{find_free_port()}'}}\n",
            "streams/flights.yaml": "name: ORDERS\ntopics: [enough]\n",
            "streams/hidden.yaml": "name: HIDDEN\ntopics: [hidden]\n",
            "consumers/hidden.yaml": (
                "stream: HIDDEN\ndurable_name: hidden\ndeliver_subject: enough-hidden\nack_policy: none\n"
            ),
        },
    )
    make_topic(guarded.broker.bootstrap, "enough")
    produce_values(guarded.broker.bootstrap, "enough", [b"1", b"2", b"3"])
    needs = [need for need in find_needs(load(folder)) if need.kind in RESOURCES and need.name != "hidden"]
    allow(guarded, needs)
    served = Served(folder)
    try:
        wait_until(lambda: served.consumer("late")["delivered"] == 3, 30, "the records are delivered")
        hidden = served.stream("HIDDEN")
        assert hidden["state"] == "stopped"
        assert hidden["reason"].startswith("topic hidden: Kafka does not allow Describe. Grant it")
        assert served.stream("ORDERS")["index"]["reason"] == ""
    finally:
        served.stop()
    assert [seen.value for seen in read_committed(guarded.broker.bootstrap, "enough-out")] == [b"1", b"2", b"3"]
    missing = {name for name, need in read_needs(run(folder, "--json")).items() if need["answer"] == "missing"}
    assert missing == {"hidden"}


def test_what_is_listed_for_a_job_is_enough_to_keep_ledger_and_index(
    guarded: Guarded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With exactly the operations that validate lists for the stream's Spark job, and those on the source."""
    folder = write_config(tmp_path, guarded.kafka, "jobs", "jobs-out")
    with (folder / "consumers/late.yaml").open("a") as file:
        file.write("engine: spark\n")
    service = folder / "overlay.yaml"
    service.write_text(service.read_text().replace("prefix: ov", "prefix: jobs"))
    make_topic(guarded.broker.bootstrap, "jobs", 2)
    for partition in range(2):
        produce(guarded.broker.bootstrap, "jobs", ["a"] * 3, partition=partition)
    loaded = load(folder)
    needs = [n for n in find_needs(loaded) if {"Spark job ORDERS", "stream ORDERS"} & set(n.users)]
    needs = [need for need in needs if need.kind in RESOURCES]
    allow(guarded, [need for need in needs if need.kind is not ResourceKind.TRANSACTION])
    monkeypatch.setattr(keeping, "run_tasks", lambda _, work, items: [work(item) for item in items])
    monkeypatch.setattr(keeping, "LOOK_S", 0.0)
    spark = cast(SparkSession, SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=1)))
    ends = {("jobs", partition): (0, 3) for partition in range(2)}
    stops = {source: end for source, (_, end) in ends.items()}
    with StreamKeeper(
        loaded.service, loaded.streams["ORDERS"], lambda: ReadBounds((), Sources((), {})), with_chunks=True
    ) as keeper:
        # a refusal holds up no batch
        with capture_logs() as logged:
            assert not keeper.extend(stops) and not keeper.extend(stops)
        (told,) = [each for each in logged if each.get("part") == "ledger"]
        assert told["log_level"] == "warning"
        assert re.search(r"transactional id jobs\.shard\.\d.*Grant Write", told["reason"])
        allow(guarded, needs)
        assert keeper.extend(stops)
        assert keeper.index(spark, ends) == 2


def allow(guarded: Guarded, needs: Sequence[Need]) -> None:
    """Allow the guarded user the operations of these needs."""
    grants = [grant(RESOURCES[need.kind], need.name, word) for need in needs for word in map(spell, need.operations)]
    admin = AdminClient({"bootstrap.servers": guarded.broker.bootstrap})  # its end would end the requests
    for future in admin.create_acls(grants).values():
        future.result(20)


def spell(operation: str) -> str:
    """`DescribeConfigs` as the client's enum has it."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", operation).upper()
