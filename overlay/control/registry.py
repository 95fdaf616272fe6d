"""The registry: which consumers there are, by the files of the folder and by the control topic.

Both count, and a file takes precedence over a definition of the same name. A file's definition is
written to the topic for one purpose. If a file differs from what was last taken up, it is an
update; if JetStream's rules forbid the update, the consumer stays as it was
(docs/jetstream.md#updates). The same holds for a file that becomes unreadable while the service
runs. A consumer whose file was removed is not served. Its definition stays, with its state, until
both are removed.

What the registry has of the topic comes from the topic's records, in order, and from nothing else.
A worker that writes a definition sees it here when it has read the record back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

from overlay.config import ConsumerConfig, Loaded, Profile, check_consumer, check_update, find_cycle
from overlay.config.codes import ERRORS
from overlay.config.consumer import AckPolicy
from overlay.config.document import Path, show_path
from overlay.config.filters import check_filter
from overlay.config.loader import check_own, word_violation
from overlay.errors import ConfigError, FilePosition
from overlay.kafka.own_topics import control_topic
from overlay.replies.reply_address import make_rule

from .open_requests import find_copied
from .records import (
    ConsumerId,
    Definition,
    Misfit,
    Origin,
    Pause,
    Subject,
    Unreadable,
    read_definition,
    read_drain,
    read_pause,
    split_key,
)
from .requests import Request, RequestRefusal, parse_request, refuse, refuse_violation

K = TypeVar("K")
T = TypeVar("T")

PENDING_BYTES = 8 << 20
"""Most characters of all requests without an answer. A parsed one takes up to 25 times as much memory."""

MOST_COPIED = 100
"""Most requests topics of which is known how far they were copied. There is one at a time, but a writer of the
control topic can name others."""


class _Followed(NamedTuple):
    """A file's consumer beside the topic's definition and the ack policy of its state: the config to
    serve, and what is refused."""

    known: Definition | None
    config: ConsumerConfig
    kept: AckPolicy | None
    taken: ConsumerConfig
    refused: list[ConfigError]


@dataclass(slots=True)
class Registry:
    """The consumers that are defined by the folder's files and by the control topic, and the open
    requests. `take` adds a record of the topic, `reload` replaces the files; `effective` returns
    what is to be served.
    """

    files: Loaded
    definitions: dict[ConsumerId, Definition] = field(default_factory=dict)
    pauses: dict[ConsumerId, Pause] = field(default_factory=dict)
    drained: dict[str, str] = field(default_factory=dict)
    """Workers that are drained, by name, and which of their starts is meant."""
    requests: dict[str, Request] = field(default_factory=dict)
    """Requests without an answer by id, in their order."""
    copied: dict[str, int] = field(default_factory=dict)
    """The offset of the last open request that was copied or refused (open_requests.py), by Kafka's id of
    the requests topic, which changes if that is created again. The last MOST_COPIED of these topics."""
    lapsed: set[ConsumerId] = field(default_factory=set)
    """Consumers of files that inactive_threshold has ended; they return at the next start."""
    kept_policies: dict[ConsumerId, AckPolicy] = field(default_factory=dict)
    """The ack policies with which consumers were delivered whose configs say another one."""
    foreign: int = 0
    """Number of records that were skipped."""
    fault: str = ""
    misfit: Misfit = Misfit.FORM
    """Why the last of them was skipped."""
    _pending: int = 0
    """Length of the texts of `requests`."""
    _whole: int = 0
    """How many of `requests` are not refused for being too many."""
    _effective: Loaded | None = None
    _made: Counter[str] | None = None
    _judged: dict[ConsumerId, tuple[ConsumerConfig, RequestRefusal | None]] = field(default_factory=dict)
    """What is wrong, by the present files, with the definitions that only the topic has: the config that was judged, and the
    refusal."""
    _followed: dict[ConsumerId, _Followed] = field(default_factory=dict)
    """How the present files' consumers follow the topic."""

    @property
    def is_half_full(self) -> bool:
        """Whether at least half as many requests wait as may wait, or at least half as much text."""
        return 2 * self._whole >= self.files.service.requests.pending or 2 * self._pending >= PENDING_BYTES

    @property
    def made(self) -> Counter[str]:
        """How many consumers of each stream were made by request, without those that are deleted."""
        if self._made is None:
            found = self.definitions.values()
            self._made = Counter(each.id[0] for each in found if each.origin is Origin.REQUEST and not each.is_deleted)
        return self._made

    @property
    def prefix(self) -> str:
        """The prefix of the overlay's own topics."""
        return self.files.service.topics.prefix

    def take(
        self, key: bytes | None, value: bytes | None, find_header: Callable[[str], bytes | None], timestamp: int
    ) -> Subject | None:
        """Apply one record of the control topic. A null value removes what the key names.

        Return what kind of record it was, or None if it cannot be read; then it is counted in
        `foreign`. `find_header`: returns the last value of a header or None. `timestamp`: of the
        record, ms since 1970.
        """
        try:
            subject, names = split_key(key)
            # a request, or the tombstone that ends it
            if subject is Subject.REQUEST:
                (id,) = names
                self._note_copied(id)
                if (ended := self.requests.pop(id, None)) is not None:
                    self._pending -= len(ended.text)
                    self._whole -= not ended.is_excess
                if value is not None:
                    self._keep(parse_request(id, value, find_header, timestamp, make_rule(self.files.service.topics)))
                return subject
            if subject is Subject.WORKER:
                _put(self.drained, names[0], None if value is None else read_drain(value))
                return subject
            # a definition or a pause, or the tombstone of one
            consumer = names[0], names[1]
            self._effective = self._made = None
            if subject is Subject.PAUSE:
                _put(self.pauses, consumer, None if value is None else read_pause(value))
            else:
                _put(self.definitions, consumer, None if value is None else read_definition(consumer, value))
        except Unreadable as error:
            self._pass_over(str(error), error.misfit)
            return None
        except Exception as error:  # noqa: BLE001 - every worker reads the record at every start, and would fail
            self._pass_over(f"{type(error).__name__}: {error}", Misfit.FORM)
            return None
        return subject

    def _note_copied(self, id: str) -> None:
        """Note how far open requests were copied, if the request `id` is such a copy."""
        if (found := find_copied(id)) is not None:
            topic_id, offset = found
            # the topic that was noted last comes last
            self.copied[topic_id] = max(self.copied.pop(topic_id, -1), offset)
            if len(self.copied) > MOST_COPIED:
                del self.copied[next(iter(self.copied))]

    def _keep(self, request: Request) -> None:
        """Keep a request until it has an answer. If too many wait, keep only what is needed to refuse it."""
        most = self.files.service.requests.pending
        if self._whole >= most or self._pending + len(request.text) > PENDING_BYTES:
            request = request.shorten()
        self._pending += len(request.text)
        self._whole += not request.is_excess
        self.requests[request.id] = request

    def _pass_over(self, reason: str, misfit: Misfit) -> None:
        """Count a record that is skipped, and keep the reason in `fault` and `misfit`."""
        self.foreign += 1
        self.fault, self.misfit = reason, misfit

    def reload(self, files: Loaded) -> None:
        """Replace the configs of the files. A consumer whose file cannot be read any more keeps its
        config, as long as its stream is there.
        """
        self._effective = None
        self._judged.clear()
        self._followed.clear()
        broken = {problem.place.file for problem in files.problems}
        kept = {
            id: config
            for id, config in self.files.consumers.items()
            if id not in files.consumers and id[0] in files.streams and self.files.files[id].file in broken
        }
        places: dict[str | ConsumerId, FilePosition] = {**files.files, **{id: self.files.files[id] for id in kept}}
        self.files = replace(files, consumers={**files.consumers, **kept}, files=places)

    def clear(self) -> None:
        """Forget all definitions, pauses, drained workers and requests of the topic, which is read
        again from its start.

        Consumers of files, and those of them that inactive_threshold has ended, stay: they did not
        come from the topic.
        """
        self._effective = self._made = None
        self.definitions.clear()
        self.pauses.clear()
        self.drained.clear()
        self.requests.clear()
        self.copied.clear()
        self._pending = self._whole = 0

    def lapse(self, id: ConsumerId) -> None:
        """Leave out a consumer of a file until the worker restarts: inactive_threshold has ended it."""
        self._effective = None
        self.lapsed.add(id)

    def keep_policies(self, found: Mapping[ConsumerId, AckPolicy]) -> bool:
        """Replace the noted ack policies by `found`: those in the state of this worker's consumers, where
        their configs say another one. Return whether that changes anything.

        The topic may have lost what it said of a file. Then a file that says another ack policy is
        taken up like a new one, and only the state can tell. A policy that the file says again is
        kept until the topic says it too.
        """
        kept = {id: policy for id, policy in self.kept_policies.items() if self._is_put_back(id, policy)}
        if (kept := {**kept, **found}) == self.kept_policies:
            return False
        self._effective, self.kept_policies = None, kept
        return True

    def _is_put_back(self, id: ConsumerId, policy: AckPolicy) -> bool:
        """Return whether a consumer's file says this ack policy, and its definition in the topic
        another one.
        """
        config, known = self.files.consumers.get(id), self.definitions.get(id)
        if config is None or known is None:
            return False
        return config.ack_policy is policy and known.config.ack_policy is not policy

    def effective(self) -> Loaded:
        """Return the configs that are to be served: the folder's, and the valid ones of consumers
        that were made by request and have no file, with pauses by request in their `pause_until`.
        Deleted and lapsed consumers are left out. `problems` says what is wrong with either. The
        result is cached until something changes.
        """
        if self._effective is None:
            self._effective = self._combine()
        return self._effective

    def _combine(self) -> Loaded:
        """Return the configs that `effective` caches. Definitions of the topic are checked in the
        order in which they were created, each beside those before it; one that fails becomes a
        problem.
        """
        found = replace(self.files, consumers={}, files=dict(self.files.files), ends={})
        problems = list(self.files.problems)
        judged: dict[ConsumerId, tuple[ConsumerConfig, RequestRefusal | None]] = {}
        for id, config in self.files.consumers.items():
            if id not in self.lapsed and not self._is_deleted(id):
                taken, refused = self._follow(id, config)
                found.consumers[id] = self._pause(taken)
                problems += refused
        for definition in sorted(self.definitions.values(), key=lambda d: (d.created, d.id)):
            if definition.origin is Origin.FILE or definition.is_deleted or definition.id in self.files.consumers:
                continue
            place = FilePosition(control_topic(self.prefix))
            # thousands of them are combined anew for a change of one
            known = self._judged.get(definition.id)
            if known is None or known[0] is not definition.config:
                known = definition.config, _judge(definition.config, found, find_own_fault)
            judged[definition.id] = known
            if refusal := known[1] or _judge(definition.config, found, find_cycle_fault):
                name = "/".join(definition.id)
                message = f"consumer {name} is not served: {refusal.description}: {refusal.hint}"
                problems.append(ConfigError(place, message, code=refusal.error.err_code))
            else:
                found.consumers[definition.id] = self._pause(definition.config)
                found.files[definition.id] = place
        self._judged = judged
        found.ends.update(
            (id, defined.ends)
            for id in found.consumers
            if (defined := self.definitions.get(id)) is not None and defined.ends is not None
        )
        return replace(found, problems=tuple(problems))

    def find_unwritten(self, now: int) -> Iterator[Definition]:
        """Yield the definitions that the topic still has to get, because a file's consumer is not
        in it or differs. Lapsed and deleted consumers, and those that `kept_policies` gives another ack
        policy, are left out. `now`: ns since 1970, the creation time of new consumers.
        """
        for id, config in self.files.consumers.items():
            if id in self.lapsed or self._is_deleted(id):
                continue
            taken, _ = self._follow(id, config)
            known = self.definitions.get(id)
            if taken.ack_policy is not self.kept_policies.get(id, taken.ack_policy):
                continue
            if known is None or (known.config, known.origin) != (taken, Origin.FILE):
                created, ends = (known.created, known.ends) if known else (now, None)
                is_made = (
                    known is not None and known.makes_output and known.config.deliver_subject == taken.deliver_subject
                )
                yield Definition(taken, created, Origin.FILE, ends=ends, makes_output=is_made)

    def find_deleted(self) -> list[ConsumerId]:
        """Return the consumers that are marked as deleted, whose state and records are still to be
        dropped.
        """
        return [id for id, definition in self.definitions.items() if definition.is_deleted]

    def find_created(self, id: ConsumerId) -> int:
        """Return when a consumer was created, ns since 1970; 0 if unknown."""
        known = self.definitions.get(id)
        return known.created if known else 0

    def find_origin(self, id: ConsumerId) -> Origin:
        """Return where a consumer that is to be served comes from: a file takes precedence over a request."""
        return Origin.FILE if id in self.files.consumers else Origin.REQUEST

    def _is_deleted(self, id: ConsumerId) -> bool:
        return id in self.definitions and self.definitions[id].is_deleted

    def _follow(self, id: ConsumerId, config: ConsumerConfig) -> tuple[ConsumerConfig, list[ConfigError]]:
        """Return the config with which a file's consumer is served, and errors if its file was
        changed in a way that JetStream's rules forbid. Then the config is the one last taken up,
        otherwise `config`; also `config` if only the state (`kept_policies`) shows the change.
        """
        known, kept = self.definitions.get(id), self.kept_policies.get(id)
        followed = self._followed.get(id)
        # a change of one of thousands compares no others anew
        if (
            followed is None
            or followed.known is not known
            or followed.config is not config
            or followed.kept is not kept
        ):
            taken, refused = self._compare(id, config, known, kept)
            followed = self._followed[id] = _Followed(self.definitions.get(id), config, kept, taken, refused)
        return followed.taken, followed.refused

    def _compare(
        self, id: ConsumerId, config: ConsumerConfig, known: Definition | None, kept: AckPolicy | None
    ) -> tuple[ConsumerConfig, list[ConfigError]]:
        """Return what `_follow` does. `known`: the topic's definition; `kept`: the ack policy of the
        state, if the config has said another one; it stays until the topic says it too, so a file
        that was put back says the same. None otherwise.
        """
        place = self.files.files[id]
        if kept is not None and (known is None or known.config.ack_policy is not kept):
            # the topic has lost what it said before, and may have been given what the file says now
            message = (
                f"the consumer was delivered with {kept}. Put that back, or run `overlay consumer rm {' '.join(id)}`"
            )
            is_same = config.ack_policy is kept
            return config, [] if is_same else [ConfigError(place, message, field="ack_policy", code=10012)]
        if known is None:
            return config, []
        if known.config == config:
            # one object for both: thousands of configs take megabytes
            self.definitions[id] = replace(known, config=config)
            return config, []
        violations = list(check_update(known.config, config))
        refused = [
            ConfigError(
                place, f"{word_violation(found)}. It runs as it was", field=found.field, code=found.error.err_code
            )
            for found in violations
        ]
        return (known.config, refused) if refused else (config, [])

    def _pause(self, config: ConsumerConfig) -> ConsumerConfig:
        """Return a config with the consumer's pause in it, if it has one."""
        if config.id not in self.pauses:
            return config
        return config.model_copy(update={"pause_until": self.pauses[config.id].until})


