"""Secrets among the Kafka settings: where they are read from, and that they are shown nowhere."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from overlay.client.client import check_settings, open_client
from overlay.credentials import MAX_BYTES, REFERABLE, SECRETS, KeptSecret, Secret, hide, list_files, resolve, stamp
from overlay.errors import CredentialsRefused, SourceUnavailable
from overlay.kafka.confluent import make_admin_client
from overlay.kafka.connection import for_aiokafka, reach
from overlay.kafka.properties import for_confluent
from spark.connection import for_java

SASL = {
    "bootstrap.servers": "localhost:1",
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "SCRAM-SHA-256",
    "sasl.username": "me",
}


def test_a_secret_is_a_text_that_is_not_shown() -> None:
    secret = Secret("wonderland")
    assert (secret, secret + "", secret.encode(), f"{secret}") == (
        "wonderland",
        "wonderland",
        b"wonderland",
        "wonderland",
    )
    for same in (secret, pickle.loads(pickle.dumps(secret)), copy.deepcopy(secret)):
        assert same == "wonderland"
        assert "wonderland" not in repr({"a": [same]})


@pytest.mark.parametrize("name", SECRETS)
def test_settings_are_shown_without_secrets(name: str) -> None:
    shown = repr(hide({"client.id": "c", name: "wonderland"}))
    assert shown == repr({"client.id": "c", name: Secret()})
    assert repr(hide({name: "env:NAME"})) == repr({name: "env:NAME"})


def test_every_client_gets_what_a_reference_stands_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One place of reading for three libraries. What was read is no reference, whatever it begins with."""
    file = tmp_path / "password"
    monkeypatch.setenv("USER_OF_TEST", "alice")
    for written, password in (("wonder\n", "wonder"), (" land\r\n", " land"), ("env:x", "env:x"), ("ü", "ü")):
        file.write_bytes(written.encode())
        kafka = check_settings({**SASL, "sasl.username": "env:USER_OF_TEST", "sasl.password": f"file:{file}"})
        assert password not in repr(kafka)
        for settings in (kafka, resolve(kafka), resolve(resolve(kafka))):
            confluent, aiokafka, java = for_confluent(settings), for_aiokafka(settings), for_java(settings)
            assert (confluent["sasl.username"], confluent["sasl.password"]) == ("alice", password)
            assert (aiokafka["sasl_plain_username"], aiokafka["sasl_plain_password"]) == ("alice", password)
            assert java["sasl.jaas.config"].endswith(f'required username="alice" password="{password}";')
            for shown in (repr(confluent), repr(aiokafka), repr(java)):
                assert password not in shown


def test_only_some_settings_are_references() -> None:
    given = {"client.id": "env:NAME", "ssl.ca.location": "file:ca.pem"}
    assert resolve(given) == given
    assert set(SECRETS) < set(REFERABLE)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "cannot be read: No such file"),
        (b"", "is empty"),
        (b"\n", "is empty"),
        (b"\xff", "it is not UTF-8"),
        (b"a\0b", "has a character of code 0"),
        (b"x" * (MAX_BYTES + 1), f"more than {MAX_BYTES} bytes"),
    ],
)
async def test_secrets_that_cannot_be_read(tmp_path: Path, content: bytes | None, reason: str) -> None:
    """At the start that is the settings' fault. Later it passes: the file is being replaced."""
    file = tmp_path / "password"
    if content is not None:
        file.write_bytes(content)
    kafka = {**SASL, "sasl.password": f"file:{file}"}
    makers: tuple[Callable[[dict[str, str]], object], ...] = (for_confluent, for_aiokafka, for_java)
    for make in makers:
        with pytest.raises(SourceUnavailable, match=f"sasl.password: {file} .*{reason}"):
            make(kafka)
    with pytest.raises(CredentialsRefused, match=reason):
        await reach(kafka)
    with pytest.raises(CredentialsRefused, match=reason):
        make_admin_client(kafka)


def test_a_variable_that_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in (None, ""):
        monkeypatch.delenv("SECRET_OF_TEST", raising=False)
        if value is not None:
            monkeypatch.setenv("SECRET_OF_TEST", value)
        with pytest.raises(
            SourceUnavailable, match=r"sasl\.password: the environment variable SECRET_OF_TEST is not set"
        ):
            resolve({"sasl.password": "env:SECRET_OF_TEST"})


def test_what_a_client_shows_of_itself() -> None:
    client = open_client(bootstrap="localhost:1", kafka={**SASL, "sasl.password": "wonderland"})
    assert "wonderland" not in repr(client) + repr(client.kafka)


def test_a_stamp_changes_with_the_files(tmp_path: Path) -> None:
    file, other = tmp_path / "password", tmp_path / "ca.pem"
    settings = {"sasl.password": f"file:{file}", "ssl.ca.location": str(other), "sasl.username": "env:ME"}
    assert list_files(settings) == [str(other), str(file)]
    assert stamp({"sasl.password": "env:ME"}) == ()
    seen = [stamp(settings)]
    for each in (file, other):
        each.write_text("a")
        seen.append(stamp(settings))
        (tmp_path / "new").write_text("a")
        (tmp_path / "new").rename(each)
        seen.append(stamp(settings))
    assert len({*seen}) == 5
    assert stamp({"sasl.password": "file:a\0b"}) == ((0, 0, 0),)
    assert stamp(settings) == seen[-1]


def test_a_kept_secret_that_could_not_be_read_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What kept it from being read, such as its rights, may change nothing that the file is known by."""
    file = tmp_path / "token"
    file.write_text("first")
    kept = KeptSecret("http.token", f"file:{file}", lambda _: None)
    file.write_text("the second")

    def refuse(*_: object, **__: object) -> str:
        raise PermissionError("denied")

    with monkeypatch.context() as patch, capture_logs() as logs:
        patch.setattr(Path, "open", refuse)
        assert [kept.get(), kept.get()] == ["first", "first"]
    assert [each["event"] for each in logs] == ["a secret stays the former one"]
    assert kept.get() == "the second"


def test_a_kept_secret_follows_its_file(tmp_path: Path) -> None:
    """The first failure of each content is logged, and repeats no secret."""

    def check(text: str) -> None:
        if "bad" in text:
            raise ValueError("it is no token")

    file = tmp_path / "token"
    file.write_text("first")
    with capture_logs() as logs:
        kept = KeptSecret("http.token", f"file:{file}", check)
        assert kept.get() == "first"
        file.write_text("a bad one")
        assert [kept.get(), kept.get()] == ["first", "first"]
        file.write_text("the second")
        assert [kept.get(), kept.get()] == ["the second", "the second"]
        file.unlink()
        assert kept.get() == "the second"
    assert [each["event"] for each in logs] == [
        "a secret stays the former one",
        "a secret was replaced",
        "a secret stays the former one",
    ]
    assert "http.token: it is no token" in logs[0]["reason"]
    assert not any("bad one" in str(each) for each in logs)
    with pytest.raises(SourceUnavailable, match=r"http\.token: .* cannot be read"):
        KeptSecret("http.token", f"file:{file}", check)
    assert KeptSecret("http.token", "plain", check).get() == "plain"
