"""The status of a worker: one record of the topic `<prefix>.fleet`, as JSON. Pure.

A worker writes its status every few seconds. Each has all of the worker and its shards. Some have a part
of its consumers too: those that changed, and in turn the others, so that each is told within a minute.

Any client with Write on the topic chooses its bytes. So a record is refused, with the reason, unless it
is small, has the right types and values within their limits, names our prefix and has its worker's name
as its key. Members that are not known are passed over: a later version may add some. A change that
older readers would misunderstand gets another `v`.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from overlay.config.service import WORKER_NAME

VERSION = 1
EVERY_MS = 2_000
"""Time between two statuses of a worker, in ms."""
UNTOLD_EVERY_MS = 5_000
"""The same for a worker whose statuses do not tell it."""
MOST_BYTES = 512 << 10
"""Most bytes of a record."""
PACK_BYTES = 128 << 10
"""Bytes of consumers, and of streams, in one record that is written, as long as one is not larger by itself."""
MOST_CONSUMERS = 200
"""Most consumers that one record tells of."""
MOST_GONE = 500
"""Most deleted consumers that one record names."""
MOST_STREAMS = 100
"""Most streams that one record tells of."""
MOST_SHARDS = 1024
MOST_POSITIONS = 16
"""Most partitions with a position in a consumer's status. A consumer of more has none in it."""
MOST_CAUSES = 16
"""Most causes by which a consumer's status counts dead letters."""
DAY_MS = 86_400_000
MOST_TEXT = 300
_LARGEST = 2**63 - 1


class Refusal(enum.Enum):
    """Why a record of the topic is passed over. The values are labels of a metric."""

    SIZE = "size"
    """More than MOST_BYTES, or no value at all."""
    MALFORMED = "malformed"
    """Not JSON, or a value that is missing, of another type or beyond its limits."""
    VERSION = "version"
    """A version that is not known."""
    STRANGER = "stranger"
    """Another prefix, or a key that is not the worker's name."""
    PAST = "past"
    """Older than what is known of the worker, or of a clock that is more than a day behind Kafka's."""
    FUTURE = "future"
    """Of a clock that is more than a day ahead of Kafka's, or later than the reader's time by more than an hour."""
    LIMIT = "limit"
    """One worker, consumer or stream more than are kept."""


def clean(text: str, most: int = MOST_TEXT) -> str:
    """Return the first `most` characters of a text, with a space for each line break, control character
    and other character that is not printable, as a status may have it."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:most])


def _check_printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("a text has no control characters")
    return text


def _check_worker(text: str) -> str:
    if not WORKER_NAME.fullmatch(text):
        raise ValueError("not the name of a worker")
    return text


Count = Annotated[int, Field(ge=0, le=_LARGEST)]
Amount = Annotated[float, Field(ge=0, le=1e15)]
Text = Annotated[str, Field(max_length=MOST_TEXT), AfterValidator(_check_printable)]
Name = Annotated[str, Field(min_length=1, max_length=255), AfterValidator(_check_printable)]
Worker = Annotated[str, Field(max_length=100), AfterValidator(_check_worker)]


class Part(BaseModel):
    """The base of a status and its parts: immutable, with strict types; members that are not known are
    passed over."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", allow_inf_nan=False)


class ShardStatus(Part):
    """A shard that the worker owns, and whether it is served."""

    number: Annotated[int, Field(ge=0, lt=MOST_SHARDS)]
    ready: bool = True
    reason: Text = ""
    """Why it is not ready."""


