"""Least rights, shown: each role does its work with exactly what `validate --kafka --principal` has printed, and no more.

The broker has Kafka's StandardAuthorizer, and every role a SCRAM account of its own over TLS.
"""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from aiokafka.errors import TopicAuthorizationFailedError
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.structs import TopicPartition as AioTopicPartition
from click.testing import CliRunner
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, AdminClient, ResourcePatternType
from confluent_kafka.admin._resource import ResourceType

import overlay
from overlay.cli.init import init
from overlay.cli.validate import ROLES, validate
from overlay.client.control.control import Control
from overlay.client.control.refusals import Refused
from overlay.config import load
from overlay.errors import CredentialsRefused
from overlay.inspect.needs import ResourceKind
from overlay.inspect.principals import Role, find_role_needs
from overlay.kafka.connection import open_client
from overlay.local import Broker, start
from overlay.view.stored import read_memory
from tests.cli.test_validate_kafka import ACLS, spell
from tests.config.folders import write_folder
from tests.support.kafka import PATIENT, make_topic, produce_values
from tests.support.security import Security, add_scram_user, make_security
from tests.support.service import find_free_port
from tests.support.waiting import wait_until
from tests.worker.scenes import Served

pytestmark = pytest.mark.kafka
PASSWORD = "least-rights"
DEADLINE_S = 60.0
OPTIONS = {
    "--topic": ResourceType.TOPIC,
    "--group": ResourceType.GROUP,
    "--transactional-id": ResourceType.TRANSACTIONAL_ID,
}
TOPICS = (
    "orders",
    "out-plain",
    "out-acked",
    "sec.ORDERS.acks",
    "sec.ORDERS.index",
    "sec.control",
    "sec.requests",
    "sec.state",
    "sec.events",
)
"""The topics that every role is tried on."""


@dataclass
class Site:
    """A broker with ACLs, and a config folder for each role."""

    broker: Broker
    security: Security
    folder: Path
    granted: set[str] = field(default_factory=set)

    def kafka(self, role: str) -> dict[str, str]:
        client = self.security.client("SASL_SSL", self.broker, mechanism="SCRAM-SHA-256", user=role, password=PASSWORD)
        return {name: str(value) for name, value in client.items()}

    def config(self, role: str) -> Path:
        """A folder with the account of a role."""
        head = f"kafka: {json.dumps(self.kafka(role))}\ntopics: {{prefix: sec, requests: true}}\nshards: 2\n"
        consumer = "stream: ORDERS\ndurable_name: {0}\n"
        return write_folder(
            self.folder / role,
            {
                "overlay.yaml": f"{head}http: {{listen: '127.0.0.1:{find_free_port()}'}}\n",
                "streams/flights.yaml": "name: ORDERS\ntopics: [orders]\n",
                "consumers/plain.yaml": consumer.format("plain") + "deliver_subject: out-plain\nack_policy: none\n",
                "consumers/acked.yaml": consumer.format("acked") + "deliver_subject: out-acked\n",
                "consumers/pulled.yaml": consumer.format("pulled"),
            },
        )

    def grant(self, role: str) -> None:
        """Run the commands that `overlay validate` prints for the account of a role."""
        if role not in self.granted:
            add_scram_user(self.broker.bootstrap, role, PASSWORD)
            wait_until(lambda: self._is_known(role), DEADLINE_S, f"{role} is known")
            commands = [line for line in ask(self.config(role), role)[1] if line.startswith("kafka-acls.sh ")]
            bindings = [binding for line in commands for binding in read_command(line, role)]
            administrator = AdminClient({"bootstrap.servers": self.broker.bootstrap})
            for future in administrator.create_acls(bindings).values():
                future.result(20)
            self.granted.add(role)

    def _is_known(self, role: str) -> bool:
        try:
            return bool(Producer({**self.kafka(role), "log_level": 0}).list_topics(timeout=2))
        except KafkaException:
            return False


