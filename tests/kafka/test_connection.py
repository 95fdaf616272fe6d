"""Waiting for a Kafka that is away, and what its certificate has to be like."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.conn import AIOKafkaConnection
from aiokafka.errors import KafkaConnectionError
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, pkcs12

from overlay.control.journal import Journal
from overlay.credentials import stamp
from overlay.errors import CredentialsRefused, SourceUnavailable
from overlay.kafka.admin import Admin
from overlay.kafka.confluent import check_reachable
from overlay.kafka.connection import for_aiokafka, make_ssl_context, mend_client, open_client, reach
from overlay.kafka.properties import Properties
from tests.support.security import Security, make_security
from tests.support.stalls import Stalls
from tests.support.waiting import wait_until

AWAY_S = 3.0
NOTICED_S = 1.5
ATTEMPTS = 5
HANGS_S = 60


def try_librdkafka(kafka: Properties, over: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check by librdkafka until the test is over, which the clock then says."""
    clock = SimpleNamespace(monotonic=lambda: 2.0 * HANGS_S if over.is_set() else 0.0)
    monkeypatch.setattr("overlay.kafka.confluent.time", clock)
    with pytest.raises(SourceUnavailable, match="cannot be reached"):
        check_reachable(kafka, HANGS_S)


def try_aiokafka(kafka: Properties, over: threading.Event, _: pytest.MonkeyPatch) -> None:
    """Check by aiokafka until the test is over."""

    async def reach_until() -> None:
        reaching = asyncio.create_task(reach(kafka, 10 * HANGS_S))
        await asyncio.to_thread(over.wait)
        assert not reaching.done()
        reaching.cancel()

    asyncio.run(reach_until())


Check = Callable[[Properties, threading.Event, pytest.MonkeyPatch], None]


def measure_return(check: Check, monkeypatch: pytest.MonkeyPatch) -> float:
    """Return how long after its return a broker is tried, in seconds."""
    over = threading.Event()
    with socket.socket() as door, ThreadPoolExecutor(1) as threads:
        door.bind(("127.0.0.1", 0))
        kafka = {"bootstrap.servers": f"127.0.0.1:{door.getsockname()[1]}"}
        checking = threads.submit(check, kafka, over, monkeypatch)
        try:
            time.sleep(AWAY_S)
            door.settimeout(HANGS_S)
            began = time.monotonic()
            door.listen()
            door.accept()[0].close()
            return time.monotonic() - began
        finally:
            over.set()
            checking.result()


