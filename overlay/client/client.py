"""`overlay.open`: makes a client from a config folder or a bootstrap address."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path as FilePath
from types import TracebackType
from typing import Any, Unpack

from overlay.clock import now_ms
from overlay.config import ConsumerConfig, Loaded, ServiceConfig, StreamConfig, load
from overlay.config.document import Document, Path
from overlay.config.problems import validate
from overlay.config.service import TopicsConfig
from overlay.config.suggestion import suggest
from overlay.default_folder import find_existing
from overlay.errors import ConfigError, FilePosition, OverlayError, SourceUnavailable
from overlay.kafka.own_topics import acks_topic, reply_topic

from .arguments import CONSUMER_FIELDS, FILTER_WORDS, BadQuestion, check_count, check_names, named, spell_filters
from .connection import Connections
from .control.control import Control
from .control.inbox import NoAnswer
from .read.defined import read_consumers
from .read.indexes import Indexes
from .read.question import CheckedQuestion, Question, ask_as_consumer, make_request
from .read.reader import Progress, read_alone, read_batches
from .read.reading import AsyncReading, Reading
from .read.topic import Declared, describe_topic
from .subscribe.ack_answers import AckAnswers
from .subscribe.intake import OnSilence
from .subscribe.order import FORBIDDEN
from .subscribe.ordered import OrderedConsumer
from .subscribe.pulling import BATCH, PullConsumer
from .subscribe.subscription import PREFETCH, Subscription, Where
from .subscribe.target import UnknownConsumer, aim, check_idle, find_consumer


class UnknownStream(OverlayError, LookupError):
    """A stream that no file describes. The caller acts."""


@dataclass(frozen=True, slots=True, eq=False)
class Client:
    """A client that reads streams and topics, subscribes to consumers, and sends requests to the service.

    It keeps connections from one reading to the next, and the parts of chunk indexes that it has
    read.
    """

    kafka: Mapping[str, str] = field(repr=False)
    """Kafka settings by librdkafka's names."""
    streams: Mapping[str, StreamConfig] = field(default_factory=dict)
    origin: str = ""
    """Where the stream files are, for messages."""
    prefix: str = ""
    """Prefix of the overlay's own topics, one of which is the index of a stream."""
    consumers: Mapping[tuple[str, str], ConsumerConfig] = field(default_factory=dict)
    """The consumers' configs by (stream, name)."""
    files: Loaded | None = field(default=None, repr=False)
    """The config folder; None if the client was opened without one."""
    _lines: Connections = field(init=False, repr=False)
    _answers: AckAnswers = field(init=False, repr=False)
    _indexes: Indexes = field(init=False, repr=False)
    control: Control = field(init=False, repr=False)
    """Creates, changes and inspects consumers; needs a running service."""
    _lookup: Control = field(init=False, repr=False)
    """Looks consumers up at the service, and does not wait for one to start."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_lines", Connections(self.kafka))
        object.__setattr__(self, "_indexes", Indexes(self.prefix))
        object.__setattr__(self, "control", Control(self.kafka, self.prefix))
        object.__setattr__(self, "_lookup", Control(self.kafka, self.prefix, is_patient=False))
        object.__setattr__(self, "_answers", AckAnswers(self.kafka, reply_topic(self.prefix)))

    def close(self) -> None:
        """Close the connections that no reading uses at the moment, those of `control` and of
        `find_consumer`, and the listener for answers to acks. Calls of ack_sync that still wait raise
        SourceUnavailable. Waits for a request of `control` or `find_consumer` that is under way.

        Open readings and subscriptions are not closed. The client may be used again afterwards. A
        client that is garbage-collected closes by itself.
        """
        self._lines.close()
        self.control.close()
        self._lookup.close()
        self._answers.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def read(
        self,
        stream: str = "",
        *,
        topic: str = "",
        consumer: str = "",
        declare: Declared | None = None,
        **question: Unpack[Question],
    ) -> Reading:
        """Return the records of a stream, or of a topic that no file describes, as an iterator of
        RecordBatches. Name one of `stream` and `topic`. Reading begins at once, in another thread.

        `consumer`: its name, to read the records of its stream that its filters let through, wherever
        it begins and whatever it has acked. `stream` may be left out then if only one stream has a
        consumer of this name. A consumer that no file describes is looked up in the control topic. A client that was
        opened by an address alone has neither.

        See Question for the arguments. Without `follow` the reading ends at what is committed at
        the time of the call. For a `topic`, the subject of each record is the topic's name, and
        headers are string properties. `declare` describes other properties: {"dep_delay": "double",
        "tail": {"type": "string", "from": "{value:tailnum}"}}.

        Raises BadQuestion, UnknownArgument and ArgumentConflict (both TypeErrors), UnknownStream, UnknownConsumer,
        SubjectError, FilterSyntaxError and ConfigError at once; for a consumer that no file describes also Refused,
        NoAnswer, SourceUnavailable and CredentialsRefused. Other errors come out of the iteration:
        CredentialsRefused, SourceUnavailable, TopicNotFound, SourceChanged, CorruptBatch, NoSequence.
        """
        request, progress = self._ask(stream, topic, consumer, declare, question), Progress()
        read = partial(read_batches, indexes=self._indexes, request=request, progress=progress)
        return Reading(self._lines, read, request.make_form().schema, progress)

    def read_async(
        self,
        stream: str = "",
        *,
        topic: str = "",
        consumer: str = "",
        declare: Declared | None = None,
        **question: Unpack[Question],
    ) -> AsyncReading:
        """Return the records as `read` does, for `async for` in the caller's event loop. Nothing is
        fetched before the iteration begins, and without `follow` the reading ends at what is
        committed then. It has a connection of its own, which is closed at its end. For a `consumer`
        that no file describes the call blocks until it is found. Raises as `read`.
        """
        request, progress = self._ask(stream, topic, consumer, declare, question), Progress()
        batches = read_alone(self._lines, self._indexes, request, progress)
        return AsyncReading(batches, request.make_form().schema, progress)

    @named()
    def subscribe(
        self,
        consumer: str,
        *,
        stream: str = "",
        where: Where | None = None,
        prefetch: int = PREFETCH,
        on_silence: OnSilence | str = OnSilence.FLAG,
        idle: float | None = None,
    ) -> Subscription:
        """Return the messages of a push consumer, for `for message in ...` or `async for message in
        ...`. Receiving begins at once, in threads that `close` of the result ends.

        `stream`: needed if several streams have a consumer of this name. `where`: a function of a message; those for
        which it returns a false value are not returned, and acked unless it has settled them. `prefetch`: about how
        many messages may wait to be taken before receiving stops. `on_silence`: with `raise`, the iteration ends with
        HeartbeatsMissed when nothing comes for two idle_heartbeats; with `flag`, only `is_silent` is set. `idle`:
        seconds without a message after which a loop ends; by default it has no end.

        A consumer that no file describes is looked up at the service. Raises BadQuestion (also for a
        pull consumer), UnknownConsumer, Refused, NoAnswer, SourceUnavailable, CredentialsRefused at
        once; later errors of Kafka come out of the iteration.
        """
        check_count("prefetch", prefetch, 1)
        if where is not None and not callable(where):
            raise BadQuestion(
                f"where is {where!r}, and has to be a function of a message. An expression is the consumer's"
            )
        try:
            reaction = OnSilence(on_silence)
        except ValueError:
            raise BadQuestion(f"on_silence is {on_silence!r}, and has to be flag or raise") from None
        check_idle(idle)
        target = aim(self.find_consumer(consumer, stream))
        return Subscription(
            self.kafka,
            target,
            acks_topic(self.prefix, target.head.stream),
            self._answers,
            where,
            prefetch=prefetch,
            on_silence=reaction,
            idle=idle,
        )

    @named()
    def pull(self, consumer: str, *, stream: str = "", batch: int = BATCH, idle: float | None = None) -> PullConsumer:
        """Return a pull consumer, whose messages are asked for: `fetch(500, timeout=2)`, or `for
        message in ...`. Nothing is sent yet. Hold on to the result: it keeps its connections.

        `stream`: needed if several streams have a consumer of this name. `batch`: most messages
        that a loop asks for at once. `idle`: seconds without a message after which a loop ends; by
        default it has no end.

        A consumer that no file describes is looked up at the service. Raises BadQuestion (also for a
        push consumer), UnknownConsumer, Refused, NoAnswer, SourceUnavailable, CredentialsRefused.
        """
        check_count("batch", batch, 1)
        check_idle(idle)
        config = self.find_consumer(consumer, stream)
        return PullConsumer(self.kafka, self.prefix, config, self._answers, batch=batch, idle=idle)

    def ordered(self, stream: str, **config: Any) -> OrderedConsumer:
        """Return a stream's messages in order and without a hole, for one reader (ADR-17): `for
        message in client.ordered("S")`. The call creates a consumer in the service; `close` of the
        result deletes it.

        `config`: fields of a consumer file, such as deliver_policy, opt_start_seq, idle_heartbeat,
        and the filters of `read`: subjects, sql, properties, values, match_unfiltered. Needs a
        running service. Raises UnknownArgument and ArgumentConflict (both TypeErrors), BadOrder,
        Refused, FiltersDiffer, NoAnswer, SourceUnavailable, CredentialsRefused.
        """
        check_names("ordered", config, ("stream", *FORBIDDEN, *CONSUMER_FIELDS, *FILTER_WORDS))
        control, topic = Control(self.kafka, self.prefix), acks_topic(self.prefix, stream)
        return OrderedConsumer(self.kafka, control, topic, stream, spell_filters(config))

    @named()
    def find_consumer(self, name: str, stream: str = "") -> ConsumerConfig:
        """Return a consumer's config by its name: from the files; if none describes it, from the
        service.

        `stream`: may be empty if only one stream has a consumer of this name; BadQuestion is raised
        if several have. Raises UnknownConsumer if neither the files nor the service have it. If the
        service cannot be asked, raises UnknownConsumer if a file describes any consumer at all, else
        NoAnswer or SourceUnavailable. If none runs, that takes about a second, and the NoAnswer is a
        NoService. Raises Refused if the service has no such stream, CredentialsRefused.
        """
        try:
            return find_consumer(self.consumers.values(), name, stream, self.origin)
        except UnknownConsumer as unknown:
            try:
                self._lookup.timeout = self.control.timeout
                served = [info.config for info in self._lookup.consumers(stream)]
            except (NoAnswer, SourceUnavailable) as error:
                if not self.consumers:
                    raise
                raise UnknownConsumer(
                    f"{str(unknown).rstrip('.')}. And the service cannot be asked: {error}"
                ) from error
            return find_consumer(served, name, stream, "the service")

    def _ask(
        self, stream: str, topic: str, consumer: str, declare: Declared | None, question: Question
    ) -> CheckedQuestion:
        if consumer:
            if topic:
                raise BadQuestion("consumer and topic each say what to read. Leave one of them out")
            found = self._find_to_read(consumer, stream)
            stream, question = found.stream, ask_as_consumer(found, question)
        if bool(stream) == bool(topic):
            raise BadQuestion("name a stream or a topic" + (", not both" if stream else ""))
        if declare is not None and stream:
            raise BadQuestion("declare is for topics; what a stream declares stands in its file")
        config = self.find_stream(stream) if stream else describe_topic(topic, declare or {})
        return make_request(config, is_named=bool(stream), now=now_ms(), **question)

    def _find_to_read(self, name: str, stream: str) -> ConsumerConfig:
        """Return a consumer's config by its name: from the files, else from the control topic, which needs no service. A
        client without the right to read the topic asks the service. Raises as `find_consumer`, and BadQuestion if the client
        has no config folder: then no stream is known either.
        """
        if not self.streams and not self.origin:
            raise BadQuestion(
                "this client was opened by an address alone, and the stream of a consumer is described in a config folder: open"
                " that one"
            )
        if self.files is not None:
            try:
                return find_consumer(self.consumers.values(), name, stream, self.origin)
            except UnknownConsumer:
                if (known := read_consumers(self.files, self.kafka)) is not None:
                    return find_consumer(known, name, stream, self.origin)
        return self.find_consumer(name, stream)

    @named()
    def find_stream(self, name: str) -> StreamConfig:
        """Return the config of the stream `name`, as its file has it. Raises UnknownStream, with a similar
        name as a suggestion, if no file describes it; the service is not asked.
        """
        if name in self.streams:
            return self.streams[name]
        known = sorted(self.streams)
        if not known and not self.origin:
            raise UnknownStream(
                f"this client was opened by an address alone, and streams are described in config folders: open one that has"
                f" {name!r}, or read a topic with read(topic=...)"
            )
        where = f"{self.origin}: " if self.origin else ""
        if not known:
            raise UnknownStream(f"{where}there is no stream {name!r}, nor any other. Is it the right config folder?")
        raise UnknownStream(f"{where}there is no stream {name!r}.{suggest(name, known)} There is {', '.join(known)}")


@named("open")
def open_client(
    config: str | FilePath | Loaded | None = None,
    *,
    bootstrap: str = "",
    kafka: Mapping[str, str] | None = None,
    prefix: str = "",
) -> Client:
    """Return a client for a config folder (its path, or a loaded one), or, if an address is given in its place, for a
    Kafka cluster without streams and consumers of files. With neither the folder is found as commands find it:
    $OVERLAY_CONFIG, else the current folder or ./overlay-config. Nothing is sent to Kafka yet.

    `bootstrap`: `host:port`, several separated by commas; with a config it replaces the address in
    it. `kafka`: more settings by librdkafka's names, such as {"security.protocol": "SASL_SSL"};
    they replace those of the config, and `bootstrap`. `prefix`: of the overlay's own topics; if
    empty, that of the config or the default. Raises ConfigError for overlay.yaml and the settings,
    and BadQuestion if there is neither a config nor an address. Files of streams and consumers that
    have errors are left out.
    """
    if config is None and not bootstrap and "bootstrap.servers" not in (kafka or {}):
        config = find_existing()
        if config is None:
            raise BadQuestion(
                "open what? There is no overlay.yaml here, nor in ./overlay-config. Give a config folder, or"
                " bootstrap='HOST:PORT'"
            )
    if config is None:
        kafka = {**({"bootstrap.servers": bootstrap} if bootstrap else {}), **(kafka or {})}
        return Client(check_settings(kafka), prefix=prefix or TopicsConfig().prefix)
    loaded = config if isinstance(config, Loaded) else load(FilePath(config))
    settings = loaded.service.kafka | ({"bootstrap.servers": bootstrap} if bootstrap else {}) | dict(kafka or {})
    origin = str(FilePath(loaded.files[""].file).parent)
    if prefix:
        topics = loaded.service.topics.model_copy(update={"prefix": prefix})
        loaded = replace(loaded, service=loaded.service.model_copy(update={"topics": topics}))
    return Client(
        check_settings(settings),
        loaded.streams,
        origin,
        loaded.service.topics.prefix,
        loaded.consumers,
        loaded,
    )


def check_settings(kafka: Mapping[str, str]) -> dict[str, str]:
    """Check Kafka settings by the rules of `kafka:` in overlay.yaml, without connecting, and return
    them. `kafka`: by librdkafka's names.

    Raises ConfigError for the first setting that is not known, has a wrong value, or contradicts
    another one.
    """
    place = FilePosition("Kafka settings")
    places: dict[Path, FilePosition] = {("kafka",): place, **{("kafka", name): place for name in kafka}}
    service, problems = validate(ServiceConfig, Document(place.file, {"kafka": dict(kafka)}, places, places))
    if service is None:
        raise problems[0]
    if conflict := service.kafka_properties.find_conflict():
        name, why = conflict
        raise ConfigError(place, why, field=name)
    return service.kafka
