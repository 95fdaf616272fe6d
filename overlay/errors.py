"""One tree of errors, split by who has to act.

Every message says what happened, where (file:line:column, or topic-partition@offset) and what to do about it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial


class OverlayError(Exception):
    """Root of everything the overlay raises on purpose."""


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where in a file: line and column count from 1; 0 means the file as a whole."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


class ConfigError(OverlayError):
    """A config file says something it may not. The author of the file acts."""

    def __init__(self, place: Place, message: str, *, field: str = "", code: int | None = None) -> None:
        self.place, self.message, self.field, self.code = place, message, field, code
        where = f"{place}: {field}: " if field else f"{place}: "
        super().__init__(where + message)


class SubjectError(OverlayError, ValueError):
    """A subject, pattern or subject template breaks the rules of facts/jetstream h. The author acts."""


class FilterSyntaxError(OverlayError, ValueError):
    """A filter that says nothing the overlay understands. Its author acts; nothing runs with it.

    SQL has `line` and `column` (from 1; of the expression, not of a file around it) and an `excerpt`: the line in
    question with carets under the place. A property filter has a `path` instead: the keys down to the entry. `message`
    is one sentence, `hint` says what to write or is empty. The error's text holds them all, on several lines.
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
        # errors travel between processes (Spark, multiprocessing), and Python would make them again from the text alone
        known = {name: getattr(self, name) for name in ("line", "column", "hint", "excerpt", "path")}
        return partial(FilterSyntaxError, self.message, **known), ()


class CorruptBatch(OverlayError):
    """Bytes of the log that cannot be read. The partition stops there unless the stream says `on_corrupt: skip`."""

    def __init__(self, topic: str, partition: int, offset: int, reason: str) -> None:
        self.topic, self.partition, self.offset, self.reason = topic, partition, offset, reason
        super().__init__(
            f"{topic}-{partition}@{offset}: {reason}. Set `on_corrupt: skip` in the stream's file to pass over it (counted)"
        )


class SourceUnavailable(OverlayError):
    """Kafka cannot be reached or cannot answer now. Nobody acts: the caller tries again with backoff."""


class SourceChanged(OverlayError):
    """The log is not the one the state was written for: recreated, truncated or grown. The operator acts.

    `stream`: which stream has to stop, where that is known.
    """

    def __init__(self, message: str, stream: str = "") -> None:
        self.stream = stream
        super().__init__(message)


class CredentialsRefused(OverlayError):
    """Kafka refused to authenticate or authorise us. The operator acts; trying again does not help."""


class Fenced(OverlayError):
    """Another worker owns this shard now. The worker lets go and writes nothing more."""


class DeliveryFailed(OverlayError):
    """An output topic refused a batch. The transaction is aborted; the consumer concerned is marked stalled.

    `final`: whether trying again cannot help. `consumer`: stream and name, when it is the fault of one only. `topics`: all
    topics that refused at the same time, `topic` among them.
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
    """The embedded broker could not be fetched, started or reached. The message says which and what to do."""
