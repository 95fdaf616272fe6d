"""`overlay validate --kafka` asks schema registries whether they answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from overlay.cli.validate import ask_registries
from tests.config.folders import load_files
from tests.support.schema_registry import Registry, serve_registry


def test_each_registry_is_asked_whether_it_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("REGISTRY_TOKEN", "secret")
    registry = Registry()
    registry.wanted = "Bearer secret"
    with serve_registry(registry) as url:
        good = {"url": url, "bearer.auth.token": "env:REGISTRY_TOKEN"}
        streams = {
            "GOOD": good,
            "REFUSED": {"url": url},
            "UNSET": {**good, "bearer.auth.token": "env:NO_SUCH_VARIABLE"},
            "WRONG": {**good, "url": f"{url}/elsewhere"},
        }
        files = {
            f"streams/{name}.yaml": json.dumps(
                {"name": name, "topics": [name], "values": {"format": "avro", "registry": settings}}
            )
            for name, settings in streams.items()
        }
        loaded = load_files(tmp_path, {**files, "streams/plain.yaml": "name: PLAIN\ntopics: [t]\n"})
        assert loaded.problems == ()
        found = {each["stream"]: each["error"] for each in ask_registries(loaded)}
    assert found.keys() == streams.keys() and found["GOOD"] == ""
    assert "refuses the credentials (401)" in found["REFUSED"]
    assert "NO_SUCH_VARIABLE is not set" in found["UNSET"]
    assert found["WRONG"] and not any("secret" in error for error in found.values())
