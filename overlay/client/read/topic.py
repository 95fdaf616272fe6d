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
    """Return the config of a stream of this one topic, in which the topic's name is the subject of
    every record, with the properties `declared`. Raises ConfigError if these are invalid.

    If the topic's name is not a legal subject (`a..b`), the subject is `topic.` and the name escaped
    into a single token, so that no record is left out.
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
    """Return the position that error messages give for each value of the config that describe_topic makes: always WHERE,
    since there is no file.
    """
    paths: list[Path] = [("topics",), ("topics", 0), ("properties",)]
    for name, entry in declared.items():
        paths.append(("properties", name))
        paths += [("properties", name, key) for key in (entry if isinstance(entry, Mapping) else {"type": entry})]
    return dict.fromkeys(paths, FilePosition(WHERE))
