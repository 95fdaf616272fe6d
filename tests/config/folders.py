"""Config folders for tests: a sound service and stream, and whatever files a test adds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from overlay.config import Loaded, load

SERVICE = "kafka: {bootstrap.servers: 127.0.0.1:9092}\n"
STREAM = 'name: FLIGHTS\ntopics: [flights]\nsubjects: ["flights.>"]\nsubject: {template: "flights.{header:origin}"}\n'
CONSUMER = "stream: FLIGHTS\ndurable_name: late\ndeliver_subject: late\nack_policy: none\n"


def write_folder(folder: Path, files: Mapping[str, str]) -> Path:
    """Write `files` (relative path to text) over a sound overlay.yaml and streams/flights.yaml."""
    for name, text in {"overlay.yaml": SERVICE, "streams/flights.yaml": STREAM, **files}.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return folder


def load_files(folder: Path, files: Mapping[str, str], environment: Mapping[str, str] | None = None) -> Loaded:
    return load(write_folder(folder, files), environment=environment or {})
