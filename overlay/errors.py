"""The tree of errors, divided by who has to act.

Every message says what happened, where (file:line:column, or topic-partition@offset) and what to do
about it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial


class OverlayError(Exception):
    """Base class of all errors that the overlay raises on purpose."""


@dataclass(frozen=True, slots=True, order=True)
class FilePosition:
    """A place in a file. Line and column count from 1. Line 0 means the whole file; the column then
    means nothing.
    """

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


class ConfigError(OverlayError):
    """A config file, or a config in a request, cannot be read or has a value that is not allowed.
    Its author has to act.

    `field`: the path to the value, such as `topics.prefix`; "" for the whole file. `code`: the
    error number that JetStream has for it, None if it has none.
    """

    def __init__(self, place: FilePosition, message: str, *, field: str = "", code: int | None = None) -> None:
        self.place, self.message, self.field, self.code = place, message, field, code
        where = f"{place}: {field}: " if field else f"{place}: "
        super().__init__(where + message)


class SubjectError(OverlayError, ValueError):
    """A subject, pattern, template or field of a record (field.py) is not written as
    docs/jetstream.md#names and docs/subjects.md want it. Its author has to act.
    """


class FilterSyntaxError(OverlayError, ValueError):
    """A filter that the overlay does not understand. Its author has to act; nothing runs with it.

    SQL has `line` and `column` (from 1; of the expression, not of a file around it) and an
    `excerpt`: the line in question with carets under the place. A property filter has a `path`
    instead: the keys down to the entry, and `line` is 0. `message` is one sentence, `hint` says
    what to write or is empty. The text of the error has all of them, on several lines.
    """

    def __init__(
        self,
        message: str,
        *,
        line: int = 0,
        column: int = 0,
        hint: str = "",
        excerpt: str = "",
        path: tuple[str, ...] = (),
    ) -> None:
        self.message, self.hint, self.excerpt = message, hint, excerpt
        self.line, self.column, self.path = line, column, path
        where = f"line {line}, column {column}: " if line else "".join(f"{key}: " for key in path)
        lines = (where + message, excerpt, f"hint: {hint}" if hint else "")
        super().__init__("\n".join(part for part in lines if part))

    def __reduce__(self) -> tuple[Callable[[], FilterSyntaxError], tuple[()]]:
        # Errors are sent between processes (Spark, multiprocessing), and by default Python would
        # rebuild them from the text alone.
        known = {name: getattr(self, name) for name in ("line", "column", "hint", "excerpt", "path")}
        return partial(FilterSyntaxError, self.message, **known), ()


class SchemaError(OverlayError, ValueError):
    """A schema of values is invalid, or does not have what is asked of it. The author of the
    schema, or of what names its fields, has to act.
    """


class CorruptBatch(OverlayError):
    """A batch of the log cannot be read. The partition stops there unless the stream sets
    `on_corrupt: skip`. `offset`: where the batch begins, or the offset in it that was wanted.
    """

    def __init__(self, topic: str, partition: int, offset: int, reason: str) -> None:
        self.topic, self.partition, self.offset, self.reason = topic, partition, offset, reason
        super().__init__(
            f"{topic}-{partition}@{offset}: {reason}. Set `on_corrupt: skip` in the stream's file to pass over it (counted)"
        )


class SourceUnavailable(OverlayError):
    """What was asked cannot be done now: Kafka cannot be reached or does not answer as it has to, a
    secret or certificate cannot be read, or a worker or client is ending. The caller tries again
    with backoff; a person has to act only if that does not help.
    """


class StateCut(SourceUnavailable):
    """The state partition of a shard has lost records that its owner had written. The owner aborts,
    and begins again from what is left.
    """


class StateKept(OverlayError):
    """The states of deleted consumers could not be dropped. Everything else of the change is in effect. The caller tries
    again; a person has to act only if that does not help.

    `reasons`: why not, by stream and name of the consumer; at least one.
    """

    def __init__(self, reasons: Mapping[tuple[str, str], str]) -> None:
        self.reasons = dict(reasons)
        (stream, name), reason = next(iter(self.reasons.items()))
        more = f" (and those of {len(self.reasons) - 1} more)" if len(self.reasons) > 1 else ""
        super().__init__(f"the state of consumer {stream}/{name}{more} could not be dropped: {reason}")


class SourceChanged(OverlayError):
    """The log is not the one that the state was written for (deleted, created anew, truncated),
    does not fit the config (a topic or partition that is not there, a ledger that is missing), has
    a batch that cannot be read in a topic of the overlay, or may not be read any more. The operator
    has to act. Partitions that were added are no reason: without a ledger they are left unread.

    `stream`: the stream that has to stop; "" if unknown.
    """

    def __init__(self, message: str, stream: str = "") -> None:
        self.stream = stream
        super().__init__(message)


class CredentialsRefused(OverlayError):
    """Kafka, or a service asked over HTTP, refused to authenticate or authorise this user. The operator
    has to act; trying again does not help.
    """


class Fenced(OverlayError):
    """Another process has taken over, or may have taken over, the shard for which this one writes,
    or the Spark job or a task of it. This one writes nothing more for it until it has taken it over
    again.
    """


class DeliveryFailed(OverlayError):
    """A topic that a transaction writes to, such as an output or an index topic, refused a batch,
    did not take it in time, may not be written to, or was deleted. The transaction is not
    committed, and the consumers or indexes concerned may be left out for a while.

    `final`: whether trying again cannot help. `consumer`: stream and name, if only one consumer is
    the cause. `topics`: all topics that refused at the same time, `topic` included.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        reason: str,
        *,
        final: bool,
        consumer: tuple[str, str] | None = None,
        topics: Iterable[str] = (),
    ) -> None:
        self.topic, self.partition, self.reason = topic, partition, reason
        self.final, self.consumer = final, consumer
        self.topics = frozenset((topic, *topics))
        super().__init__(f"{topic}-{partition}: {reason}")


class BrokerError(OverlayError):
    """The embedded broker could not be used as asked: it could not be downloaded, set up, started,
    reached or stopped, or its settings, folder or state do not allow it. The message says which,
    and what to do.
    """
