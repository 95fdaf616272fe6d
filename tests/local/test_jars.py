from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from overlay.errors import BrokerError
from overlay.local import jar_sums, jars
from overlay.local.folders import find_cache
from overlay.local.jars import CONFS, IVY_FILE, fetch_jars, find_strange, read_sums

from .network import cut_network


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache on a machine whose network goes nowhere."""
    monkeypatch.setenv("OVERLAY_CACHE", str(tmp_path / "cache"))
    cut_network(monkeypatch)
    return tmp_path / "cache"


def fill(cache: Path, *names: str) -> Path:
    folder = cache / "jars" / hashlib.sha256(IVY_FILE.read_bytes()).hexdigest()[:12] / "broker"
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).touch()
    (folder / ".complete").write_text("\n".join(names))
    return folder


def test_warm_cache_needs_neither_network_nor_java(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fill(cache, "a.jar", "b.jar")
    monkeypatch.setenv("PATH", "")
    assert fetch_jars("broker") == [folder / "a.jar", folder / "b.jar"]


def test_cold_cache_without_network_says_what_is_missing_and_what_to_do(
    cache: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(BrokerError) as raised:
        fetch_jars("broker")
    message = str(raised.value)
    assert "org.apache.kafka#kafka_2.13;4.3.0" in message
    assert "Connection refused" in message
    assert str(cache) in message
    assert "once with a network" in message
    assert [path.name for path in cache.glob("jars/*/*")] == ["broker.lock"], "a failed fetch leaves nothing half done"


def test_set_that_lost_a_jar_is_fetched_again(cache: Path) -> None:
    (fill(cache, "a.jar", "b.jar") / "b.jar").unlink()
    with pytest.raises(BrokerError, match="could not fetch"):
        fetch_jars("broker")


def test_everything_of_ivy_stays_in_the_cache(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    with pytest.raises(BrokerError):
        fetch_jars("broker")
    assert list(home.iterdir()) == []
    assert (cache / "ivy" / "cache").is_dir()


def test_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("OVERLAY_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(BrokerError, match=r"file/cache.*\$OVERLAY_CACHE"):
        fetch_jars("broker")


def test_unknown_conf_is_refused() -> None:
    with pytest.raises(ValueError, match="broker, tools, spark"):
        fetch_jars("flink")


def test_every_jar_has_a_checksum() -> None:
    """Those that are here: the run's broker and Spark use them."""
    sums = read_sums()
    assert len(sums) > 90
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in sums.values())
    release = find_cache() / "jars" / hashlib.sha256(IVY_FILE.read_bytes()).hexdigest()[:12]
    assert [strange for conf in CONFS for strange in find_strange(release / conf, sums)] == []


def test_a_jar_with_another_content_is_refused(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fetch(conf: str, found: Path, work: Path) -> None:
        found.mkdir()
        (found / "kafka_2.13-4.3.0.jar").write_bytes(b"not Kafka")
        (found / "more.jar").write_bytes(b"")

    monkeypatch.setattr(jars, "run_ivy", fetch)
    with pytest.raises(BrokerError) as raised:
        fetch_jars("broker")
    assert "kafka_2.13-4.3.0.jar has the SHA-256 " in str(raised.value)
    assert "more.jar has the SHA-256 e3b0c442" in str(raised.value)
    assert [path.name for path in cache.glob("jars/*/*")] == ["broker.lock"]


def test_checksums_are_written_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fetch(conf: str, found: Path, work: Path) -> None:
        found.mkdir()
        (found / f"{conf}.jar").write_bytes(conf.encode())

    monkeypatch.setattr(jar_sums, "run_ivy", fetch)
    monkeypatch.setattr(jar_sums, "SUMS_FILE", tmp_path / "sums")
    monkeypatch.setattr(jars, "SUMS_FILE", tmp_path / "sums")
    assert jar_sums.write_sums() == 3
    assert read_sums()["spark.jar"] == hashlib.sha256(b"spark").hexdigest()
