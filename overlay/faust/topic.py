"""`agent_topic`: a consumer's output topic as a topic of a Faust application."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from pathlib import Path
from typing import Any, NoReturn, cast

from faust import App
from faust.exceptions import ValueDecodeError
from faust.topics import Topic
from faust.types import ChannelT, CodecArg, FutureMessage, Message, ModelArg, RecordMetadata, TopicT
from faust.types.enums import ProcessingGuarantee

from overlay.client import Client, open_client
from overlay.client.arguments import BadQuestion
from overlay.client.subscribe.kind import RecordClassifier
from overlay.client.subscribe.properties import PropertyReader
from overlay.client.subscribe.target import Target, aim
from overlay.config import ConsumerConfig, Loaded
from overlay.config.consumer import AckPolicy
from overlay.config.stream import Property
from overlay.field import FieldKind

from .acknowledger import Acknowledger
from .batches import take_safely
from .committed import read_committed
from .message import AgentMessage, list_headers
from .tracking import DeliveredEvent, TrackedMessage, track

REFUSED = {
    AckPolicy.ALL: "an ack settles all messages before it, also those that an agent failed at. Use explicit",
    AckPolicy.FLOW_CONTROL: "answers of the reader ack, not its messages, and nothing is delivered again. Use explicit",
}
"""Ack policies that no agent can read, and why."""


class AgentTopic(Topic):
    """A Faust topic whose events have an overlay consumer's messages as values (AgentMessage).

    Statuses of the consumer and records of others are acknowledged and never reach an agent. The
    topic is read only: the service writes it.
    """

    def __init__(self, app: App, *, link: Link, **options: Any) -> None:
        self.link = link
        super().__init__(app, **options)

    def _compile_decode(self) -> None:
        """Do nothing: Faust would replace `decode` by a compiled function here."""

    async def decode(self, message: Message, *, propagate: bool = False) -> DeliveredEvent:
        """Return the event of a delivery of this topic's consumer; for a message that has an event already, another
        event. Raises ValueDecodeError for any other record, also another consumer's delivery, which makes Faust
        acknowledge it. A flow control request is answered first. `propagate`: not used; Faust passes it.
        """
        if not isinstance(message, TrackedMessage):
            token = self.link.find_token(message)
            if token is None:
                raise ValueDecodeError("not a message of the consumer")
            delivered = AgentMessage(message, token, self.link.acks, self.link.reader, self._load)
            message = track(message, delivered)
        return DeliveredEvent(self.app, message)

    def _load(self, message: Message) -> Any:
        return self.schema.loads_value(self.app, message)

    async def on_value_decode_error(self, exc: Exception, message: Message) -> None:
        """Pass over a record that is not a message of the consumer."""

    def _clone_args(self) -> Mapping[str, Any]:
        return {**super()._clone_args(), "link": self.link}

    def __aiter__(self) -> ChannelT[Any]:
        """Register the topic with the application. Raises BadQuestion if another agent topic of the application reads
        another consumer from the same Kafka topic.
        """
        mine = self.link.target.head
        topics = [topic for topic in self.app.topics if isinstance(topic, AgentTopic) and topic.topics == self.topics]
        if others := {topic.link.target.head.consumer for topic in topics if topic.link.target.head != mine}:
            raise BadQuestion(
                f"consumers {', '.join(sorted({*others, mine.consumer}))} share the output topic {self.topics[0]}, and one"
                " application reads one of them. Give each an output topic, or an application of its own"
            )
        return super().__aiter__()

    def derive_topic(self, **options: Any) -> TopicT:
        """Return a plain Faust topic, not an AgentTopic, with these options, which `group_by` and `through` write to and
        read. `options`: as for Topic.derive_topic.
        """
        plain = Topic(self.app, topics=self.topics, schema=self.schema, acks=self.acks, has_prefix=self.has_prefix)
        return plain.derive_topic(**options)

    async def publish_message(self, fut: FutureMessage, wait: bool = False) -> Awaitable[RecordMetadata]:
        """Raise BadQuestion: only the service writes to an output topic."""
        self._refuse_writing()

    def _refuse_writing(self) -> NoReturn:
        raise BadQuestion(f"{self.topics[0]} is the output of a consumer, and only the overlay's service writes to it")

    async def declare(self) -> None:
        """Do nothing: the service makes the topic."""


class Link:
    """What all copies that Faust makes of one AgentTopic share: the consumer, the receiver of its acks, and the reader of
    its messages' properties.
    """

    def __init__(self, target: Target, acks: Acknowledger, reader: PropertyReader) -> None:
        self.target, self.acks, self.reader = target, acks, reader
        self._kind = RecordClassifier(target.head)

    def find_token(self, message: Message) -> bytes | None:
        """Return the ack token of a delivery of the consumer, None for any other record. A flow
        control request of the consumer is answered. The first call opens the sender of acks.
        """
        self.acks.open()
        headers = list_headers(message)
        token = self._kind.find_token(headers)
        if token is None and (flow := self._kind.find_flow(headers)):
            self.acks.answer_flow(flow)
        return token


def agent_topic(
    app: App,
    config: str | Path | Loaded | Client,
    consumer: str,
    *,
    stream: str = "",
    value_type: ModelArg | None = None,
    value_serializer: CodecArg | None = None,
) -> AgentTopic:
    """Return a topic for `@app.agent`, whose events are the messages of a push consumer.

    `config`: the overlay's config folder, or a client. `stream`: needed if several streams have a consumer of this
    name. `value_type`, `value_serializer`: how `content` of a message is decoded, as for `app.topic`. Call it before
    the application starts. From then on the application reads committed records only, of all its topics.

    Raises ConfigError, UnknownConsumer; BadQuestion if an agent cannot read the consumer as it or the application is
    configured, or if several streams have the name. A consumer that no file describes is looked up at the service;
    that may raise Refused, NoAnswer, SourceUnavailable and CredentialsRefused.
    """
    client = config if isinstance(config, Client) else open_client(config)
    found = client.find_consumer(consumer, stream)
    target = aim(found)
    check(app, found, target)
    read_committed(app)
    take_safely(app, lambda channel: isinstance(channel, AgentTopic))
    acks = Acknowledger(app, client.kafka, client.prefix, target)
    app.add_dependency(acks)
    source = client.streams.get(found.stream)
    if source is not None and source.values.registry is not None and _reads_values(source.properties):
        raise BadQuestion(
            f"stream {source.name} has properties of values whose schemas a registry has, and an agent does not wait for"
            " a registry. Fetch them with `overlay registry`, and name their folder under `values.schemas` alone"
        )
    reader = PropertyReader({}) if source is None else PropertyReader(source.properties, source.values)
    return AgentTopic(
        app,
        link=Link(target, acks, reader),
        topics=[target.topic],
        key_type=bytes,
        key_serializer="raw",
        value_type=value_type,
        value_serializer=value_serializer,
    )


def _reads_values(properties: Mapping[str, Property]) -> bool:
    return any(each.source is not None and each.source.kind is FieldKind.VALUE for each in properties.values())


def check(app: App, config: ConsumerConfig, target: Target) -> None:
    """Raise BadQuestion if agents of `app` cannot read this consumer: its ack policy is in REFUSED, it
    waits for another reader group than the application's, or the application's settings would send
    acks too early. `target`: that of `config`.
    """
    name = "/".join(config.id)
    if why := REFUSED.get(config.ack_policy):
        raise BadQuestion(f"consumer {name} has `ack_policy: {config.ack_policy}`: {why}")
    group = app.conf.id
    if config.follows_readers and target.group != group:
        raise BadQuestion(
            f"Faust reads as the group {group!r}, and consumer {name} waits for what the group {target.group!r} has"
            f" read. Write `deliver_group: {group}` into its file, or `interest: always`"
        )
    if not config.ack_policy.takes_acks:
        return
    if cast(Any, app.conf).processing_guarantee is ProcessingGuarantee.EXACTLY_ONCE:
        raise BadQuestion(
            "with processing_guarantee=exactly_once acks would go out before Faust's transaction is committed. Leave it"
            " at at_least_once"
        )
    if app.conf.stream_publish_on_commit:
        raise BadQuestion(
            "with stream_publish_on_commit acks would go out before what agents send is written. Leave it off"
        )