class ConsumerStatus(Part):
    """A consumer that the worker serves. `rate`: records a second. `lag_s`: how many seconds it is
    behind its stream, 0 if unknown.
    """

    stream: Name
    name: Name
    state: Name
    """As `overlay consumer ls` shows it: running, catching up, parked, paused, starting, stalled, stopped, waiting."""
    reason: Text = ""
    """Why it is parked, stalled, stopped or waiting, or until when it is paused."""
    sequence: Count = 0
    """The last consumer sequence."""
    delivered: Count = 0
    """Since the worker started."""
    rate: Amount = 0.0
    lag: Count | None = None
    """Offsets up to the end of its topics, None if unknown."""
    lag_s: Amount = 0.0
    pending: Count | None = None
    """Matching records to come, None if unknown."""
    pending_is: Text = ""
    """What `pending` is worth: exact, estimate, at least."""
    unacked: Count = 0
    redelivered: Count = 0
    dead_letters: Annotated[dict[Name, Count], Field(max_length=MOST_CAUSES)] = Field(default_factory=dict)
    """Messages that were given up since the worker started, by cause: max_deliver, term, undeliverable."""
    positions: Annotated[dict[Name, Count], Field(max_length=MOST_POSITIONS)] = Field(default_factory=dict)
    """The next offset by partition, such as `flights-0`."""

    @property
    def id(self) -> str:
        """Stream and name with a slash between."""
        return f"{self.stream}/{self.name}"

    @property
    def is_busy(self) -> bool:
        """Whether the status may change without a delivery: the consumer has a lag, waits for acks, or is not in the
        state `running`.
        """
        # it has more to read, waits for acks, or does not run
        return bool(self.lag) or bool(self.unacked) or self.state != "running"


class StreamStatus(Part):
    """A stream that the worker reads, or whose chunk index it keeps."""

    name: Name
    topic: Text = ""
    """Its topics, with commas between."""
    partitions: Count = 0
    """How many are read, 0 if unknown."""
    state: Name
    """running, idle (nothing reads it), waiting (for a transaction in its ledger) or stopped."""
    reason: Text = ""
    """Why it is stopped or waits."""
    rate: Amount = 0.0
    """Records a second that the worker reads for the first time."""
    lag: Count | None = None
    """Offsets from the worker's foremost cursors to the ends of the partitions, None if unknown."""
    index: Text = ""
    """running or stopped: the chunk index; empty if the worker does not keep it."""
    index_lag: Count | None = None
    """Offsets that the index is behind the log, None if the worker does not keep it."""

    @property
    def is_busy(self) -> bool:
        """Whether the status may change at any time: there is something to read, or something was read just now."""
        return bool(self.rate) or bool(self.lag) or bool(self.index_lag)


class WorkerStatus(Part):
    """What a status says of the worker itself, in every record."""

    prefix: Text
    """topics.prefix of the service."""
    worker: Worker
    boot: Text
    """A random text for each start of the process."""
    number: Count
    """Counts the records of one start."""
    started: Count
    """When the process started by its own clock, ms since 1970."""
    clock: Count
    """The worker's clock when it wrote this, ms since 1970."""
    every: Annotated[int, Field(ge=100, le=600_000)] = UNTOLD_EVERY_MS
    """When the next status will come at the latest, in ms."""
    version: Text
    """The version of the overlay."""
    digest: Text
    """Of the streams and consumers in the worker's files (overlay/config/identity.py)."""
    settings: Text = ""
    """Of the parts of its overlay.yaml that all workers have to agree on; empty if the worker does not tell them."""
    shard_count: Annotated[int, Field(ge=0, le=MOST_SHARDS)]
    trouble: Text = ""
    """Why it serves nothing, empty if it does."""
    leaving: bool = False
    """Whether this is its last status, since it was told to stop."""
    drained: bool = False
    """Whether it is to have no shards, as long as other workers want some."""
    served: Count = 0
    """How many consumers its shards have."""
    shards: Annotated[tuple[ShardStatus, ...], Field(max_length=MOST_SHARDS)] = ()
    generation: Count | None = None
    """Of the group of workers when it assigned these shards; None if it has assigned none, or the worker does not tell."""

    @model_validator(mode="after")
    def _check_shards(self) -> WorkerStatus:
        numbers = [shard.number for shard in self.shards]
        if len(set(numbers)) < len(numbers) or any(number >= self.shard_count for number in numbers):
            raise ValueError("each shard once, with a number below shard_count")
        return self