@pytest.mark.parametrize("check", [try_librdkafka, try_aiokafka])
def test_a_broker_that_comes_back_is_tried_soon(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's own pauses between two tries double up to ten seconds; by now they would be above three. An attempt in which
    this process, which is the client as well, got no processor is made again."""
    for _ in range(ATTEMPTS):
        with Stalls() as stalls:
            tried_s = measure_return(check, monkeypatch)
        if tried_s < NOTICED_S or not stalls.seen:
            break
    assert tried_s < NOTICED_S


async def await_failure(admin: Admin, text: str) -> None:
    """Ask a broker until it was met with a failure that has this text. The error of the next question without an answer names
    it, however short its deadline is."""
    asking = asyncio.create_task(admin.find_cluster())
    try:
        await asyncio.to_thread(wait_until, lambda: text in admin._brokers.failure, HANGS_S, f"a failure: {text}")
    finally:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


def test_certificates_that_other_clients_take_are_taken() -> None:
    """Python 3.13 would refuse CAs without certain extensions."""
    context = make_ssl_context({"bootstrap.servers": "broker:9093", "security.protocol": "SSL"})
    assert not context.verify_flags & ssl.VERIFY_X509_STRICT
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)


@pytest.mark.parametrize("setting", ["ssl.ca.location", "ssl.certificate.location"])
async def test_certificates_that_cannot_be_read(tmp_path: Path, setting: str) -> None:
    """At the start that is the settings' fault. Later it passes: files are being replaced."""
    missing, torn = tmp_path / "missing.pem", tmp_path / "torn.pem"
    torn.write_text("-----BEGIN")
    for file in (missing, torn):
        kafka = {"bootstrap.servers": "localhost:1", "security.protocol": "SSL", setting: str(file)}
        with pytest.raises(CredentialsRefused, match=f"{setting} {file}: "):
            await asyncio.to_thread(check_reachable, kafka)
        with pytest.raises(CredentialsRefused, match=f"{setting} {file}: "):
            await reach(kafka)
        with pytest.raises(SourceUnavailable, match=f"{setting} {file}: "):
            await Admin(kafka).find_cluster()
        with pytest.raises(SourceUnavailable, match=f"{setting} {file}: "):
            await open_client(kafka)
        with pytest.raises(SourceUnavailable, match=f"{setting} {file}: "):
            Journal(kafka, "overlay", 0)


async def test_a_client_reads_replaced_files_before_a_new_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of a replacement the former content goes on."""
    made: list[dict[str, Any]] = []

    async def refuse(*_: object, **settings: Any) -> None:
        made.append(settings)
        raise OSError("away")

    monkeypatch.setattr("aiokafka.client.create_conn", refuse)
    ca, password = make_security(tmp_path).ca, tmp_path / "password"
    password.write_text("first")
    kafka = {
        "bootstrap.servers": "localhost:1",
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(ca),
        "sasl.mechanism": "PLAIN",
        "sasl.username": "me",
        "sasl.password": f"file:{password}",
    }
    client = AIOKafkaClient(**for_aiokafka(kafka))
    mend_client(client, kafka, stamp(kafka))
    for content in ("first", "second", "", "third"):
        if content != "first":
            (tmp_path / "new").write_text(content)
            (tmp_path / "new").rename(password)
        with pytest.raises(KafkaConnectionError):
            await client.bootstrap()
    certificate = ca.read_bytes()
    for data in (b"-----BEGIN", certificate):
        ca.write_bytes(data)
        with pytest.raises(KafkaConnectionError):
            await client.bootstrap()
    await client.close()
    assert [each["sasl_plain_password"] for each in made] == ["first", "second", "second", *["third"] * 3]
    contexts = [each["ssl_context"] for each in made]
    assert [contexts[at] is contexts[at - 1] for at in range(1, 6)] == [False, True, False, True, False]


async def test_files_that_become_readable_later_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of rights leaves a file as it was, by its time and size. The log tells of it once."""
    made: list[str] = []
    told: list[str] = []

    async def refuse(*_: object, **settings: Any) -> None:
        made.append(settings["sasl_plain_password"])
        raise OSError("away")

    monkeypatch.setattr("aiokafka.client.create_conn", refuse)
    log = SimpleNamespace(info=lambda event, **_: told.append(event), warning=lambda event, **_: told.append(event))
    monkeypatch.setattr("overlay.kafka.connection.log", log)
    password = tmp_path / "password"
    password.write_text("first")
    kafka = {
        "bootstrap.servers": "localhost:1",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.username": "me",
        "sasl.password": f"file:{password}",
    }
    client = AIOKafkaClient(**for_aiokafka(kafka))
    mend_client(client, kafka, stamp(kafka))
    password.write_text("second")
    read = for_aiokafka
    for is_readable in (False, False, True):
        monkeypatch.setattr("overlay.kafka.connection.for_aiokafka", read if is_readable else deny)
        with pytest.raises(KafkaConnectionError):
            await client.bootstrap()
    await client.close()
    assert made == ["first", "first", "second"]
    assert told == ["connections are made with the former credentials", "the credentials for Kafka were replaced"]


async def test_a_secret_that_is_replaced_while_a_client_is_made_is_taken_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    async def refuse(*_: object, **settings: Any) -> None:
        made.append(settings["sasl_plain_password"])
        raise OSError("away")

    def read_before_the_replacement(kafka: Properties) -> dict[str, Any]:
        settings = for_aiokafka(kafka)
        if not made:
            password.write_text("second")
        return settings

    monkeypatch.setattr("aiokafka.client.create_conn", refuse)
    monkeypatch.setattr("overlay.kafka.connection.for_aiokafka", read_before_the_replacement)
    password = tmp_path / "password"
    password.write_text("first")
    kafka = {
        "bootstrap.servers": "localhost:1",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.username": "me",
        "sasl.password": f"file:{password}",
    }
    with pytest.raises(SourceUnavailable):
        await open_client(kafka)
    assert made == ["second"]


def deny(_: Properties) -> dict[str, Any]:
    raise SourceUnavailable("sasl.password: may not be read")


def make_server_context(security: Security, folder: Path, *, verify: ssl.VerifyMode = ssl.CERT_NONE) -> ssl.SSLContext:
    """The server's side of `security`, for a server of Python's own. `folder` takes its files."""
    store = Path(security.properties["ssl.keystore.location"]).read_bytes()
    key, certificate, _ = pkcs12.load_key_and_certificates(store, security.properties["ssl.keystore.password"].encode())
    assert key is not None
    assert certificate is not None
    file = folder / "server.pem"
    file.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + certificate.public_bytes(Encoding.PEM)
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(security.ca))
    context.load_cert_chain(file)
    context.verify_mode = verify
    return context


