"""Connections to brokers: those that are lost without a word, addresses that are none, and certificates read in time."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from aiokafka import client

from overlay.errors import SourceUnavailable
from overlay.kafka.admin import Admin
from overlay.kafka.connection import for_aiokafka
from overlay.kafka.properties import Properties
from overlay.kafka.protocol import TopicsRequest
from tests.kafka.test_connection import await_failure, make_server_context
from tests.support.security import make_security
from tests.support.stub import run_stub


async def test_connections_beside_a_lost_one_are_given_up_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that lost its power answers on none of them: one question waits in vain, not one for each."""
    async with run_stub() as stub, Admin({"bootstrap.servers": stub.address}) as admin:
        monkeypatch.setattr("overlay.kafka.brokers.HURRY_S", 0.2)
        await asyncio.gather(*(admin.find_cluster() for _ in range(5)))
        assert stub.opened == 5
        stub.is_silent = True
        with monkeypatch.context() as patch, pytest.raises(SourceUnavailable):
            patch.setattr("overlay.kafka.admin.DEADLINE_S", 0.5)
            await admin.find_cluster()
        stub.is_silent = False
        assert await admin.find_cluster() == "a-cluster"
        assert stub.opened == 6
        assert [len(idle) for idle in admin._brokers._idle.values()] == [1]


@pytest.mark.parametrize("host", ["a..b", "a" * 64 + ".example"])
async def test_a_broker_under_a_name_that_is_none(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with run_stub() as stub, Admin({"bootstrap.servers": f"{host}:9092,{stub.address}"}) as admin:
        for _ in range(5):
            assert await admin.find_cluster() == "a-cluster"
    async with Admin({"bootstrap.servers": f"{host}:9092"}) as admin:
        await await_failure(admin, "label")
        monkeypatch.setattr("overlay.kafka.admin.DEADLINE_S", 0.5)
        with pytest.raises(SourceUnavailable, match=f"{host}:9092: .*label"):
            await admin.find_cluster()


async def test_certificates_are_read_beside_the_event_loop_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    security = make_security(tmp_path)
    readers: list[threading.Thread] = []

    def count(kafka: Any) -> dict[str, Any]:
        readers.append(threading.current_thread())
        return for_aiokafka(kafka)

    monkeypatch.setattr("overlay.kafka.brokers.for_aiokafka", count)
    async with run_stub(context=make_server_context(security, tmp_path)) as stub:
        kafka = {
            "bootstrap.servers": stub.address,
            "security.protocol": "SSL",
            "ssl.ca.location": str(security.ca),
        }
        async with Admin(kafka) as admin:
            await asyncio.gather(*(admin.find_cluster() for _ in range(5)))
            stub.drop()
            await asyncio.gather(*(admin.find_cluster() for _ in range(5)))
            assert stub.opened >= 10
    assert len(readers) == 1
    assert threading.main_thread() not in readers


async def test_new_connections_have_the_certificates_that_are_there_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a failure before. In the middle of a replacement the former ones go on."""
    monkeypatch.setattr("overlay.kafka.brokers.REREAD_S", 1e9)
    old, folder = make_security(tmp_path), tmp_path / "new"
    folder.mkdir()
    new = make_security(folder)
    context = make_server_context(old, tmp_path)
    make_server_context(new, folder)
    async with run_stub(context=context) as stub:
        kafka = {"bootstrap.servers": stub.address, "security.protocol": "SSL", "ssl.ca.location": str(old.ca)}
        async with Admin(kafka) as admin:
            assert await admin.find_cluster() == "a-cluster"
            trusted = old.ca.read_bytes()
            for content, served in ((b"-----BEGIN", tmp_path), (trusted, tmp_path), (new.ca.read_bytes(), folder)):
                old.ca.write_bytes(content)
                context.load_cert_chain(served / "server.pem")
                stub.drop()
                assert await admin.find_cluster() == "a-cluster"


async def test_files_that_become_readable_later_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of rights leaves a file as it was, by its time and size."""
    password, readings = tmp_path / "password", list[str]()
    password.write_text("first")

    def read(kafka: Properties) -> dict[str, Any]:
        readings.append(password.read_text())
        if len(readings) == 2:
            raise SourceUnavailable("sasl.password: may not be read")
        return for_aiokafka(kafka)

    monkeypatch.setattr("overlay.kafka.brokers.for_aiokafka", read)
    async with run_stub() as stub:
        # the stub knows no SASL, so the setting is there to be read alone
        kafka = {"bootstrap.servers": stub.address, "sasl.password": f"file:{password}"}
        async with Admin(kafka) as admin:
            for content in ("first", "second", "second", "second"):
                if password.read_text() != content:
                    password.write_text(content)
                await admin.find_cluster()
                stub.drop()
    assert readings == ["first", "second", "second"]


async def test_the_former_secret_serves_after_a_failure_while_its_file_is_torn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("overlay.kafka.brokers.REREAD_S", 0.0)
    create, failures = client.create_conn, [OSError("away")]

    async def fail_once(*address: Any, **settings: Any) -> Any:
        if torn and failures:
            raise failures.pop()
        return await create(*address, **settings)

    monkeypatch.setattr("aiokafka.client.create_conn", fail_once)
    password, torn = tmp_path / "password", False
    password.write_text("first")
    async with run_stub() as stub:
        # the stub knows no SASL, so the setting is there to be read alone
        kafka = {"bootstrap.servers": stub.address, "sasl.password": f"file:{password}"}
        async with Admin(kafka) as admin:
            await admin.find_cluster()
            stub.drop()
            torn = True
            password.write_text("")
            assert await admin.find_cluster() == "a-cluster"
    assert not failures


async def test_certificates_are_read_again_after_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that were replaced are found without a restart."""
    monkeypatch.setattr("overlay.kafka.brokers.REREAD_S", 0.0)
    old, security = make_security(tmp_path), tmp_path / "new"
    security.mkdir()
    new = make_security(security)
    async with run_stub(context=make_server_context(new, security)) as stub:
        kafka = {"bootstrap.servers": stub.address, "security.protocol": "SSL", "ssl.ca.location": str(old.ca)}
        async with Admin(kafka) as admin:
            await await_failure(admin, "certificate verify failed")
            with monkeypatch.context() as patch:
                patch.setattr("overlay.kafka.admin.DEADLINE_S", 0.5)
                with pytest.raises(SourceUnavailable, match="certificate verify failed"):
                    await admin.find_cluster()
            old.ca.write_bytes(new.ca.read_bytes())
            assert await admin.find_cluster() == "a-cluster"
            assert stub.count(TopicsRequest) == 1
