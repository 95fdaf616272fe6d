"""Lines of text as records for a topic: a JSON object a line, or a bare value a line. Pure."""

from __future__ import annotations

import base64
import contextlib
import enum
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from json import JSONDecodeError
from typing import IO

from overlay.config.suggestion import suggest
from overlay.errors import FilePosition, OverlayError
from overlay.units import INT64_MAX, parse_time
from overlay.view.members import read_members

MAX_LINE = 64 << 20
"""The longest line in bytes; a longer one is refused, and not held in memory."""
MEMBERS = ("key", "key_base64", "value", "value_base64", "headers", "timestamp", "partition")
_PLACES = {"subject", "sequence", "topic", "offset"}
"""What a line of `overlay read --format json` has besides: where the record was."""
_READ_LINE = {"topic", "offset", "headers"}
"""Members by which a line is known as one of `overlay read`."""

Headers = tuple[tuple[str, bytes | None], ...]


class BadLine(OverlayError):
    """A line that is no record. Its author has to act. The message begins with file and line."""

    def __init__(self, place: FilePosition, reason: str) -> None:
        super().__init__(f"{place}: {reason}")


class LineFormat(enum.StrEnum):
    """What a line is: a JSON object with the parts of a record, or the value itself."""

    JSON = "json"
    RAW = "raw"


@dataclass(frozen=True, slots=True)
class LineRecord:
    """A record to produce. `time_ms`: ms since 1970, None for the time at which it is sent.
    `partition`: None if the key decides.
    """

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    time_ms: int | None = None
    partition: int | None = None


@dataclass(frozen=True, slots=True)
class LineRules:
    """How lines are read. `partitions`: how many the topic has. `separator`: what stands between key
    and value of a raw line; None if raw lines have no key. `headers`: those that each record gets in
    front of its own. `partition`: for records that name none; None if their keys decide. `key_field`:
    the path of the JSON field of a raw line that becomes its key, such as `customer.country`; "" for
    none.
    """

    format: LineFormat
    partitions: int
    separator: bytes | None = None
    headers: Headers = ()
    partition: int | None = None
    key_field: str = ""

    def read(self, line: bytes) -> LineRecord:
        """Return the record that a line is. `line`: without its line feed. Raises ValueError if it is no record,
        which is a JSONDecodeError with the place if its JSON is misspelled or no object, and RecursionError if its
        JSON is nested too deep.
        """
        if self.format is LineFormat.JSON:
            return self._read_object(line)
        key, value = None, line
        if self.separator is not None:
            key, found, value = line.partition(self.separator)
            if not found:
                raise ValueError(f"there is no key: {self.separator.decode()!r} does not occur in it")
        if self.key_field:
            key = _read_key(line, self.key_field)
        return LineRecord(value, key, self.headers, None, self.partition)

    def _read_object(self, line: bytes) -> LineRecord:
        members, spelled = _parse(line)
        headers = (*self.headers, *_read_headers(members.get("headers")))
        partition = self.partition if members.get("partition") is None else self._check_partition(members["partition"])
        key, value = (_read_content(name, members, spelled) for name in ("key", "value"))
        return LineRecord(value, key, headers, _read_time(members.get("timestamp")), partition)

    def _check_partition(self, partition: object) -> int:
        if isinstance(partition, int) and not isinstance(partition, bool) and 0 <= partition < self.partitions:
            return partition
        raise ValueError(f"partition: the topic has partitions 0 to {self.partitions - 1}, and not {partition!r}")


@dataclass(slots=True)
class LineReader:
    """Reads the lines of files as records. `blank`: how many lines of blanks alone it has left out, in all files."""

    rules: LineRules
    blank: int = field(default=0, init=False)

    def read(self, name: str, file: IO[bytes]) -> Iterator[tuple[FilePosition, LineRecord]]:
        """Yield the place and the record of each line of a file. `name`: of the file, for messages.

        Lines of blanks alone are left out and counted. Raises BadLine for the first line that is no
        record.
        """
        number = 0
        while line := file.readline(MAX_LINE + 1):
            number += 1
            place = FilePosition(name, number, 1)
            if len(line) > MAX_LINE:
                raise BadLine(place, f"the line has more than {MAX_LINE >> 20} MiB. Records end with a line feed")
            if not line.strip():
                self.blank += 1
                continue
            try:
                record = self.rules.read(line.removesuffix(b"\n"))
            except JSONDecodeError as error:
                at = FilePosition(name, number, error.colno)
                raise BadLine(at, f"this is no JSON object: {error.msg}. {_hint(line)}") from None
            except RecursionError:
                raise BadLine(place, "its JSON is nested too deep") from None
            except ValueError as error:
                raise BadLine(place, str(error)) from None
            yield place, record


def _hint(line: bytes) -> str:
    """Return what to do about a line that does not parse."""
    if line.lstrip()[:1] == b"{":
        return "Each record is one line"
    return _SAY_RAW


_SAY_RAW = "If each line is a value by itself, say --format raw, and --key-field NAME to take keys from a field of it"