@contextmanager
def refuse_certificates(context: ssl.SSLContext) -> Iterator[str]:
    """A server that ends every handshake as `context` has it, and says why, as asyncio's own servers do not."""
    with socket.create_server(("127.0.0.1", 0)) as door:

        def serve() -> None:
            while True:
                try:
                    visitor, _ = door.accept()
                except OSError:
                    return
                with visitor, contextlib.suppress(OSError):
                    visitor.settimeout(HANGS_S)
                    with contextlib.suppress(ssl.SSLError):
                        context.wrap_socket(visitor.dup(), server_side=True)
                    visitor.shutdown(socket.SHUT_WR)
                    while visitor.recv(1 << 12):
                        pass

        serving = threading.Thread(target=serve)
        serving.start()
        try:
            yield f"127.0.0.1:{door.getsockname()[1]}"
        finally:
            door.shutdown(socket.SHUT_RDWR)
            serving.join()


async def test_a_client_without_its_certificate_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TLS 1.3 lets the client's side end the handshake before the server has looked at the certificate."""
    security = make_security(tmp_path)
    context = make_server_context(security, tmp_path, verify=ssl.CERT_REQUIRED)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    with refuse_certificates(context) as address:
        kafka = {"bootstrap.servers": address, "security.protocol": "SSL", "ssl.ca.location": str(security.ca)}
        async with asyncio.timeout(HANGS_S):
            with pytest.raises(CredentialsRefused, match=r"CERTIFICATE_REQUIRED.*Check security\.protocol"):
                await reach(kafka, 10 * HANGS_S)
        async with Admin(kafka) as admin:
            await await_failure(admin, "CERTIFICATE_REQUIRED")
            monkeypatch.setattr("overlay.kafka.admin.DEADLINE_S", 0.5)
            with pytest.raises(SourceUnavailable, match="CERTIFICATE_REQUIRED"):
                await admin.find_cluster()


async def test_a_name_that_is_none_cannot_be_reached() -> None:
    kafka = {"bootstrap.servers": "a..b:9092"}
    with pytest.raises(SourceUnavailable, match=r"a\.\.b:9092: Kafka cannot be reached: .*label"):
        await reach(kafka, 0.3)
    with pytest.raises(SourceUnavailable, match=r"a\.\.b:9092: Kafka cannot be reached: .*label"):
        await open_client(kafka)


@pytest.mark.kafka
@pytest.mark.parametrize("kind", ["client", "journal"])
@pytest.mark.parametrize("request_number", [1, 2, 3])
async def test_a_start_that_is_cancelled_leaves_no_connection_open(
    bootstrap: str, kind: str, request_number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is cancelled while one of its first requests waits for the answer."""
    sent, sends, send = asyncio.Event(), 0, AIOKafkaConnection.send

    def count(self: AIOKafkaConnection, *args: object, **more: object) -> object:
        nonlocal sends
        sends += 1
        if sends == request_number:
            sent.set()
        return send(self, *args, **more)

    monkeypatch.setattr(AIOKafkaConnection, "send", count)
    kafka = {"bootstrap.servers": bootstrap}
    journal = Journal(kafka, "cancelled", 0)
    starting = asyncio.create_task(open_client(kafka) if kind == "client" else journal.start())
    waiting = asyncio.create_task(sent.wait())
    await asyncio.wait({starting, waiting}, return_when=asyncio.FIRST_COMPLETED, timeout=10)
    starting.cancel()
    waiting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        if (client := await starting) is not None:
            await client.close()
    await journal.close()
    gc.collect()
    left = [each for each in gc.get_objects() if isinstance(each, AIOKafkaConnection) and each.connected()]
    assert not left