def ask(folder: Path, role: str, *more: str) -> tuple[int, list[str]]:
    """The exit code and the lines of `overlay validate --kafka --principal`."""
    result = CliRunner().invoke(validate, [str(folder), "--kafka", "--principal", role, *more])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output.splitlines()


def read_command(line: str, role: str) -> Iterator[AclBinding]:
    """What a command of kafka-acls.sh would create."""
    words = shlex.split(line)
    values = dict(pairwise(words))
    assert values["--allow-principal"] == f"User:{role}"
    (option,) = [word for word in words if word in OPTIONS]
    pattern = ResourcePatternType[values.get("--resource-pattern-type", "literal").upper()]
    for at, word in enumerate(words):
        if word == "--operation":
            operation = AclOperation[spell(words[at + 1])]
            yield AclBinding(
                OPTIONS[option], values[option], pattern, f"User:{role}", "*", operation, AclPermissionType.ALLOW
            )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    security = make_security(tmp_path_factory.mktemp("security"))
    with start(tmp_path_factory.mktemp("broker"), properties={**security.properties, **PATIENT, **ACLS}) as broker:
        make_topic(broker.bootstrap, "orders")
        produce_values(broker.bootstrap, "orders", [b"1", b"2", b"3"])
        yield Site(broker, security, tmp_path_factory.mktemp("config"))


@pytest.fixture(scope="module")
def served(site: Site) -> Iterator[Served]:
    """The service, with exactly what `--principal service` has printed."""
    site.grant("service")
    service = Served(site.config("service"))
    try:
        wait_until(lambda: service.report()["ready"], 3 * DEADLINE_S, "the service is ready")
        yield service
    finally:
        service.stop()


def may_write(kafka: Mapping[str, str], topic: str) -> bool:
    """Whether a user may write to a topic: a record is written if it may."""
    errors: list[KafkaError | None] = []
    producer = Producer({**kafka, "log_level": 0, "message.timeout.ms": 20_000})
    producer.produce(topic, b"", b"not for you", on_delivery=lambda error, _: errors.append(error))
    producer.flush(30)
    (error,) = errors
    return error is None


def may_read(kafka: Mapping[str, str], topic: str) -> bool:
    """Whether a user may fetch from a topic, as the broker answers a single request for its start.

    A client with a group of its own would look for the group's coordinator, which no role here may do, and wait for that.
    """
    fetch = FetchRequest(0, 0, 1_000, 1, [(topic, [(0, 0, 1_000)])])

    async def ask_broker() -> bool:
        client = await open_client(dict(kafka))
        try:
            await client.set_topics([topic])
            if topic in client.cluster.unauthorized_topics:
                return False
            leader = client.cluster.leader_for_partition(AioTopicPartition(topic, 0))
            assert leader is not None, f"{topic} is not there"
            code = (await client.send(leader, fetch)).topics[0][1][0][1]
        finally:
            await client.close()
        assert code in (0, TopicAuthorizationFailedError.errno), f"{topic}: {code}"
        return bool(code == 0)

    return asyncio.run(ask_broker())


def test_the_roles_of_the_command_are_those_of_the_code() -> None:
    assert tuple(role.value for role in Role) == ROLES


def test_a_role_without_a_question_to_kafka_is_an_error(tmp_path: Path) -> None:
    result = CliRunner().invoke(validate, [str(tmp_path), "--principal", "service"])
    assert result.exit_code == 2
    assert "add --kafka" in result.output


def test_the_service_delivers_with_what_was_printed(site: Site, served: Served) -> None:
    wait_until(lambda: served.consumer("plain")["delivered"] == 3, DEADLINE_S, "the records are delivered")
    assert served.report()["reasons"] == []
    exit_code, lines = ask(site.config("service"), "service")
    assert exit_code == 0, lines
    assert "# missing; an administrator of Kafka grants it with" not in lines


