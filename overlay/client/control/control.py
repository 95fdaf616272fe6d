"""Consumers without files: created, changed, inspected and deleted by request, as JetStream clients
do it.

    control = overlay.open("config-folder").control
    control.create("FLIGHTS", durable_name="late-jfk", deliver_subject="late-jfk", filter_subject="flights.JFK.>")
    control.info("FLIGHTS", "late-jfk").num_ack_pending

A service with the same `topics.prefix` answers (docs/control.md). A refusal is raised as an
exception, one for each of JetStream's errors (refusals.py).
"""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Unpack

from confluent_kafka import Message

from overlay.client.arguments import (
    CONSUMER_FIELDS,
    FILTER_WORDS,
    BadQuestion,
    Delay,
    check_names,
    check_wait,
    named,
    spell_filters,
    write_delay,
)
from overlay.clock import now_ns
from overlay.config import ConsumerConfig
from overlay.consumer.acks import Verb, cut_reason
from overlay.control import requests
from overlay.control.records import Subject as About
from overlay.control.records import make_key, write_config, write_json
from overlay.control.requests import Op
from overlay.errors import OverlayError
from overlay.kafka.header_names import CLIENT, TOKEN
from overlay.kafka.own_topics import acks_topic, control_topic, requests_topic, shard_of
from overlay.kafka.properties import Properties
from overlay.units import format_time

from .ack_tokens import find_token
from .answers import Pulled, PullFields, collect_pulled, read_answer, read_message
from .consumer_info import ConsumerInfo, check_filters, read_info
from .inbox import Inbox, NoAnswer, NoService, RequestRefused

TIMEOUT_S = 10.0
GATHER_S = 3.0
"""Seconds to wait for what other workers than the first say of their consumers."""
_NANOSECONDS = 1_000_000_000