def find_fault(config: ConsumerConfig, loaded: Loaded) -> RequestRefusal | None:
    """Return a refusal for the first thing that is wrong with a requested consumer's config, None
    if nothing is.

    `loaded`: the configs beside which it would be served.
    """
    return find_own_fault(config, loaded) or find_cycle_fault(config, loaded)


def find_own_fault(config: ConsumerConfig, loaded: Loaded) -> RequestRefusal | None:
    """Return a refusal as `find_fault` does, except that other consumers are not looked at: a cycle of
    topics is not found.
    """
    stream = loaded.streams.get(config.stream)
    if stream is None:
        return refuse(10059, f"there is no stream {config.stream!r} in {loaded.files[''].file}'s folder")
    for violation in check_consumer(config, stream.patterns, Profile.FILE, built=stream.subject.rule.patterns()):
        return refuse_violation(violation)
    for path, message in (*check_own(config, loaded.service.topics.prefix), *check_filter(config.filter, stream)):
        return refuse_field(path, message)
    return None


def find_cycle_fault(config: ConsumerConfig, loaded: Loaded) -> RequestRefusal | None:
    """Return a refusal if the consumer's output or dead-letter topic leads back to a topic of its stream,
    by the consumers of `loaded`; None otherwise.
    """
    way = find_cycle(loaded.streams, loaded.consumers, config)
    if way:
        return refuse(10081, f"the output leads back to the stream: {' -> '.join(way)}. Choose another output topic")
    return None


def _judge(
    config: ConsumerConfig, loaded: Loaded, find: Callable[[ConsumerConfig, Loaded], RequestRefusal | None]
) -> RequestRefusal | None:
    """Return the result of `find`, or a refusal if it raises an unexpected error. Otherwise this one
    config would end every worker.
    """
    try:
        return find(config, loaded)
    except Exception as error:  # noqa: BLE001 - as above
        return refuse(10012, "delete the consumer", err=f"cannot be judged: {type(error).__name__}: {error}")


def refuse_field(path: Path, message: str) -> RequestRefusal:
    """Return a refusal for a fault without a JetStream error of its own: the general one for
    consumers that cannot be created."""
    return RequestRefusal(ERRORS[10012], f"{show_path(path)} {message}")


def _put(entries: dict[K, T], id: K, entry: T | None) -> None:
    """Set an entry, or remove it if `entry` is None."""
    if entry is None:
        entries.pop(id, None)
    else:
        entries[id] = entry