def test_commands_name_what_is_missing(site: Site, served: Served) -> None:
    add_scram_user(site.broker.bootstrap, "newcomer", PASSWORD)
    folder = site.config("newcomer")
    wait_until(lambda: site._is_known("newcomer"), DEADLINE_S, "the account is known")
    exit_code, lines = ask(folder, "acker")
    assert exit_code == 1
    server = site.kafka("newcomer")["bootstrap.servers"]
    assert lines[-1] == (
        f"kafka-acls.sh --bootstrap-server {server} --add --allow-principal User:newcomer"
        " --operation Describe --operation Write --topic sec.ORDERS.acks"
    )
    found = json.loads(ask(folder, "acker", "--json")[1][0])["kafka"]
    assert (found["grant_missing"], found["grant_unknown"]) == ([lines[-1]], [])


def read_outputs(site: Site, served: Served) -> None:
    consumer = Consumer({**site.kafka("reader"), "group.id": "plain", "auto.offset.reset": "earliest"})
    consumer.subscribe(["out-plain"])
    try:
        found: list[bytes | None] = []

        def take() -> bool:
            if (message := consumer.poll(0.2)) is not None and message.error() is None:
                found.append(message.value())
            return found[:3] == [b"1", b"2", b"3"]

        wait_until(take, DEADLINE_S, "the output is read by a group")
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()


def send_acks(site: Site, served: Served) -> None:
    wait_until(lambda: served.consumer("acked")["acks"]["num_ack_pending"] == 3, DEADLINE_S, "3 are delivered")
    # the administrator reads the tokens: who acks need not be who reads
    consumer = Consumer({"bootstrap.servers": site.broker.bootstrap, "group.id": "tokens"})
    consumer.assign([TopicPartition("out-acked", 0, OFFSET_BEGINNING)])
    producer = Producer(site.kafka("acker"))
    for _ in range(3):
        message = wait_until(lambda: consumer.poll(0.5), DEADLINE_S, "a message")
        (token,) = [value for name, value in message.headers() or () if name == "Nats-Reply-To"]
        producer.produce("sec.ORDERS.acks", b"+ACK", headers=[("Nats-Reply-To", token)])
    consumer.close()
    assert producer.flush(30) == 0
    wait_until(lambda: served.consumer("acked")["acks"]["num_ack_pending"] == 0, DEADLINE_S, "the acks count")


def pull(site: Site, served: Served) -> None:
    control = Control(site.kafka("puller"), "sec", timeout=DEADLINE_S)
    try:
        assert [message.value for message in control.next("ORDERS", "pulled", 3, expires=DEADLINE_S)] == [
            b"1",
            b"2",
            b"3",
        ]
        assert control.info("ORDERS", "pulled").num_ack_pending == 3
        with pytest.raises(Refused, match=r"consumer\.delete is not taken from sec\.requests"):
            control.delete("ORDERS", "pulled")
    finally:
        control.close()


def administer(site: Site, served: Served) -> None:
    control = Control(site.kafka("admin"), "sec", timeout=DEADLINE_S)
    try:
        control.create("ORDERS", durable_name="made", ack_policy="explicit")
        assert control.info("ORDERS", "made").name == "made"
        control.delete("ORDERS", "made")
    finally:
        control.close()


def look(site: Site, served: Served) -> None:
    memory = asyncio.run(read_memory(load(site.config("viewer"))))
    assert {name for state in memory.states for _, name in state.consumers} == {"plain", "acked", "pulled"}
    assert memory.loaded is not None


def scan(site: Site, served: Served) -> None:
    with overlay.open(site.config("scanner")) as client:
        values = [value for batch in client.read("ORDERS", columns=["value"]) for value in batch["value"].to_pylist()]
    assert sorted(values) == [b"1", b"2", b"3"]


def draft(site: Site, served: Served) -> None:
    """Have `overlay init` make a folder of the source topic. Its password comes from the environment."""
    kafka = {**site.kafka("init"), "sasl.password": "env:INIT_PASSWORD"}
    server, folder = kafka.pop("bootstrap.servers"), site.folder / "drafted"
    words = ["--bootstrap", server, "--topic", "orders", "--dir", str(folder)]
    words += [word for name, value in kafka.items() for word in ("-X", f"{name}={value}")]
    result = CliRunner(env={"INIT_PASSWORD": PASSWORD}).invoke(init, words)
    assert result.exit_code == 0, result.output
    (stream,) = load(folder, environment={"INIT_PASSWORD": PASSWORD}).streams.values()
    assert stream.topic_names == ("orders",)