def _read_key(line: bytes, path: str) -> bytes:
    """Return the key of a line that is a JSON object: the text of its field `path`, or its number or boolean as it is
    spelled. Raises ValueError if the line is no such object, or has no such field, null or an object or array in it.
    """
    try:
        found: object = json.loads(line, parse_int=str, parse_float=str, parse_constant=str)
    except (ValueError, RecursionError):
        raise ValueError(f"there is no key {path!r}: the line is no JSON") from None
    for name in path.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    if isinstance(found, bool):
        return b"true" if found else b"false"
    if not isinstance(found, str):
        what = "has no such field, or null" if found is None else "has an object or an array there"
        raise ValueError(f"there is no key {path!r}: the value {what}")
    return _encode(path, found)


def _parse(line: bytes) -> tuple[dict[str, object], dict[str, str]]:
    """Return the members of a line by name, and how the line spells the value of each. In a line of `overlay read`,
    members that say where the record was are left out. Raises ValueError if the line is no JSON object in UTF-8, or
    has a member twice or one that is not in MEMBERS.
    """
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start + 1} is no UTF-8. Write bytes in base64, as value_base64") from None
    members: dict[str, object] = {}
    spelled: dict[str, str] = {}
    for name, raw, value in read_members(text):
        if name in members:
            raise ValueError(f"{name} stands there twice")
        members[name], spelled[name] = value, raw
    # where a record of another topic was says nothing of where it goes
    for name in members.keys() & _PLACES if members.keys() >= _READ_LINE else ():
        del members[name]
    for name in members:
        if name not in MEMBERS:
            near = suggest(name, MEMBERS)
            what = f"a record has no {name!r}, but {', '.join(MEMBERS)}.{near}"
            raise ValueError(f"{what} {_SAY_RAW}")
    return members, spelled


def _read_content(name: str, members: Mapping[str, object], spelled: Mapping[str, str]) -> bytes | None:
    """Return the key or the value (`name` says which): bytes in base64, a text, or any other JSON as it is spelled.
    None if it is null or not there. Raises ValueError if it is given in two ways, or is no valid base64 or text.
    """
    coded = f"{name}_base64"
    if members.get(coded) is not None:
        if members.get(name) is not None:
            raise ValueError(f"{name} and {coded} exclude each other")
        return _decode(coded, members[coded])
    content = members.get(name)
    if content is None:
        return None
    return _encode(name, content if isinstance(content, str) else spelled[name])


def _read_headers(given: object) -> Headers:
    """Return the headers of a record. `given`: an object of names and texts, or a list of objects with `name` and
    `value` or `value_base64`, in which a name may come twice; a value may be null. None for no headers. Raises
    ValueError for anything else.
    """
    if given is None:
        return ()
    if isinstance(given, dict):
        return tuple((_check_name(name), _read_header(name, value)) for name, value in given.items())
    if not isinstance(given, list):
        raise ValueError('headers: write {"NAME": "TEXT"}, or a list of {"name": "NAME", "value": "TEXT"}')
    return tuple(map(_read_pair, given))


def _read_pair(entry: object) -> tuple[str, bytes | None]:
    if not isinstance(entry, dict) or not entry.keys() <= {"name", "value", "value_base64"}:
        raise ValueError('headers: each of a list is {"name": "NAME", "value": "TEXT"}, or has value_base64')
    name = _check_name(entry.get("name"))
    if entry.get("value_base64") is not None:
        return name, _decode(f"header {name}", entry["value_base64"])
    return name, _read_header(name, entry.get("value"))


def _check_name(name: object) -> str:
    if not isinstance(name, str):
        raise ValueError(f"headers: the name of a header is a text, and not {name!r}")
    _encode("the name of a header", name)
    return name


def _read_header(name: str, value: object) -> bytes | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise ValueError(f"header {name}: write a text in double quotes, and not {value!r}")
    return _encode(f"header {name}", value)


def _read_time(given: object) -> int | None:
    """Return a time in ms since 1970; None for None. `given`: that number, or a text of RFC 3339. Raises ValueError
    for anything else, and for a time below 1 ms or beyond 64 bits.
    """
    if given is None:
        return None
    if isinstance(given, str):
        try:
            ms = parse_time(given) // 1_000_000
        except ValueError as error:
            raise ValueError(f"timestamp: {error}") from None
    elif isinstance(given, int) and not isinstance(given, bool):
        ms = given
    else:
        raise ValueError(f"timestamp: write RFC 3339 or ms since 1970, and not {given!r}")
    # to Kafka's client, 0 is the time of sending
    if not 0 < ms <= INT64_MAX:
        raise ValueError("timestamp: no time before 1970-01-01T00:00:00.001Z can be written")
    return ms


def _encode(what: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{what} has half of a surrogate pair, which is no text") from None


def _decode(what: str, coded: object) -> bytes:
    if isinstance(coded, str):
        with contextlib.suppress(ValueError):
            return base64.b64decode(coded, validate=True)
    raise ValueError(f"{what}: this is no base64")
