from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import pkcs12

from overlay.local import trust
from tests.support.security import make_security


@pytest.fixture
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def test_certificates_that_cannot_be_read_are_skipped(tmp_path: Path) -> None:
    good = make_security(tmp_path).ca.read_text()
    bad = "-----BEGIN CERTIFICATE-----\nbm90IGEgY2VydGlmaWNhdGU=\n-----END CERTIFICATE-----\n"
    bundle = tmp_path / "bundle.pem"
    bundle.write_text(f"# comment\n{bad}{good}{bad}")
    store = trust.write_truststore(bundle, tmp_path / "cache" / "trust")
    assert store is not None
    entries = pkcs12.load_pkcs12(store.read_bytes(), trust.PASSWORD.encode()).additional_certs
    assert [entry.certificate.subject.rfc4514_string() for entry in entries] == ["CN=test CA"]


def test_truststore_is_written_once_for_a_bundle(tmp_path: Path) -> None:
    bundle = make_security(tmp_path).ca
    first = trust.write_truststore(bundle, tmp_path / "trust")
    assert first is not None
    written = first.stat().st_mtime_ns
    assert trust.write_truststore(bundle, tmp_path / "trust") == first
    assert first.stat().st_mtime_ns == written


def test_bundle_without_certificates_leaves_java_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_proxies: None
) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("nothing here")
    monkeypatch.setenv("SSL_CERT_FILE", str(empty))
    assert trust.build_java_options(tmp_path) == []


def test_bundle_of_the_environment_reaches_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_proxies: None
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(make_security(tmp_path).ca))
    options = trust.build_java_options(tmp_path)
    (store,) = (option.partition("=")[2] for option in options if option.startswith("-Djavax.net.ssl.trustStore="))
    assert Path(store).is_relative_to(tmp_path / "trust")


def test_proxies_of_the_environment_reach_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_proxies: None
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
    monkeypatch.setenv("https_proxy", "http://me:p%40ss@proxy.example:3128")
    monkeypatch.setenv("http_proxy", "proxy.example:3129")
    monkeypatch.setenv("no_proxy", "localhost, .inner.example")
    options = trust.build_java_options(tmp_path)
    assert "-Dhttps.proxyHost=proxy.example" in options
    assert "-Dhttps.proxyPort=3128" in options
    assert "-Dhttp.proxyPort=3129" in options
    assert "-Dhttp.proxyPassword=p@ss" in options
    assert "-Dhttp.nonProxyHosts=localhost|*.inner.example" in options
