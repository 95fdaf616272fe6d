"""Who gets an answer from the HTTP pages: host names, tokens, certificates."""

from __future__ import annotations

import asyncio
import base64
import re
import shutil
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import ClientSession, TCPConnector, web
from hypothesis import example, given
from hypothesis import strategies as st

from overlay.cli.fleet import open_admin_token
from overlay.config import HttpConfig
from overlay.errors import ConfigError, CredentialsRefused, OverlayError, SourceUnavailable
from overlay.metrics import Metrics
from overlay.view.running import NoService, ask_service
from overlay.worker import access
from overlay.worker.access import find_host_fault, has_token, load_tls, split_host
from overlay.worker.http import start_http, start_pages
from tests.support.security import write_certificate

TOKEN = "a-secret-of-24-characters"
LOOPBACK, ALL = HttpConfig(), HttpConfig(listen="0.0.0.0:8222")
NAMED = HttpConfig(listen="0.0.0.0:8222", hosts=("overlay.example.org",))


@pytest.fixture(autouse=True)
def patient_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands wait for an answer as long as a machine may stall."""
    monkeypatch.setattr("overlay.view.running.DEADLINE_S", 60.0)


class OneService:
    """Says as much as a service with nothing to do."""

    def report(self) -> Mapping[str, Any]:
        return {"service": {"prefix": "ov"}, "streams": [], "consumers": []}

    def report_readiness(self) -> Mapping[str, Any]:
        return {"ready": True, "reasons": []}

    async def look(self) -> Mapping[str, Any]:
        return {"time": 1, "workers": [], "shards": [], "consumers": [], "findings": []}

    async def set_gauges(self) -> None:
        """There are none."""


@asynccontextmanager
async def serving(**http: Any) -> AsyncIterator[HttpConfig]:
    """The pages of a service; yields their config with the real port."""
    config = HttpConfig(listen="127.0.0.1:0", **http)
    runners, port = await start_pages(Metrics(), OneService(), config)
    try:
        yield config.model_copy(update={"listen": f"127.0.0.1:{port}"})
    finally:
        for runner in runners:
            await runner.cleanup()


async def get(http: HttpConfig, path: str, **headers: str) -> tuple[int, str]:
    """The status and the text of a page, whatever the certificate."""
    async with ClientSession(connector=TCPConnector(ssl=False)) as client:
        url = f"{http.scheme}://{http.listen}{path}"
        async with client.get(url, headers=headers) as answer:
            return answer.status, await answer.text()


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("", ""),
        ("127.0.0.1:8222", "127.0.0.1"),
        ("[::1]:8222", "::1"),
        ("[::1]", "::1"),
        ("Overlay.Example.ORG.:8222", "overlay.example.org"),
        ("localhost", "localhost"),
    ],
)
def test_the_host_of_a_header(header: str, name: str) -> None:
    assert split_host(header) == name


@pytest.mark.parametrize("header", ["", "127.0.0.1:8222", "10.0.0.7", "[::1]:8222", "localhost:8222", "a.localhost"])
@pytest.mark.parametrize("http", [LOOPBACK, ALL, NAMED])
def test_addresses_and_localhost_are_always_answered(http: HttpConfig, header: str) -> None:
    """A site that rebinds its name sends that name; no browser sends an address for it."""
    assert find_host_fault(http, http.address[0], header) == ""


@pytest.mark.parametrize(
    ("http", "header", "is_answered"),
    [
        (LOOPBACK, "evil.example", False),
        (LOOPBACK, "127.0.0.1.evil.example", False),
        (LOOPBACK, "localhost.evil.example:8222", False),
        (ALL, "overlay:8222", True),
        (NAMED, "overlay:8222", False),
        (NAMED, "OVERLAY.example.org:8222", True),
        (HttpConfig(listen="localhost:1"), "evil.example", False),
        (HttpConfig(listen="box:1", hosts=("other",)), "box:1", True),
        (HttpConfig(listen="[::1]:1"), "evil.example", False),
    ],
)
def test_names_are_those_that_are_configured(http: HttpConfig, header: str, is_answered: bool) -> None:
    fault = find_host_fault(http, http.address[0], header)
    assert (fault == "") is is_answered
    assert is_answered or "add it to http.hosts" in fault


@given(st.sampled_from(["", "Bearer ", "Basic ", f"Bearer {TOKEN}"]), st.binary())
@example("Bearer ", b"\xff")
def test_no_header_is_too_odd(head: str, data: bytes) -> None:
    """aiohttp reads headers like this: bytes that are no UTF-8 become surrogates."""
    header = head + data.decode("utf-8", "surrogateescape")
    find_host_fault(NAMED, "0.0.0.0", header)
    assert has_token(TOKEN, header) == (header.strip() == f"Bearer {TOKEN}")


def basic(password: str) -> str:
    return f"Basic {base64.b64encode(f'me:{password}'.encode()).decode()}"


@pytest.mark.parametrize(
    ("authorization", "is_right"),
    [
        (f"Bearer {TOKEN}", True),
        (f"bearer  {TOKEN} ", True),
        (basic(TOKEN), True),
        ("", False),
        (TOKEN, False),
        (f"Bearer {TOKEN}x", False),
        (f"Bearer {TOKEN[:-1]}", False),
        (basic("other"), False),
        (f"Basic {TOKEN}", False),
        ("Basic !", False),
    ],
)
async def test_every_page_wants_the_token(authorization: str, is_right: bool) -> None:
    async with serving(token=TOKEN) as http:
        for path in ("/metrics", "/healthz", "/readyz", "/service", "/streams", "/consumers"):
            status, text = await get(http, path, Authorization=authorization)
            assert status == (200 if is_right else 401)
            assert TOKEN not in text


async def test_a_foreign_name_gets_nothing() -> None:
    async with serving() as http:
        status, text = await get(http, "/streams", Host="evil.example")
        assert (status, "evil.example" in text) == (403, True)
        assert (await get(http, "/nowhere"))[0] == 404


async def test_commands_bring_the_token() -> None:
    async with serving(token=TOKEN) as http:
        facts = await ask_service(http)
        assert facts.service is not None and facts.service.prefix == "ov"
        with pytest.raises(CredentialsRefused, match=r"refuses the credentials \(401\): send the http\.token"):
            await ask_service(http.model_copy(update={"token": "another-secret-of-24"}))


async def test_a_token_in_a_file_is_taken_up_when_the_file_is_replaced(tmp_path: Path) -> None:
    """Also by commands, which read the file at each call. A file that holds no token leaves the former one."""
    file, other = tmp_path / "token", "another-secret-of-24-characters"
    file.write_text(TOKEN + "\n")

    async def ask(token: str) -> int:
        return (await get(http, "/readyz", Authorization=f"Bearer {token}"))[0]

    async with serving(token=f"file:{file}") as http:
        assert [await ask(token) for token in (TOKEN, other)] == [200, 401]
        assert (await ask_service(http)).service is not None
        for content in (None, "short"):
            replace_file(file, content)
            assert [await ask(token) for token in (TOKEN, "short")] == [200, 401]
        replace_file(file, other)
        assert [await ask(token) for token in (TOKEN, other)] == [401, 200]
        assert (await ask_service(http)).service is not None
        replace_file(file, None)
        with pytest.raises(SourceUnavailable, match=r"http\.token: .* cannot be read"):
            await ask_service(http)


def replace_file(file: Path, content: str | None) -> None:
    """Write a new file and rename it, as Kubernetes does; None: delete it."""
    if content is None:
        file.unlink()
    else:
        new = file.with_suffix(".new")
        new.write_text(content)
        new.rename(file)


@pytest.mark.parametrize(
    ("content", "words"), [(None, "cannot be read"), ("short", "at least 16 printable"), ("", "is empty")]
)
async def test_a_file_without_a_token_ends_the_start(tmp_path: Path, content: str | None, words: str) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_text(content)
    with pytest.raises(OverlayError, match=f"http.token: .*{words}"):
        async with serving(token=f"file:{file}"):
            pass


async def test_a_token_in_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERLAY_TEST_TOKEN", TOKEN)
    async with serving(token="env:OVERLAY_TEST_TOKEN") as http:
        assert (await get(http, "/readyz", Authorization=f"Bearer {TOKEN}"))[0] == 200
        assert (await get(http, "/readyz", Authorization="Bearer env:OVERLAY_TEST_TOKEN"))[0] == 401


def test_the_administrators_token_is_another_one_also_in_files(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text(TOKEN)
    two.write_text(TOKEN)
    http = HttpConfig(token=f"file:{one}", admin_token=f"file:{two}")
    with pytest.raises(OverlayError, match="is the token of all users"):
        open_admin_token(http)
    replace_file(two, "another-secret-of-24-characters")
    kept = open_admin_token(http)
    assert kept is not None and kept.get() == "another-secret-of-24-characters"
    assert open_admin_token(HttpConfig(token=TOKEN)) is None


def test_a_token_is_in_no_text_of_the_config() -> None:
    assert TOKEN not in repr(HttpConfig(token=TOKEN))


async def test_metrics_have_an_address_of_their_own() -> None:
    config = HttpConfig(listen="127.0.0.1:0", metrics_listen="127.0.0.1:0", token=TOKEN)
    runners, port = await start_pages(Metrics(), OneService(), config)
    try:
        pages, beside = (HttpConfig(listen=f"127.0.0.1:{runner.addresses[0][1]}") for runner in runners)
        assert pages.address[1] == port
        right = f"Bearer {TOKEN}"
        assert (await get(pages, "/readyz", Authorization=right))[0] == 200
        assert (await get(pages, "/metrics", Authorization=right))[0] == 404
        assert (await get(beside, "/metrics", Authorization=right))[0] == 200
        assert (await get(beside, "/readyz", Authorization=right))[0] == 404
        assert (await get(beside, "/metrics"))[0] == 401
    finally:
        for runner in runners:
            await runner.cleanup()


async def test_an_address_for_metrics_that_is_taken() -> None:
    async with serving() as other:
        config = HttpConfig(listen="127.0.0.1:0", metrics_listen=other.listen)
        with pytest.raises(OverlayError, match=r"Change http\.metrics_listen"):
            await start_pages(Metrics(), OneService(), config)


async def test_commands_trust_the_certificate_of_the_folder_and_no_other(tmp_path: Path) -> None:
    files = write_certificate(tmp_path, "overlay.example.org")
    other = write_certificate(tmp_path / "other", "overlay.example.org")
    async with serving(tls_certificate=str(files[0]), tls_key=str(files[1]), token=TOKEN) as http:
        facts = await ask_service(http)
        assert facts.service is not None
        assert facts.service.url.startswith("https://")
        with pytest.raises(NoService, match=r"certificate of http\.tls_certificate"):
            await ask_service(http.model_copy(update={"tls_certificate": str(other[0])}))
        with pytest.raises(ConfigError, match="cannot be read"):
            await ask_service(http.model_copy(update={"tls_certificate": str(tmp_path / "none.pem")}))


async def test_a_certificate_that_is_replaced_is_taken_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: asyncio.Queue[str] = asyncio.Queue()

    def tell(event: str, **_: object) -> None:
        told.put_nowait(event)

    async def await_words(words: str) -> None:
        async with asyncio.timeout(60):
            while words not in await told.get():
                pass

    monkeypatch.setattr(access, "LOOK_S", 0.01)
    monkeypatch.setattr(access, "log", SimpleNamespace(info=tell, warning=tell))
    certificate, key = write_certificate(tmp_path, "first")
    other = write_certificate(tmp_path / "other", "second")
    async with serving(tls_certificate=str(certificate), tls_key=str(key)) as http:
        assert await find_name(http) == "first"
        shutil.copy(other[0], certificate)
        await await_words("stays the former one")
        assert await find_name(http) == "first"
        shutil.copy(other[1], key)
        await await_words("was replaced")
        assert await find_name(http) == "second"


async def find_name(http: HttpConfig) -> str:
    """The name in the certificate that a server shows."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection(*http.address, ssl=context)
    try:
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    finally:
        writer.close()
    return "first" if b"first" in shown else "second"


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    certificate, key = write_certificate(tmp_path, "a")
    _, other = write_certificate(tmp_path / "other", "b")
    for wrong in (tmp_path / "none.pem", other, certificate):
        with pytest.raises(OverlayError, match=r"http\.tls_certificate .* cannot be used"):
            load_tls(HttpConfig(tls_certificate=str(certificate), tls_key=str(wrong)))
    _, locked = write_certificate(tmp_path / "locked", "a", password="long")
    with pytest.raises(OverlayError, match="no password"):
        load_tls(HttpConfig(tls_certificate=str(certificate), tls_key=str(locked)))
    assert load_tls(HttpConfig(tls_certificate=str(certificate), tls_key=str(key))) is not None


async def test_an_address_that_is_taken_is_an_error() -> None:
    async with serving() as http:
        other = rf"Change http\.listen in x/overlay\.yaml, such as to {re.escape(http.address[0])}:\d+$"
        with pytest.raises(OverlayError, match=rf"cannot listen there.*{other}"):
            await start_http(web.Application(), http, http.address, file="x/overlay.yaml")
