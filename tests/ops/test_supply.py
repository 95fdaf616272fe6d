"""Bills of materials, and the look for known vulnerabilities: they have all that is locked, and wait for no network."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from supply.audit import Unreachable, ask, audit, make_request, read_answer
from supply.locks import JARS, LOCK, SERVICE_LOCK, Package, read_jars, read_lock
from supply.sbom import make_bills, write_bills
from tests.support.http_server import serve_http

from .tree import ROOT

BILLS = make_bills()
PACKAGES = [Package("one", "1.0", "", (), ()), Package("two", "2.0", "", (), ())]


@pytest.mark.parametrize(("bill", "lock"), [("sbom.cdx.json", LOCK), ("sbom-service.cdx.json", SERVICE_LOCK)])
def test_a_bill_has_every_locked_package_with_its_hashes(bill: str, lock: Path) -> None:
    text = lock.read_text(encoding="utf-8")
    pins = set(re.findall(r"^([a-z0-9.-]+)==(\S+)", text, re.MULTILINE))
    found = [each for each in BILLS[bill]["components"] if each["purl"].startswith("pkg:pypi/")]
    assert {(each["name"], each["version"]) for each in found} == pins
    assert all(each["purl"] == f"pkg:pypi/{each['name']}@{each['version']}" for each in found)
    hashes = [each["value"] for one in found for each in one["properties"] if each["name"] == "kafka-overlay:sha256"]
    assert sorted(hashes) == sorted(re.findall(r"--hash=sha256:(\w+)", text))


def test_a_bill_has_every_jar_with_its_checksum() -> None:
    found = {
        each["properties"][0]["value"]: each["hashes"]
        for each in BILLS["sbom.cdx.json"]["components"]
        if each["purl"].startswith("pkg:generic/")
    }
    lines = [line.split() for line in JARS.read_text(encoding="ascii").splitlines()]
    assert found == {name: [{"alg": "SHA-256", "content": digest}] for digest, name in lines}


@pytest.mark.parametrize("name", BILLS)
def test_a_bill_has_the_form_of_cyclonedx(name: str) -> None:
    bill = BILLS[name]
    assert (bill["bomFormat"], bill["specVersion"], bill["version"]) == ("CycloneDX", "1.6", 1)
    assert re.fullmatch(r"urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", bill["serialNumber"])
    own = bill["metadata"]["component"]
    components = [own, *bill["components"]]
    assert all({"type", "name", "version", "bom-ref"} <= each.keys() for each in components)
    assert {each["type"] for each in components} == {"application", "library"}
    assert {each["scope"] for each in bill["components"]} <= {"required", "optional"}
    references = [each["bom-ref"] for each in components]
    assert len(references) == len({*references})
    needs = {each["ref"]: each["dependsOn"] for each in bill["dependencies"]}
    assert {*needs, *(each for found in needs.values() for each in found)} <= {*references}
    # whatever there is, something needs it
    reached, ahead = set[str](), [own["bom-ref"]]
    while ahead:
        if (each := ahead.pop()) not in reached:
            reached.add(each)
            ahead += needs.get(each, [])
    assert reached == {*references}


def test_required_is_what_the_service_needs() -> None:
    service = {each["name"] for each in BILLS["sbom-service.cdx.json"]["components"]}
    required = {each["name"] for each in BILLS["sbom.cdx.json"]["components"] if each["scope"] == "required"}
    assert required == service
    assert "aiokafka" in required and "pyspark" not in required


def test_the_same_files_give_the_same_bills(tmp_path: Path) -> None:
    first, second = (write_bills(bills, tmp_path / str(at)) for at, bills in enumerate((BILLS, make_bills())))
    assert [path.name for path in first] == [*BILLS]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert json.loads(first[0].read_text(encoding="utf-8")) == BILLS["sbom.cdx.json"]


def test_lines_that_are_not_understood_are_told(tmp_path: Path) -> None:
    lock, jars = tmp_path / "requirements.lock", tmp_path / "jars.sha256"
    lock.write_text("one==1.0 \\\n    --hash=md5:abc\n")
    with pytest.raises(ValueError, match=r"requirements\.lock:2: this line is not understood"):
        read_lock(lock)
    jars.write_text(f"{'0' * 64}  kafka.jar\n")
    with pytest.raises(ValueError, match=r"jars\.sha256:1: this line names no jar"):
        read_jars(jars)


@dataclass(slots=True)
class Database:
    """A database of vulnerabilities."""

    url: str = ""
    answer: bytes = b"{}"
    asked: list[Any] = field(default_factory=list)


@contextlib.contextmanager
def serve_database() -> Iterator[Database]:
    database = Database()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            database.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.send_header("Content-Length", str(len(database.answer)))
            self.end_headers()
            self.wfile.write(database.answer)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing is logged."""

    with serve_http(HTTPServer(("127.0.0.1", 0), Handler)) as url:
        database.url = f"{url}/"
        yield database


def test_known_vulnerabilities_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    with serve_database() as database:
        database.answer = b'{"results": [{}, {"vulns": [{"id": "B-2"}, {"id": "A-1"}]}]}'
        assert audit(database.url, PACKAGES) == 1
        assert "audit: two 2.0: A-1, B-2" in capsys.readouterr().out
        database.answer = b'{"results": [{}, {}]}'
        assert audit(database.url, PACKAGES) == 0
        assert "no vulnerability of 2 packages is known" in capsys.readouterr().out
        assert database.asked == [make_request(PACKAGES)] * 2
    assert database.asked[0]["queries"][1] == {"package": {"ecosystem": "PyPI", "name": "two"}, "version": "2.0"}


@pytest.mark.parametrize(
    "answer", [None, [], {}, {"results": []}, {"results": [{}, {"vulns": [{}]}]}, {"results": [{}, 5]}]
)
def test_answers_of_another_form(answer: Any) -> None:
    with pytest.raises(Unreachable):
        read_answer(PACKAGES, answer)


def test_a_database_out_of_reach_is_skipped_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/"
        assert audit(url, PACKAGES) == 0
        assert re.search(rf"audit: skipped: {url}: .*refused.*\$OVERLAY_AUDIT_URL", capsys.readouterr().out)
    assert audit("file:///etc/passwd", PACKAGES) == 0
    assert "skipped: file:///etc/passwd: it is no URL" in capsys.readouterr().out


@pytest.mark.parametrize(
    "answer",
    [
        b"no http\r\n\r\n",
        b'HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"results": [',
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n<htm>",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n" + b"[" * 9999,
        b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n",
    ],
)
def test_what_answers_in_place_of_the_database_is_skipped(answer: bytes) -> None:
    """A proxy, a login page, a connection that breaks: the reason is told at once."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def reply() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(answer)

        replying = threading.Thread(target=reply)
        replying.start()
        with pytest.raises(Unreachable) as told:
            ask(f"http://127.0.0.1:{server.getsockname()[1]}/", {}, 60.0)
        replying.join()
    assert "no answer within" not in str(told.value)


def test_a_database_that_says_nothing_takes_no_longer_than_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        with pytest.raises(Unreachable, match=r"no answer within|timed out"):
            ask(f"http://127.0.0.1:{silent.getsockname()[1]}/", {}, 0.3)
        assert time.monotonic() - began < 60.0


def test_continuous_integration_tells_of_vulnerabilities() -> None:
    """They do not stop it: one that became known today is no fault of the change that is tested."""
    assert "make audit || true" in (ROOT / ".ci" / "run").read_text().splitlines()