class Control:
    """A client for requests to the service: about consumers, their messages, streams and workers.
    Threads may share it; their requests run one after the other.

    `timeout`: seconds to wait for an answer before NoAnswer is raised. `name`: the client's name in
    the service's audit records. `is_patient`: whether to wait while no service runs, since one may
    be about to start. Otherwise NoService is raised within about a second, and the request is
    withdrawn; an ack stays in its topic.

    Every request may raise NoAnswer, SourceUnavailable and CredentialsRefused, and BadQuestion if
    `timeout` is not a number.
    """

    def __init__(
        self,
        kafka: Properties,
        prefix: str = "overlay",
        *,
        timeout: float = TIMEOUT_S,
        name: str = "",
        is_patient: bool = True,
    ) -> None:
        self.prefix, self.timeout, self.name = prefix, timeout, name
        self._inbox = Inbox(kafka, prefix, is_patient=is_patient)
        self._topic = control_topic(prefix)
        """The topic that takes its requests."""
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close the connections. The next request opens new ones."""
        with self._lock:
            self._inbox.close()

    # consumers

    def create(
        self, stream: str, config: ConsumerConfig | Mapping[str, Any] | None = None, /, **fields: Any
    ) -> ConsumerInfo:
        """Create a consumer of `stream`, or update it if it exists. Return its info once it is
        served, or as it is after some seconds. Its fields are those of consumer files, such as
        durable_name; `fields` replace those of `config`. In `fields`, filters may be given by the
        words of Client.read: subjects, sql, properties, values, match_unfiltered.

        Raises Refused, NoAnswer, FiltersDiffer if the consumer got other filters, UnknownArgument for
        a keyword that is not a field, and ArgumentConflict for two that say the same. The keys of a
        mapping `config` are not checked, because the service may know more fields.
        """
        return self._define(Op.CREATE, "", stream, config, fields)

    def add(
        self, stream: str, config: ConsumerConfig | Mapping[str, Any] | None = None, /, **fields: Any
    ) -> ConsumerInfo:
        """Create a consumer as `create` does, but never update one. If it exists with the same
        config (`pause_until` apart), return its info; if it exists with another config, raise
        ConsumerAlreadyExists, a Refused. Raises otherwise as `create`.
        """
        return self._define(Op.CREATE, "create", stream, config, fields)

    def update(
        self, stream: str, config: ConsumerConfig | Mapping[str, Any] | None = None, /, **fields: Any
    ) -> ConsumerInfo:
        """Replace the config of an existing consumer, and return its info. Fields that are left out get
        their defaults, not their present values; but a pause stays as it is, whatever `pause_until`
        says (see `pause` and `resume`). Arguments and errors are those of `create`; raises
        ConsumerDoesNotExist, a Refused, if there is no such consumer.
        """
        return self._define(Op.UPDATE, "update", stream, config, fields)

    @named()
    def delete(self, stream: str, name: str) -> None:
        """Delete a consumer and its state, and return once that is done. Its output topic stays, also a temporary
        one: that is only deleted when `inactive_threshold` ends the consumer. Raises Refused if the consumer does not
        exist or a file defines it, NoAnswer.
        """
        self._ask(Op.DELETE, stream=stream, consumer=name)

    @named()
    def info(self, stream: str, name: str) -> ConsumerInfo:
        """Return the state and the config of a consumer, as the service reports them. Raises Refused if
        it does not exist, NoAnswer.
        """
        return read_info(self._ask(Op.INFO, stream=stream, consumer=name))

    @named()
    def consumers(self, stream: str = "") -> list[ConsumerInfo]:
        """Return the info of the consumers of all streams, or of one if `stream` is not empty, sorted by
        stream and name. Raises Refused if the service has no such stream.

        Each worker tells of the consumers of its shards. If one does not answer within GATHER_S seconds, the state of its
        consumers is `elsewhere`, the reason says so, and their numbers are not known.
        """
        found, own = self._list(stream)
        return list(map(read_info, self._ask_others(stream, found, own.get("shards", ()), own.get("shard_count", 0))))

    def list_names(self) -> list[tuple[str, str]]:
        """Return stream and name of all consumers, sorted. One worker is asked, since each knows the names of all."""
        found, _ = self._list("")
        return [(info["stream_name"], info["name"]) for info in found]

    @named()
    def list_shards(self, stream: str, counts: Mapping[int, int], timeout: float) -> dict[int, list[dict[str, Any]]]:
        """Return by shard what its worker says of the shard's consumers, as ConsumerInfo objects in JSON. A shard is left out
        if its worker has not answered within `timeout` seconds, which all have together.

        `stream`: whose consumers, "" for those of all streams. `counts`: by shard, how many consumers it has of these. Raises
        Refused, SourceUnavailable and CredentialsRefused.
        """
        pages, questions = dict[str, int](), dict[str, tuple[bytes, bytes]]()
        span = int(timeout * _NANOSECONDS)
        for shard, count in counts.items():
            for offset in range(0, count, requests.MOST_LISTED):
                id = uuid.uuid4().hex
                body = {"stream": stream, "shard": shard, "offset": offset}
                value = write_json({"v": 1, "op": Op.LIST.word, "timeout": span, **body})
                pages[id], questions[id] = shard, (make_key(About.REQUEST, id), value)
        found: dict[int, list[dict[str, Any]]] = {shard: [] for shard in counts}
        with self._lock:
            for id, record in self._ask_all(questions, timeout):
                found[pages.pop(id)] += read_answer(record)["consumers"]
        missing = {*pages.values()}
        return {shard: infos for shard, infos in found.items() if shard not in missing}

    @named()
    def pause(self, stream: str, name: str, until: datetime | timedelta | str) -> bool:
        """Pause a consumer, so that it delivers nothing before `until`. Return whether it is paused
        now: False if that time is over, which ends a pause.

        `until`: a time (local if it has no zone), a span from now, or a text in RFC 3339. Raises
        BadQuestion for a time before year 1 or after 9999, and Refused if the consumer does not exist,
        a Spark job delivers it, or the text is not a time.
        """
        answer = self._ask(Op.PAUSE, stream=stream, consumer=name, pause_until=write_time(until))
        return bool(answer["paused"])

    @named()
    def resume(self, stream: str, name: str) -> None:
        """End a consumer's pause. Raises Refused if the consumer does not exist or a Spark job delivers it."""
        self._ask(Op.RESUME, stream=stream, consumer=name)

    @named()
    def drain(self, worker: str, boot: str) -> None:
        """Have a worker give its shards to the others, and take none until `undrain` or its next start. Returns once
        that is recorded; the shards move to other workers after that. `worker`, `boot`: its name and the id of its
        process's start, as its status has them (docs/fleet.md). Raises Refused, NoAnswer.
        """
        self._ask(Op.DRAIN, worker=worker, boot=boot)

    @named()
    def undrain(self, worker: str) -> None:
        """Let a worker that was drained have shards again. Returns once that is recorded. Raises Refused, NoAnswer."""
        self._ask(Op.UNDRAIN, worker=worker)

    def streams(self) -> list[dict[str, Any]]:
        """Return the JSON object of JetStream's stream info for each stream that the service has, sorted by name."""
        found: list[dict[str, Any]] = self._ask(Op.STREAM_LIST)["streams"]
        return found

    # messages

    def next(
        self, stream: str, name: str, batch: int = 1, *, expires: float = 5.0, **more: Unpack[PullFields]
    ) -> list[Pulled]:
        """Pull up to `batch` messages of a pull consumer, blocking. Return when they have come,
        after `expires` seconds, when the service ends the pull, as for max_bytes, or at once with
        no_wait=True; then there may be fewer, or none.

        `more`: further fields of JetStream's pull request, such as max_bytes. If an error ends the
        pull after some messages have come, they are returned, and the error is not raised: the next
        call meets it if it lasts. Otherwise raises UnknownArgument for other names, BadQuestion if
        `expires` is not a number of seconds, Refused or
        PullRefused if the consumer does not take the request, and NoAnswer if the service does not
        answer.
        """
        check_names("next", more, ("stream", "name", "batch", "expires", *PullFields.__annotations__))
        found: list[Message] = []
        try:
            self.pull_records(stream, name, batch, expires, more, found.append)
        except OverlayError:
            # what has come waits for its acks
            if not found:
                raise
        return [read_message(record) for record in found]

    @named()
    def pull_records(
        self,
        stream: str,
        name: str,
        batch: int,
        expires: float,
        more: PullFields,
        take: Callable[[Message], object],
        *,
        quiet_s: float = 0.0,
        stop: threading.Event | None = None,
    ) -> None:
        """Pull messages as `next` does, and call `take` with the record of each as it comes, as the
        Kafka client has it. Raises the errors of `next` also after some have come. The names in `more`
        are not checked.

        `quiet_s`: seconds for which a service may have nothing to answer yet: if this control is
        impatient, it looks that much later whether a service runs. `stop`: when it is set, return soon
        with what has come.
        """
        expires = check_wait("expires", expires)
        timeout = check_wait("timeout", self.timeout) + expires
        body: dict[str, Any] = {"stream": stream, "consumer": name, "batch": batch, **more}
        if not more.get("no_wait"):
            body["expires"] = int(expires * _NANOSECONDS)
        with self._lock:
            collect_pulled(self._send(Op.NEXT, body, timeout, quiet_s, stop), batch, take)

    @named()
    def ack(self, token: str) -> None:
        """Ack the delivery that an ack token names; return once the service has committed the ack. Raises
        BadAckToken, NoAnswer.
        """
        self.tell(token, Verb.ACK)

    @named()
    def nak(self, token: str, delay: Delay | None = None) -> None:
        """Request redelivery of the message of a delivery, at once or after `delay` (seconds, or a
        timedelta); return once the service has committed that. `token`: the delivery's ack token. Raises
        BadAckToken, NoAnswer, and BadQuestion for a negative delay or one of more than 292 years.
        """
        self.tell(token, Verb.NAK, write_delay(delay))

    @named()
    def term(self, token: str, reason: str = "") -> None:
        """Request that the message of a delivery is never delivered again; return once the service has committed that.
        `token`: the delivery's ack token. `reason`: for the service's advisory in `<prefix>.events`; the dead letter says only
        `term`. Raises BadAckToken, NoAnswer.
        """
        self.tell(token, Verb.TERM, cut_reason(reason))

    @named()
    def in_progress(self, token: str) -> None:
        """Have the ack_wait of a delivery begin again; return once the service has committed that. `token`: the
        delivery's ack token. Raises BadAckToken, NoAnswer.
        """
        self.tell(token, Verb.PROGRESS)

    @named()
    def tell(self, token: str, verb: Verb, text: str = "") -> None:
        """Send an ack, nak, term or progress report for the delivery that an ack token names, and wait
        until the service has committed it. `text`: what follows the verb: the delay of a nak as JSON
        in ns, or the reason of a term.

        Raises BadAckToken, and NoAnswer after `self.timeout` seconds. What had no answer stays in
        the ack topic, and a service that reads it later counts it.
        """
        found, timeout = find_token(token), check_wait("timeout", self.timeout)
        topic = acks_topic(self.prefix, found.stream)
        key = f"$JS.ACK.{found.stream}.{found.consumer}".encode()
        body = verb.value + (f" {text}".encode() if text else b"")
        with self._lock:
            try:
                for _ in self._inbox.ask(topic, key, body, timeout, [(TOKEN, token.encode())]):
                    return
            except NoService as error:
                raise NoService(
                    f"{error}. {verb.value.decode()} is written to {topic}, and counts once a service reads it there"
                ) from error
            except NoAnswer as error:
                raise NoAnswer(
                    f"{error} {verb.value.decode()} is written to {topic}, and counts once a service reads it there. An ack"
                    " of a message that was never delivered, or that names a consumer without acks, has no answer either"
                ) from error

    # requests

    def _list(self, stream: str) -> tuple[list[dict[str, Any]], Mapping[str, Any]]:
        """Return the consumers of a stream, or of all if it is "", as one worker lists them: ConsumerInfo objects in JSON; and
        which shards that worker has.
        """
        found: list[dict[str, Any]] = []
        while True:
            answer = self._ask(Op.LIST, stream=stream, offset=len(found))
            found += answer["consumers"]
            if len(found) >= answer["total"] or not answer["consumers"]:
                return found, answer.get("overlay", {})

    def _define(
        self,
        op: Op,
        action: str,
        stream: str,
        config: ConsumerConfig | Mapping[str, Any] | None,
        fields: Mapping[str, Any],
    ) -> ConsumerInfo:
        check_names(action or "create", fields, (*CONSUMER_FIELDS, *FILTER_WORDS))
        given = write_config(config) if isinstance(config, ConsumerConfig) else dict(config or {})
        wanted = {**given, **spell_filters(fields)}
        found = read_info(self._ask(op, stream=stream, config=wanted, action=action))
        check_filters(wanted, found.config)
        return found

    def _ask_others(
        self, stream: str, found: list[dict[str, Any]], shards: Collection[int], count: int
    ) -> list[dict[str, Any]]:
        """Return ConsumerInfo objects with those of other workers in place of what the first one knows of them.

        `found`: as the first worker lists the consumers of `stream`; `shards`: those that it has, of `count`, which is 0 if it
        does not say.
        """
        at = [shard_of((info["stream_name"], info["name"]), count) for info in found] if count else []
        wanted = Counter(shard for shard in at if shard not in shards)
        if not wanted:
            return found
        timeout = min(GATHER_S, check_wait("timeout", self.timeout))
        answers = self.list_shards(stream, wanted, timeout)
        told = {(info["stream_name"], info["name"]): info for infos in answers.values() for info in infos}
        for number, (info, shard) in enumerate(zip(found, at, strict=True)):
            if (better := told.get((info["stream_name"], info["name"]))) is not None:
                found[number] = better
            elif shard in wanted and shard not in answers:
                reason = f"the worker of shard {shard} did not answer within {timeout:g} s"
                found[number] = {**info, "overlay": {**info["overlay"], "reason": reason}}
        return found

    def _ask_all(self, questions: Mapping[str, tuple[bytes, bytes]], timeout: float) -> Iterator[tuple[str, Message]]:
        headers = [(CLIENT, self.name.encode())] if self.name else []
        try:
            yield from self._inbox.ask_all(self._topic, questions, timeout, headers)
        except RequestRefused:
            # none was sent
            if not self._take_other_topic():
                raise
            yield from self._inbox.ask_all(self._topic, questions, timeout, headers)

    def _ask(self, op: Op, **body: Any) -> dict[str, Any]:
        with self._lock:
            return read_answer(next(self._send(op, body, check_wait("timeout", self.timeout))))

    def _send(
        self,
        op: Op,
        body: Mapping[str, Any],
        timeout: float,
        quiet_s: float = 0.0,
        stop: threading.Event | None = None,
    ) -> Iterator[Message]:
        id = uuid.uuid4().hex
        value = write_json({"v": 1, "op": op.word, "timeout": int(timeout * _NANOSECONDS), **body})
        headers = [(CLIENT, self.name.encode())] if self.name else []
        key = make_key(About.REQUEST, id)
        try:
            try:
                yield from self._inbox.ask(self._topic, key, value, timeout, headers, id=id, quiet_s=quiet_s, stop=stop)
            except RequestRefused:
                if not self._take_other_topic():
                    raise
                yield from self._inbox.ask(self._topic, key, value, timeout, headers, id=id, quiet_s=quiet_s, stop=stop)
        except NoService as error:
            # a service that starts before the timeout would carry it out
            self._inbox.withdraw(self._topic, key)
            raise NoService(f"{error}. The request is withdrawn. Start a service with `overlay run`") from error

    def _take_other_topic(self) -> bool:
        """Send requests to the requests topic from now on, since Kafka does not let this client
        write to the control topic. Return whether that is new: False if requests go there already,
        or if Kafka shows this user no such topic.
        """
        topic = requests_topic(self.prefix)
        if self._topic == topic or not self._inbox.has_topic(topic):
            return False
        self._topic = topic
        return True


def write_time(until: datetime | timedelta | str) -> str:
    """Return a time, or a span from now, as RFC 3339 in UTC. A time without a zone counts as local
    time. A text is returned as it is, without a check. Raises BadQuestion for a time that has no
    year from 1 to 9999 in UTC.
    """
    if isinstance(until, str):
        return until
    try:
        if isinstance(until, timedelta):
            return format_time(now_ns() + until // timedelta(microseconds=1) * 1_000)
        return until.astimezone(UTC).isoformat().replace("+00:00", "Z")
    except (OverflowError, ValueError) as error:
        raise BadQuestion(f"until is {until!r}, and its year in UTC has to be from 1 to 9999: {error}") from error
