from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from overlay.errors import BrokerError
from overlay.local.jars import IVY_FILE, fetch_jars

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