WORK: dict[str, Callable[[Site, Served], None]] = {
    "reader": read_outputs,
    "acker": send_acks,
    "puller": pull,
    "admin": administer,
    "viewer": look,
    "scanner": scan,
    "init": draft,
}
MAY: dict[str, tuple[set[str], set[str]]] = {
    "reader": ({"out-plain", "out-acked"}, set()),
    "acker": (set(), {"sec.ORDERS.acks"}),
    "puller": (set(), {"sec.requests"}),
    "admin": (set(), {"sec.control"}),
    "viewer": ({"sec.state", "sec.control", "sec.ORDERS.index"}, set()),
    "scanner": ({"orders", "sec.ORDERS.index"}, set()),
    "init": ({"orders"}, set()),
}
"""Which of TOPICS a role may read, and which it may write."""


@pytest.mark.parametrize("role", WORK)
def test_a_role_does_its_work_with_what_was_printed_and_may_do_no_more(site: Site, served: Served, role: str) -> None:
    site.grant(role)
    exit_code, lines = ask(site.config(role), role)
    assert exit_code == 0, lines
    WORK[role](site, served)
    kafka, (readable, writable) = site.kafka(role), MAY[role]
    assert {topic for topic in TOPICS if may_read(kafka, topic)} == readable
    # what would be written is no record of any of these topics, and is passed over
    refused = [topic for topic in TOPICS if topic not in writable]
    assert [topic for topic in refused if may_write(kafka, topic)] == []


def test_the_error_names_the_right_that_is_missing(site: Site, served: Served) -> None:
    site.grant("reader")
    control = Control(site.kafka("reader"), "sec", timeout=DEADLINE_S)
    try:
        with pytest.raises(CredentialsRefused, match=r"sec\.(replies|control).*(Read|Write)"):
            control.info("ORDERS", "plain")
    finally:
        control.close()
    with (
        overlay.open(site.config("reader")) as client,
        pytest.raises(CredentialsRefused, match=r"orders.*(Read|Describe)"),
    ):
        list(client.read("ORDERS"))


def test_a_job_needs_the_state_and_its_own_topics(tmp_path: Path) -> None:
    """No Spark here: what is listed, for a folder with a job."""
    consumer = "stream: ORDERS\ndurable_name: c\ndeliver_subject: out\nack_policy: none\n"
    folder = write_folder(
        tmp_path,
        {
            "overlay.yaml": "kafka: {bootstrap.servers: 'h:1'}\n",
            "streams/flights.yaml": "name: ORDERS\ntopics: [orders]\n",
            "consumers/c.yaml": consumer + "engine: spark\n",
            "consumers/other.yaml": consumer.replace("durable_name: c", "durable_name: other").replace("out", "own"),
        },
    )

    def find(role: Role) -> dict[str, Any]:
        needs = find_role_needs(load(folder), role)
        return {need.name: need.operations for need in needs if need.kind is not ResourceKind.TRANSACTION}

    needs = find(Role.JOB)
    assert needs["out"] == ("Describe", "DescribeConfigs", "Write", "Create")
    assert "own" not in needs
    assert needs["overlay.state"] == ("Describe", "Read", "Write")
    assert needs["overlay.spark.ORDERS"] == ("Describe", "Read", "Write", "Alter", "Delete", "Create")
    assert needs["overlay.spark.ORDERS.c"] == ("Describe", "Read")
    service = find(Role.SERVICE)
    assert service["overlay.spark.ORDERS"] == ("Describe", "Read")
    assert service["overlay.spark.ORDERS.c"] == ("Describe",)
    ids = {need.name for need in find_role_needs(load(folder), Role.SERVICE) if need.kind is ResourceKind.TRANSACTION}
    assert ids == {"overlay.shard.0", "overlay.control.0", "overlay.spark.ORDERS"}
