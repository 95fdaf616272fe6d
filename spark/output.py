"""A consumer's output topic, found by the consumer's name in a config folder, or among the consumers made by request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from overlay.client.client import check_settings
from overlay.client.read.defined import read_consumers
from overlay.config import AckPolicy, ConsumerConfig, Delivery, Loaded, StreamConfig, load
from overlay.config.suggestion import suggest
from overlay.errors import OverlayError
from overlay.inspect.reading import check_topics, look_around

Config = str | Path | Loaded
"""A config folder, or one that is loaded already."""


class UnknownConsumer(OverlayError, LookupError):
    """A consumer that is not known, one without an output topic, a name that several consumers have, or a folder
    in which no single stream has consumers for a job. The caller acts.
    """


class NotForStreams(OverlayError):
    """A consumer whose deliveries would stop while Spark reads them. The author of its file acts."""


@dataclass(frozen=True, slots=True)
class Output:
    """A consumer, with what is needed to reach its output topic and its acks."""

    kafka: Mapping[str, str] = field(repr=False)
    """Kafka settings by librdkafka's names."""
    prefix: str
    """Of the overlay's own topics."""
    stream: StreamConfig
    consumer: ConsumerConfig

    @property
    def name(self) -> str:
        return self.consumer.id[1]

    @property
    def topic(self) -> str:
        return self.consumer.deliver_subject

    @property
    def group(self) -> str:
        """The reader group of the output topic. By the offsets that it commits, the service knows
        whether there is a reader.
        """
        return self.consumer.deliver_group or self.name

    @property
    def can_repeat(self) -> bool:
        """Whether a message may be delivered twice: if the consumer has acks, or delivers at least once."""
        return self.consumer.ack_policy is not AckPolicy.NONE or self.consumer.delivery is Delivery.AT_LEAST_ONCE

    def check_streaming(self) -> None:
        """Raise NotForStreams if Spark cannot read the consumer's deliveries as a stream."""
        if self.consumer.flow_control:
            raise NotForStreams(
                f"{self.consumer.stream}/{self.name} has `flow_control: true`: its deliveries wait for answers that Spark does"
                " not give, so they would stop after some megabytes. Leave it out: Spark reads at its own pace anyway"
            )

    def check_topics(self, *names: str) -> None:
        """Ask Kafka whether these topics exist, by default the output topic.

        Raises TopicNotFound if one does not, SourceUnavailable or CredentialsRefused, each saying
        what to do.
        """
        check_topics(look_around(self.kafka), names or (self.topic,))


def find_output(config: Config, name: str, stream: str = "", *, by_request: bool = False) -> Output:
    """Return the output of a push consumer.

    `stream`: needed if several streams have a consumer of that name. `by_request`: if no file describes the consumer,
    look it up in the control topic, which needs no service.

    Raises UnknownConsumer if no consumer or several have that name, or if it is a pull consumer. Raises ConfigError for
    an overlay.yaml that cannot be read and, with `by_request`, SourceUnavailable.
    """
    loaded = config if isinstance(config, Loaded) else load(Path(config))
    found = _select(loaded.consumers.values(), name, stream)
    if not found and by_request:
        known = _list_known(loaded)
        found = _select(known, name, stream)
        if not found:
            raise UnknownConsumer(_explain_absence(loaded, known, name, stream))
    if not found:
        raise UnknownConsumer(_explain_absence(loaded, loaded.consumers.values(), name, stream))
    if len(found) > 1:
        streams = ", ".join(sorted(consumer.stream for consumer in found))
        raise UnknownConsumer(f"several streams have a consumer {name!r}: {streams}. Say which with stream=")
    (consumer,) = found
    if not consumer.is_push:
        raise UnknownConsumer(
            f"{name!r} of stream {consumer.stream!r} is a pull consumer: it has no output topic to read"
            + (_advise_pull(loaded, consumer) if by_request else "")
        )
    service = loaded.service
    return Output(check_settings(service.kafka), service.topics.prefix, loaded.streams[consumer.stream], consumer)


def _advise_pull(loaded: Loaded, consumer: ConsumerConfig) -> str:
    """Return, after a full stop, how Spark reads the records that a pull consumer's filters accept."""
    folder = Path(loaded.files[""].file).parent
    read = f'. What its filters accept is read by spark.read.format("overlay").option("config", "{folder}")'
    read += f'.option("consumer", "{consumer.id[1]}").load()'
    if consumer.id in loaded.consumers:
        return read
    file = folder / "consumers" / f"{consumer.id[1]}.yaml"
    return (
        f"{read}, once `overlay consumer export {consumer.stream} {consumer.id[1]} --out {file}` has written its file"
    )


def _select(known: Iterable[ConsumerConfig], name: str, stream: str) -> list[ConsumerConfig]:
    return [each for each in known if each.id[1] == name and stream in ("", each.stream)]


def _list_known(loaded: Loaded) -> list[ConsumerConfig]:
    """Return the consumers of the folder's streams, those made by request included if this user may read the control topic.
    Raises SourceUnavailable.
    """
    known = read_consumers(loaded, loaded.service.kafka)
    if known is None:
        return list(loaded.consumers.values())
    return [each for each in known if each.stream in loaded.streams]


def _explain_absence(loaded: Loaded, consumers: Iterable[ConsumerConfig], name: str, stream: str) -> str:
    where = Path(loaded.files[""].file).parent
    of = f" of stream {stream!r}" if stream else ""
    known = sorted({each.id[1] for each in consumers if stream in ("", each.stream)})
    others = f"{suggest(name, known)} There is {', '.join(known)}" if known else " Nor is there any other"
    return f"{where}: there is no consumer {name!r}{of}.{others}{name_refused(loaded)}"


def name_refused(loaded: Loaded) -> str:
    """Return the problems of a folder's refused files as the end of a message, empty if there are none."""
    refused = [str(problem) for problem in loaded.problems]
    return "\nFiles of the folder that were refused:\n" + "\n".join(refused) if refused else ""
