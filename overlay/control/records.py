"""Records of the control topic `<prefix>.control` (docs/control.md).

The topic is compacted, and a key says what a record is about:

    consumer STREAM NAME    how a consumer is defined, until it is deleted
    pause STREAM NAME       until when it is paused; null means not paused, whatever its definition says
    worker NAME             that a worker is drained, and in which of its starts
    request ID              a request, until it has been answered

A definition says where it comes from. A requested one is only here. The definition of a file is
written when the file is taken up. So a file that changed while no service ran is still checked
against JetStream's update rules. The file itself stays the source. A definition with `deleted`
marks a consumer whose state is still to be dropped.

Values are JSON with a version. A record of another version is skipped and counted, so that an old
worker leaves alone what a newer one has written; only a request of another version is answered, as
invalid. Configs have JetStream's field names, with the overlay's own fields beside them.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from overlay.config.consumer import JETSTREAM_FIELDS, ConsumerConfig
from overlay.config.document import Document, Path
from overlay.config.ends import LogEnds
from overlay.config.problems import validate
from overlay.config.wire import to_wire
from overlay.errors import ConfigError, FilePosition
from overlay.output.record import Record
from overlay.units import INT64_MAX, format_time, parse_time

VERSION = 1
MAX_KEY = 1_000
"""Most bytes of a key. It holds two names of at most 255 characters, or the id of a request, which
its answer and its tombstone repeat."""
MAX_VALUE = 1 << 20
"""Most bytes of a value. A parsed value takes up to 25 times its size in memory."""
DEEPEST = 50
"""Most levels of nesting in a value. Configs have six at most, and they are walked by recursion."""

ConsumerId = tuple[str, str]


class Subject(enum.StrEnum):
    """What a record is about: the first word of its key."""

    CONSUMER = "consumer"
    PAUSE = "pause"
    WORKER = "worker"
    REQUEST = "request"


class Origin(enum.StrEnum):
    """Where a definition comes from."""

    FILE = "file"
    REQUEST = "request"


@dataclass(frozen=True, slots=True)
class Definition:
    """A consumer's config with its defaults filled in.

    `created`: ns since 1970; `is_deleted`: its state is still to be dropped; `ends`: the ends of
    the stream's logs at creation, None if the deliver policy does not depend on them or Kafka did
    not tell. `makes_output`: the overlay makes the temporary output topic, or has made it, and may
    delete it.
    """

    config: ConsumerConfig
    created: int
    origin: Origin = Origin.REQUEST
    is_deleted: bool = False
    ends: LogEnds | None = None
    makes_output: bool = False

    @property
    def id(self) -> ConsumerId:
        return self.config.id


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause of a consumer by request. `until`: ns since 1970; None: it is not paused, whatever
    its definition says.
    """

    until: int | None


class Misfit(enum.StrEnum):
    """Why a record of the control topic is passed over; the `reason` label of
    `overlay_control_records_unreadable_total`."""

    KEY = "key"
    SIZE = "size"
    JSON = "json"
    DEPTH = "depth"
    VERSION = "version"
    FORM = "form"
    BATCH = "batch"  # a whole batch, which cannot be decoded
    RECORDS = "records"  # a whole batch, which has too many records


class Unreadable(ValueError):
    """A record that this version cannot make sense of. `misfit`: why."""

    def __init__(self, message: str, misfit: Misfit = Misfit.FORM) -> None:
        super().__init__(message)
        self.misfit = misfit


def split_key(key: bytes | None) -> tuple[Subject, tuple[str, ...]]:
    """Return what kind of record a key is for, and the names in it: stream and consumer, the name of a
    worker, or the id of a request. Raises Unreadable.
    """
    if key is not None and len(key) > MAX_KEY:
        raise Unreadable(f"a key of {len(key)} bytes; the control topic's have at most {MAX_KEY}", Misfit.KEY)
    try:
        word, *names = (key or b"").decode().split(" ")
        subject = Subject(word)
    except ValueError as error:
        raise Unreadable(f"not a key of the control topic: {key!r}", Misfit.KEY) from error
    if len(names) != (1 if subject in (Subject.REQUEST, Subject.WORKER) else 2) or not all(names):
        raise Unreadable(f"not a key of the control topic: {key!r}", Misfit.KEY)
    return subject, tuple(names)


def make_key(subject: Subject, *names: str) -> bytes:
    """Return the key of a record of the control topic: the word of `subject` and `names`, joined by
    spaces. `names`: as `split_key` returns them; they are not checked.
    """
    return " ".join((subject, *names)).encode()


def write_definition(definition: Definition) -> Record:
    """Return the record of a definition."""
    body: dict[str, Any] = {
        "v": VERSION,
        "origin": definition.origin,
        "created": format_time(definition.created),
        "config": write_config(definition.config),
    }
    if definition.is_deleted:
        body["deleted"] = True
    if definition.ends is not None:
        body["ends"] = definition.ends.topics
    if definition.makes_output:
        body["makes_output"] = True
    return Record(make_key(Subject.CONSUMER, *definition.id), write_json(body))


