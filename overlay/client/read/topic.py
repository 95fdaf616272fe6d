"""Stream configs for topics that no file describes."""

from __future__ import annotations

import re
from collections.abc import Mapping

from overlay.config.document import Document, Path
from overlay.config.problems import validate
from overlay.config.stream import StreamConfig
from overlay.errors import FilePosition
from overlay.subject import SubjectRule

Declared = Mapping[str, str | Mapping[str, str]]
"""Properties as in a stream's file: name to type, or to {"type": TYPE, "from": FIELD}."""

WHERE = "topic and its properties"
_NO_NAME = re.compile(r"[^A-Za-z0-9_-]")


def describe_topic(topic: str, declared: Declared) -> StreamConfig:
    """Return a stream of one topic whose name is the subject of every record.

    Raises ConfigError for invalid properties.

    If the topic's name is not a legal subject (`a..b`), it is escaped into a single token, so that
    no record is left out.
    """
    whole = isinstance(SubjectRule.from_topic().build((), topic, 0), str)
    data: dict[str, object] = {
        "name": _NO_NAME.sub("_", topic)[:200] or "_",
        "topics": (topic,),
        "subject": {"topic": True} if whole else {"template": "topic.{topic}"},
        "properties": {name: dict(entry) if isinstance(entry, Mapping) else entry for name, entry in declared.items()},
    }
    stream, problems = validate(StreamConfig, Document(WHERE, data, _find_places(declared), {}))
    if stream is None:
        raise problems[0]
    return stream


def _find_places(declared: Declared) -> dict[Path, FilePosition]:
    """Return WHERE as the position of each value in the config that is made here, for error messages."""
    paths: list[Path] = [("topics",), ("topics", 0), ("properties",)]
    for name, entry in declared.items():
        paths.append(("properties", name))
        paths += [("properties", name, key) for key in (entry if isinstance(entry, Mapping) else {"type": entry})]
    return dict.fromkeys(paths, FilePosition(WHERE))
