"""The rights that docs/fleet.md names are enough, over TLS and SASL, and each user can do no more."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, AdminClient, ResourcePatternType
from confluent_kafka.admin._resource import ResourceType

from overlay.clock import now_ms
from overlay.config import Loaded, load
from overlay.errors import OverlayError
from overlay.fleet.publisher import Publisher
from overlay.fleet.read import read_fleet
from overlay.fleet.status import encode
from overlay.fleet.timetable import Scope
from overlay.kafka.admin import Admin
from overlay.local import Broker, start
from overlay.metrics import Metrics
from overlay.waits import until
from tests.config.folders import write_folder
from tests.support.kafka import PATIENT
from tests.support.security import Security, add_scram_user, make_security
from tests.support.service import find_free_port

from .statuses import make_status
from .test_docs import read_rows
from .test_running import ask, start_fleet

pytestmark = pytest.mark.kafka

DEADLINE_S = 60
USERS = {"worker": "a worker", "looker": "`overlay workers`", "fleet": "`overlay fleet run`"}
"""Users, and how the row of each begins in the table of rights."""
PATTERN = re.compile(r"(topics? that begin with|topic|group) `<prefix>([^`]*)`")


def list_grants() -> Iterator[AclBinding]:
    """The rights of USERS as ACLs for the prefix ov. A row without a user belongs to the one above it."""
    user = ""
    for who, resource, operations in read_rows("Rights"):
        if who:
            user = next((name for name, begin in USERS.items() if who.startswith(begin)), "")
        if not user:
            continue
        found = PATTERN.fullmatch(resource)
        assert found is not None, resource
        kind = ResourceType.GROUP if found[1] == "group" else ResourceType.TOPIC
        pattern = ResourcePatternType.PREFIXED if "begin" in found[1] else ResourcePatternType.LITERAL
        for operation in operations.split(", "):
            allowed = AclOperation[operation.upper()]
            yield AclBinding(kind, f"ov{found[2]}", pattern, f"User:{user}", "*", allowed, AclPermissionType.ALLOW)


@dataclass(frozen=True, slots=True)
class Guarded:
    broker: Broker
    security: Security
    folder: Path

    def load(self, user: str) -> Loaded:
        """A config folder that reaches the broker as a user."""
        kafka = self.security.client("SASL_SSL", self.broker, mechanism="SCRAM-SHA-256", user=user, password=user)
        service = {
            "kafka": {name: str(value) for name, value in kafka.items()},
            "topics": {"prefix": "ov"},
            "fleet": {"listen": f"127.0.0.1:{find_free_port()}"},
        }
        return load(write_folder(self.folder / user, {"overlay.yaml": json.dumps(service)}))


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    security = make_security(tmp_path)
    acls = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with start(tmp_path / "broker", properties={**security.properties, **PATIENT, **acls}) as broker:
        for user in USERS:
            add_scram_user(broker.bootstrap, user, user)
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for future in admin.create_acls(list(list_grants())).values():
            future.result(20)
        yield Guarded(broker, security, tmp_path)


async def publish(kafka: Mapping[str, str], metrics: Metrics, stop: asyncio.Event) -> None:
    """Publish the statuses of a worker until `stop`."""
    numbers = iter(range(10**9))

    async def collect(scope: Scope, was_lost: bool) -> list[bytes]:
        return encode(make_status(prefix="ov", number=next(numbers), clock=now_ms()), [], [])

    async with Admin(kafka) as admin:
        await Publisher(kafka, admin, "ov", 1, "a", metrics, collect, lambda: None).run(stop)


def count(metrics: Metrics, result: str) -> float:
    return metrics.registry.get_sample_value("overlay_fleet_statuses_total", {"result": result}) or 0


async def test_the_rights_of_the_page_are_enough(guarded: Guarded) -> None:
    looker, worker, fleet_user = (guarded.load(user) for user in ("looker", "worker", "fleet"))
    with pytest.raises(OverlayError, match=r"ov\.fleet"):
        await read_fleet(looker)  # the topic is not there, and may not be created by who looks
    stop, metrics, refused = asyncio.Event(), Metrics(), Metrics()
    with ExitStack() as stack:
        async with asyncio.timeout(3 * DEADLINE_S), asyncio.TaskGroup() as group:
            group.create_task(publish(worker.service.kafka, metrics, stop))
            await until(lambda: count(metrics, "written"), pause_s=0.05)
            group.create_task(publish(looker.service.kafka, refused, stop))
            await until(lambda: count(refused, "failed"), pause_s=0.05)
            assert [row["worker"] for row in (await read_fleet(looker))["workers"]] == ["a"]
            with pytest.raises(OverlayError, match="not authorized to read"):
                await read_fleet(worker)
            fleet = start_fleet(guarded.folder / "fleet", stack)
            assert fleet_user.service.fleet.address[1] == int(fleet.url.rpartition(":")[2])
            while not (found := await asyncio.to_thread(ask, fleet)):  # noqa: ASYNC110 - no event tells of it
                await asyncio.sleep(0.1)
            stop.set()
    assert [(row["worker"], row["state"]) for row in found["workers"]] == [("a", "running")]
    assert count(refused, "written") == 0
    assert count(metrics, "failed") == 0