def read_definition(id: ConsumerId, value: bytes) -> Definition:
    """Return the definition in the value of consumer `id`'s record. Raises Unreadable, also if it
    is that of another consumer.
    """
    body = read_json(value)
    try:
        config = read_config(id[0], body["config"])
        created, origin, ends = parse_time(body["created"]), Origin(body["origin"]), body.get("ends")
        found = Definition(
            config,
            created,
            origin,
            bool(body.get("deleted")),
            None if ends is None else _read_ends(ends),
            body.get("makes_output") is True,
        )
    except (AttributeError, KeyError, TypeError, ValueError, ArithmeticError, ConfigError) as error:
        raise Unreadable(f"the definition of {'/'.join(id)} cannot be read: {error}") from error
    if found.id != id:
        raise Unreadable(f"the definition of {'/'.join(id)} is one of {'/'.join(found.id)}")
    return found


def _read_ends(ends: Mapping[str, Any]) -> LogEnds:
    for offset in (offset for _, offsets in ends.values() for offset in offsets):
        if type(offset) is not int or not 0 <= offset <= INT64_MAX:
            raise ValueError(f"{offset!r} is no offset")
    return LogEnds({topic: (str(identity), tuple(offsets)) for topic, (identity, offsets) in ends.items()})


def write_pause(id: ConsumerId, pause: Pause) -> Record:
    """Return the record of a pause."""
    until = None if pause.until is None else format_time(pause.until)
    return Record(make_key(Subject.PAUSE, *id), write_json({"v": VERSION, "pause_until": until}))


def read_pause(value: bytes) -> Pause:
    """Return the pause in a record's value. Raises Unreadable."""
    try:
        until = read_json(value)["pause_until"]
        return Pause(None if until is None else parse_time(until))
    except Unreadable:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise Unreadable(f"a pause that cannot be read: {value[:80]!r}") from error


def write_drain(worker: str, boot: str) -> Record:
    """Return the record that a worker is drained. `boot`: the id of the start of its process that is meant."""
    return Record(make_key(Subject.WORKER, worker), write_json({"v": VERSION, "drained": boot}))


def read_drain(value: bytes) -> str:
    """Return which start of a worker is drained, as its `boot`, from a record's value. Raises Unreadable."""
    boot = read_json(value).get("drained")
    if not isinstance(boot, str) or not boot:
        raise Unreadable(f"a drained worker without its start: {value[:80]!r}")
    return boot


def write_config(config: ConsumerConfig) -> dict[str, object]:
    """Return a config as JSON, without the name of the stream: JetStream's fields as `to_wire` writes
    them, and those of the overlay's own that differ from their defaults."""
    own = set(ConsumerConfig.model_fields) - {"stream", *JETSTREAM_FIELDS}
    return to_wire(config) | config.model_dump(mode="json", include=own, exclude_defaults=True)


def read_config(stream: str, config: object) -> ConsumerConfig:
    """Return the config in a JSON object. Fields that are null count as missing, and what is missing
    gets the default of its type, not yet the one that a server sets (`fill_defaults`). Durations may
    be texts, as in files.

    `stream`: the stream that the config may leave out. Raises ConfigError with the first unknown
    field or value of a wrong type, also if the config names another stream. JetStream's rules are
    not checked.
    """
    if not isinstance(config, dict):
        raise ConfigError(FilePosition("config"), "is not an object. Write the consumer's fields into it")
    given = {name: value for name, value in config.items() if value is not None}
    if given.setdefault("stream", stream) != stream:
        raise ConfigError(
            FilePosition("config"), f"names stream {given['stream']!r}, the request {stream!r}", field="stream"
        )
    data = _freeze(given)
    assert isinstance(data, dict)
    document = Document("config", data, dict.fromkeys(_walk(data, ()), FilePosition("config")), {})
    found, problems = validate(ConsumerConfig, document)
    if found is None:
        raise problems[0]
    return found


def write_json(body: Mapping[str, object]) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()


def read_json(value: bytes) -> dict[str, Any]:
    """Return the JSON object in a value. Raises Unreadable if the value is not a JSON object, is too
    large, is nested too deeply, or has another version in `v`; without `v` it has the present one.
    """
    if len(value) > MAX_VALUE:
        raise Unreadable(f"has {len(value)} bytes; the control topic's values have at most {MAX_VALUE}", Misfit.SIZE)
    try:
        body = json.loads(value)
        # an escape can produce half of a surrogate pair, which cannot be hashed, sent or printed
        json.dumps(body, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"is not JSON: {error}", Misfit.JSON) from error
    if not isinstance(body, dict):
        raise Unreadable("is not a JSON object", Misfit.JSON)
    if _measure(body) > DEEPEST:
        raise Unreadable(f"is nested more than {DEEPEST} levels deep", Misfit.DEPTH)
    if body.get("v", VERSION) != VERSION:
        raise Unreadable(f"is of version {body['v']}; this overlay reads version {VERSION}", Misfit.VERSION)
    return body


def _measure(value: object) -> int:
    """Return how many levels a JSON value has; 1 for a plain value. Not recursive, since a deep
    value would exceed the recursion limit.
    """
    level, depth = [value], 0
    while level:
        nested = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list)]
        level, depth = [item for items in nested for item in items], depth + 1
    return depth


def _freeze(value: object) -> object:
    """Return a value with lists as tuples, which configs hold."""
    if isinstance(value, dict):
        return {name: _freeze(item) for name, item in value.items()}
    return tuple(map(_freeze, value)) if isinstance(value, list | tuple) else value


def _walk(value: object, path: Path) -> list[Path]:
    """Return the path of a nested value, which is `path`, and the paths of all values in it."""
    found = [path]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, tuple) else ()
    for step, item in items:
        found += _walk(item, (*path, step))
    return found