class Status(WorkerStatus):
    """One record of the fleet's topic: the worker, its shards, and some of its consumers and streams. `v`: the version
    of the record's form.
    """

    v: int = VERSION
    consumers: Annotated[tuple[ConsumerStatus, ...], Field(max_length=MOST_CONSUMERS)] = ()
    gone: Annotated[tuple[Name, ...], Field(max_length=MOST_GONE)] = ()
    """Consumers that do not exist any more, as stream/name."""
    streams: Annotated[tuple[StreamStatus, ...], Field(max_length=MOST_STREAMS)] = ()
    left: Annotated[tuple[Name, ...], Field(max_length=MOST_GONE)] = ()
    """Streams that the worker does not read any more."""


class _Head(Part):
    v: int
    prefix: str = ""


def encode(
    head: WorkerStatus,
    consumers: Sequence[ConsumerStatus],
    gone: Sequence[str],
    streams: Sequence[StreamStatus] = (),
    left: Sequence[str] = (),
) -> list[bytes]:
    """Return the values of the records that tell of a worker and these consumers and streams: at least one, more if
    they do not fit into one. The records' key is the worker's name.

    `gone`: deleted consumers, as stream/name. `left`: streams that the worker does not read any more. `head.number` is
    the number of the first record. What has its default is left out.
    """
    lists: dict[str, list[list[Any]]] = {
        "consumers": _pack(consumers, MOST_CONSUMERS),
        "gone": [list(gone[at : at + MOST_GONE]) for at in range(0, len(gone), MOST_GONE)],
        "streams": _pack(streams, MOST_STREAMS),
        "left": [list(left[at : at + MOST_GONE]) for at in range(0, len(left), MOST_GONE)],
    }
    own = head.model_dump(exclude_defaults=True)
    values = []
    for at in range(max(1, *map(len, lists.values()))):
        parts = {name: packs[at] for name, packs in lists.items() if at < len(packs)}
        body = {"v": VERSION, **own, "number": head.number + at, **parts}
        values.append(json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode())
    return values


def _pack(parts: Sequence[Part], most: int) -> list[list[dict[str, Any]]]:
    """Return parts as JSON objects, in lists of at most `most` of them and PACK_BYTES, or one object alone."""
    packs: list[list[dict[str, Any]]] = []
    filled = 0
    for part in parts:
        found = part.model_dump(exclude_defaults=True)
        size = len(json.dumps(found))
        if not packs or filled + size > PACK_BYTES or len(packs[-1]) == most:
            packs.append([])
            filled = 0
        packs[-1].append(found)
        filled += size
    return packs


def decode(key: bytes | None, value: bytes | None, prefix: str) -> Status | Refusal:
    """Return the status of a record, or why it is refused. Never raises.

    `prefix`: topics.prefix of the service that is looked at.
    """
    if not value or len(value) > MOST_BYTES:
        return Refusal.SIZE
    try:
        # the parser has a limit of its own for the depth, and reads no number beyond 64 bits into a count
        head = _Head.model_validate_json(value)
        if head.v != VERSION:
            return Refusal.VERSION
        if head.prefix != prefix:
            return Refusal.STRANGER
        status = Status.model_validate_json(value)
    except ValidationError:
        return Refusal.MALFORMED
    return status if key == status.worker.encode() else Refusal.STRANGER


def judge_time(status: Status, appended: int, now: int) -> Refusal | None:
    """Return FUTURE if the worker's clock in the status is more than a day ahead of `appended`, or
    `appended` more than an hour ahead of `now`; PAST if that clock is more than a day behind
    `appended`; else None. `appended`: Kafka's time on the record; `now`: the reader's; both ms since
    1970.
    """
    if status.clock > appended + DAY_MS or appended > now + DAY_MS // 24:
        return Refusal.FUTURE
    return Refusal.PAST if status.clock < appended - DAY_MS else None
