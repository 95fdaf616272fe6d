"""The book: which consumers there are, by the files of the folder and by the control topic.

Both count, and a file wins over a definition of the same name. What is written down of a file serves one purpose: a file that
says something else than when it was last taken up is an update, and an update that JetStream forbids leaves the consumer as
it was (facts/jetstream b). So does a file that has become unreadable while the service runs. A consumer whose file is gone is
not served; its definition stays with its state until both are removed.

The book is read from the topic's records in order, and from nothing else: whoever writes a definition sees it here when
it comes back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeVar

from overlay.config import ConsumerConfig, Loaded, Profile, check_consumer, check_update, find_cycles
from overlay.config.codes import ERRORS
from overlay.config.document import Path, show_path
from overlay.config.filters import check_filter
from overlay.config.load import check_own, word_violation
from overlay.dispatch.reply_address import make_rule
from overlay.errors import ConfigError, Place

from .records import (
    ConsumerId,
    Definition,
    Origin,
    Pause,
    Subject,
    Unreadable,
    control_topic,
    read_definition,
    read_pause,
    split_key,
)
from .requests import Refusal, Request, parse_request, refuse, refuse_violation

T = TypeVar("T")


@dataclass(slots=True)
class Registry:
    """Changes by `take` and `reload`; `effective` is what is to be served."""

    files: Loaded
    definitions: dict[ConsumerId, Definition] = field(default_factory=dict)
    pauses: dict[ConsumerId, Pause] = field(default_factory=dict)
    requests: dict[str, Request] = field(default_factory=dict)
    """Those without an answer, in their order."""
    lapsed: set[ConsumerId] = field(default_factory=set)
    """Consumers of files that inactive_threshold has ended; they come back with the next start."""
    foreign: int = 0
    """Records that were passed over."""
    fault: str = ""
    """Why the last of them was."""
    _effective: Loaded | None = None

    @property
    def prefix(self) -> str:
        return self.files.service.topics.prefix

    def take(
        self, key: bytes | None, value: bytes | None, find_header: Callable[[str], bytes | None], timestamp: int
    ) -> Subject | None:
        """Take in a record; what it was about, None for one that was passed over. `timestamp`: ms."""
        try:
            subject, names = split_key(key)
            if subject is Subject.REQUEST:
                (id,) = names
                self.requests.pop(id, None)
                if value is not None:
                    self.requests[id] = parse_request(
                        id, value, find_header, timestamp, make_rule(self.files.service.topics)
                    )
                return subject
            consumer = names[0], names[1]
            self._effective = None
            if subject is Subject.PAUSE:
                _put(self.pauses, consumer, None if value is None else read_pause(value))
            else:
                _put(self.definitions, consumer, None if value is None else read_definition(consumer, value))
        except Unreadable as error:
            self._pass_over(str(error))
            return None
        except Exception as error:  # noqa: BLE001 - every worker reads the record at every start, and would end there
            self._pass_over(f"{type(error).__name__}: {error}")
            return None
        return subject

    def _pass_over(self, reason: str) -> None:
        self.foreign += 1
        self.fault = reason

    def reload(self, files: Loaded) -> None:
        """The folder has changed. What was sound and is not any more goes on as it was."""
        self._effective = None
        broken = {problem.place.file for problem in files.problems}
        kept = {
            id: config
            for id, config in self.files.consumers.items()
            if id not in files.consumers and id[0] in files.streams and self.files.files[id].file in broken
        }
        places: dict[str | ConsumerId, Place] = {**files.files, **{id: self.files.files[id] for id in kept}}
        self.files = replace(files, consumers={**files.consumers, **kept}, files=places)

    def clear(self) -> None:
        """Forget what the topic has said: it is read anew from its start. What files say, and that a consumer of a file has
        ended, did not come from there."""
        self._effective = None
        self.definitions.clear()
        self.pauses.clear()
        self.requests.clear()

    def lapse(self, id: ConsumerId) -> None:
        """A consumer of a file has ended by inactive_threshold."""
        self._effective = None
        self.lapsed.add(id)

    def effective(self) -> Loaded:
        """The folder's configs with the consumers of the topic among them, and what is wrong with either in `problems`."""
        if self._effective is None:
            self._effective = self._combine()
        return self._effective

    def _combine(self) -> Loaded:
        found = replace(self.files, consumers={}, files=dict(self.files.files), ends={})
        problems = list(self.files.problems)
        for id, config in self.files.consumers.items():
            if id not in self.lapsed and not self._is_deleted(id):
                taken, refused = self._follow(id, config)
                found.consumers[id] = self._pause(taken)
                problems += refused
        for definition in sorted(self.definitions.values(), key=lambda d: (d.created, d.id)):
            if definition.origin is Origin.FILE or definition.is_deleted or definition.id in self.files.consumers:
                continue
            place = Place(control_topic(self.prefix))
            if refusal := _judge(definition.config, found):
                name = "/".join(definition.id)
                message = f"consumer {name} is not served: {refusal.description}: {refusal.hint}"
                problems.append(ConfigError(place, message, code=refusal.error.err_code))
            else:
                found.consumers[definition.id] = self._pause(definition.config)
                found.files[definition.id] = place
        found.ends.update(
            (id, known.ends)
            for id in found.consumers
            if (known := self.definitions.get(id)) is not None and known.ends is not None
        )
        return replace(found, problems=tuple(problems))

    def find_unwritten(self, now: int) -> Iterator[Definition]:
        """Definitions of files as they are taken up now, where the topic says otherwise. `now`: ns, of new ones."""
        for id, config in self.files.consumers.items():
            if id in self.lapsed or self._is_deleted(id):
                continue
            taken, _ = self._follow(id, config)
            known = self.definitions.get(id)
            if known is None or (known.config, known.origin) != (taken, Origin.FILE):
                created, ends = (known.created, known.ends) if known else (now, None)
                yield Definition(taken, created, Origin.FILE, ends=ends)

    def find_deleted(self) -> list[ConsumerId]:
        """Consumers whose state is to be forgotten."""
        return [id for id, definition in self.definitions.items() if definition.is_deleted]

    def find_created(self, id: ConsumerId) -> int:
        """When a consumer was made, ns since 1970; 0 where nobody wrote it down."""
        known = self.definitions.get(id)
        return known.created if known else 0

    def _is_deleted(self, id: ConsumerId) -> bool:
        return id in self.definitions and self.definitions[id].is_deleted

    def _follow(self, id: ConsumerId, config: ConsumerConfig) -> tuple[ConsumerConfig, list[ConfigError]]:
        """What counts of a file: what it says, or what it said before where the change is not allowed, and why."""
        known = self.definitions.get(id)
        if known is None or known.config == config:
            return config, []
        violations = list(check_update(known.config, config))
        place = self.files.files[id]
        refused = [
            ConfigError(
                place, f"{word_violation(found)}. It runs as it was", field=found.field, code=found.error.err_code
            )
            for found in violations
        ]
        return (known.config, refused) if refused else (config, [])

    def _pause(self, config: ConsumerConfig) -> ConsumerConfig:
        if config.id not in self.pauses:
            return config
        return config.model_copy(update={"pause_until": self.pauses[config.id].until})


