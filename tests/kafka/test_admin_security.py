"""Over TLS and SASL: what a user may not look at, and what is told when Kafka does not let it in at all."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, AdminClient, ResourcePatternType
from confluent_kafka.admin._resource import ResourceType

from overlay.errors import CredentialsRefused, SourceUnavailable
from overlay.kafka.admin import Admin, OffsetSpec, new_topic
from overlay.kafka.connection import reach
from overlay.local import Broker, start
from tests.kafka.test_admin import commit
from tests.kafka.test_admin_contract import join
from tests.support.kafka import PATIENT, make_topic
from tests.support.security import USER, Security, add_scram_user, make_security

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

ACLS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    # the broker itself and the tests' administrator come in through the plain listener
    "super.users": "User:ANONYMOUS",
}


@dataclass(frozen=True, slots=True)
class Guarded:
    broker: Broker
    security: Security

    def settings(self, protocol: str = "SASL_SSL", **more: str) -> dict[str, str]:
        client = self.security.client(protocol, self.broker, mechanism="SCRAM-SHA-256")
        return {name: str(value) for name, value in client.items()} | {
            name.replace("_", "."): value for name, value in more.items()
        }


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    security = make_security(folder)
    with start(folder / "home", properties=security.properties | PATIENT | ACLS) as broker:
        add_scram_user(broker.bootstrap)
        for topic in ("seen", "hidden", "bare", "read"):
            make_topic(broker.bootstrap, topic)
        commit(broker.bootstrap, "seen-group", {("seen", 0): 0})
        commit(broker.bootstrap, "hidden-group", {("seen", 0): 0})
        administrator = AdminClient({"bootstrap.servers": broker.bootstrap})
        grants = [
            (ResourceType.TOPIC, "seen", "DESCRIBE"),
            (ResourceType.TOPIC, "seen", "DESCRIBE_CONFIGS"),
            (ResourceType.TOPIC, "bare", "DESCRIBE"),
            (ResourceType.TOPIC, "read", "READ"),
            (ResourceType.GROUP, "seen-group", "DESCRIBE"),
            (ResourceType.GROUP, "mixed-group", "DESCRIBE"),
        ]
        for future in administrator.create_acls([_allow(*grant) for grant in grants]).values():
            future.result(20)
        yield Guarded(broker, security)


def _allow(kind: ResourceType, name: str, operation: str) -> AclBinding:
    literal, allow = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
    return AclBinding(kind, name, literal, f"User:{USER}", "*", AclOperation[operation], allow)


async def test_what_may_not_be_looked_at(guarded: Guarded) -> None:
    """It hides nothing else if the caller takes refusals, and is raised otherwise."""
    async with Admin(guarded.settings()) as admin:
        denied: dict[str, str] = {}
        found = await admin.find_topics(["seen", "hidden", "bare"], denied=denied)
        assert (list(found), list(denied)) == (["bare", "seen"], ["hidden"])
        assert denied["hidden"].startswith("topic hidden: Kafka does not allow Describe. Grant it")
        assert (bool(found["seen"].config), found["bare"].config) == (True, {})

        # who may read a topic may describe it as well
        assert await admin.find_readable(["seen", "hidden", "bare", "read", "missing"]) == {"read": 1}

        denied.clear()
        assert await admin.find_committed(["seen-group", "hidden-group"], denied=denied) == {
            "seen-group": {"seen": {0: 0}}
        }
        assert denied["hidden-group"].startswith("group hidden-group: Kafka does not allow Describe")
        denied.clear()
        assert await admin.count_members_of(["seen-group", "hidden-group"], denied=denied) == {"seen-group": 0}
        assert list(denied) == ["hidden-group"]

        for question in (
            admin.find_topics(["seen", "hidden"]),
            admin.find_bounds([("seen", 0), ("hidden", 0)]),
            admin.find_offsets([("hidden", 0)], OffsetSpec.latest()),
            admin.find_committed(["hidden-group"]),
            admin.count_members("hidden-group"),
            admin.delete_topic("seen"),
            admin.delete_records("seen", 0, 0),
        ):
            with pytest.raises(CredentialsRefused, match="Kafka does not allow"):
                await question
        _, refused = await admin.create_topics([new_topic("unwanted", 1, 1, {})])
        assert refused["unwanted"].startswith("topic unwanted cannot be created: ")


async def test_a_new_protocol_group_on_a_topic_that_may_not_be_seen(guarded: Guarded) -> None:
    """The broker then hides the members; taken for none, their consumer could be removed."""
    async with Admin(guarded.settings()) as admin:
        with join(guarded.broker.bootstrap, "mixed-group", "hidden", "consumer", 1):
            denied: dict[str, str] = {}
            assert await admin.count_members_of(["mixed-group", "seen-group"], denied=denied) == {"seen-group": 0}
            assert denied["mixed-group"].startswith("group mixed-group: Kafka does not allow Describe")


@pytest.mark.parametrize("protocol", ["SSL", "SASL_PLAINTEXT", "SASL_SSL"])
async def test_every_way_in(guarded: Guarded, protocol: str) -> None:
    settings = guarded.settings(protocol)
    await reach(settings, 20)
    async with Admin(settings) as admin:
        assert await admin.find_cluster()


@pytest.mark.parametrize(
    ("protocol", "wrong"),
    [
        ("SASL_SSL", {"sasl_password": "wrong"}),
        ("SASL_PLAINTEXT", {"sasl_password": "wrong"}),
        ("SASL_PLAINTEXT", {"sasl_mechanism": "SCRAM-SHA-512"}),
    ],
)
async def test_a_refusal_is_told_at_once(guarded: Guarded, protocol: str, wrong: dict[str, str]) -> None:
    async with asyncio.timeout(60):
        with pytest.raises(CredentialsRefused, match=r"Kafka refused the connection: .*Check security\.protocol"):
            await reach(guarded.settings(protocol, **wrong), 600)


async def test_a_certificate_of_another_authority(guarded: Guarded, tmp_path: Path) -> None:
    other = make_security(tmp_path)
    with pytest.raises(CredentialsRefused, match="certificate verify failed"):
        await reach(guarded.settings("SSL", ssl_ca_location=str(other.ca)), 60)


async def test_one_address_that_refuses_and_another_that_does_not(guarded: Guarded) -> None:
    """Whichever is asked first: the listener without SASL refuses the mechanism."""
    settings = guarded.settings("SASL_PLAINTEXT")
    both = f"{guarded.broker.bootstrap},{settings['bootstrap.servers']}"
    await reach({**settings, "bootstrap.servers": both}, 20)


async def test_a_wrong_password_of_an_admin_passes(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be about to be changed: the service looks again with `reach`, and says so then."""
    monkeypatch.setattr("overlay.kafka.admin.DEADLINE_S", 1.0)
    async with Admin(guarded.settings(sasl_password="wrong")) as admin:
        with pytest.raises(SourceUnavailable, match="Authentication"):
            await admin.find_cluster()