def find_fault(config: ConsumerConfig, loaded: Loaded) -> Refusal | None:
    """The first thing that is wrong with a consumer that no file has; `loaded`: those that it would stand beside."""
    stream = loaded.streams.get(config.stream)
    if stream is None:
        return refuse(10059, f"there is no stream {config.stream!r} in {loaded.files[''].file}'s folder")
    for violation in check_consumer(config, stream.patterns, Profile.FILE):
        return refuse_violation(violation)
    for path, message in (*check_own(config, loaded.service.topics.prefix), *check_filter(config.filter, stream)):
        return refuse_field(path, message)
    way = find_cycles(loaded.streams, {**loaded.consumers, config.id: config}).get(config.id)
    if way:
        return refuse(10081, f"the output leads back to the stream: {' -> '.join(way)}. Choose another output topic")
    return None


def _judge(config: ConsumerConfig, loaded: Loaded) -> Refusal | None:
    """Return what `find_fault` does; an error in there is a fault of this one config, which every worker would meet."""
    try:
        return find_fault(config, loaded)
    except Exception as error:  # noqa: BLE001 - as above
        return refuse(10012, "delete the consumer", err=f"cannot be judged: {type(error).__name__}: {error}")


def refuse_field(path: Path, message: str) -> Refusal:
    """A fault that JetStream has no number for: its general one for consumers that cannot be made."""
    return Refusal(ERRORS[10012], f"{show_path(path)} {message}")


def _put(entries: dict[ConsumerId, T], id: ConsumerId, entry: T | None) -> None:
    if entry is None:
        entries.pop(id, None)
    else:
        entries[id] = entry
