"""Output topics as DataFrames: Spark's own Kafka source, with the contents of deliveries in columns.

    frame = read_consumer(spark, "config", "late-jfk")
    stream = read_stream_consumer(spark, "config", "late-jfk")

Only committed records are read, and only the deliveries of this consumer. Several consumers may
share an output topic, and status records are not deliveries. The topic and the consumer's name are
checked before Spark plans anything, so that errors have the overlay's messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from overlay.client import BadQuestion
from overlay.config.suggestion import suggest

from .connection import for_spark
from .decoding import decode_properties
from .envelope import read_envelope
from .interest import follow_progress
from .options import KAFKA
from .output import Config, Output, find_output
from .redeliveries import drop_redeliveries

OPTIONS = (
    "startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy",
    "endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "failOnDataLoss", "minPartitions",
    "maxRecordsPerPartition", "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "groupIdPrefix",
    "kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs",
)  # fmt: skip
"""Options of Spark's Kafka source that the caller may set. Topic, headers and isolation are set here."""
NO_OPTIONS: Mapping[str, str] = MappingProxyType({})
REMEMBER = 1 << 26


def read_consumer(
    spark: SparkSession,
    config: Config,
    name: str,
    *,
    stream: str = "",
    decode: bool = False,
    options: Mapping[str, str] = NO_OPTIONS,
) -> DataFrame:
    """Return a consumer's deliveries so far: the columns of `envelope.COLUMNS`, redeliveries included.

    `topic`, `partition` and `offset` are those of the output record; `timestamp` is the source record's. `decode`
    adds `application_properties`, a struct of what the stream's file declares (decoding.py). `options`: more options
    of Spark's Kafka source, such as `startingOffsets` or `minPartitions`. If no file describes the
    consumer, it is looked up in the control topic, which has those made by request. Raises BadQuestion, UnknownConsumer,
    ConfigError, TopicNotFound, SourceUnavailable, CredentialsRefused, and OverlayError for Kafka settings that Java
    cannot have.
    """
    check_options(options)
    output = find_output(config, name, stream, by_request=True)
    output.check_topics()
    raw = spark.read.format("kafka").options(**_choose_options(output, options)).load()
    return _shape(raw, output, decode=decode)


def read_stream_consumer(
    spark: SparkSession,
    config: Config,
    name: str,
    *,
    stream: str = "",
    decode: bool = False,
    redeliveries: bool = False,
    remember: int = REMEMBER,
    commit: bool = True,
    options: Mapping[str, str] = NO_OPTIONS,
) -> DataFrame:
    """Return a consumer's deliveries as a stream, from the topic's start unless `options` says where to begin.

    A delivery of a sequence that was seen before is left out, unless `redeliveries` is set. A query that sends naks
    has to set it. `remember`: how many stream sequences are remembered for this; the state has an eighth of that in
    bytes. A consumer without repetitions (ack_policy none, exactly once) needs no such state. `commit`: after each
    batch, commit its end for the consumer's reader group, by which the service knows that there is a reader.
    `decode`, and errors: as for `read_consumer`, and NotForStreams.
    """
    check_options(options)
    output = find_output(config, name, stream, by_request=True)
    output.check_streaming()
    output.check_topics()
    chosen = {"startingOffsets": "earliest", **_choose_options(output, options)}
    deliveries = _shape(spark.readStream.format("kafka").options(**chosen).load(), output, decode=False)
    if commit:
        deliveries = follow_progress(spark, deliveries, output.kafka, output.topic, output.group)
    if not redeliveries and output.can_repeat:
        deliveries = drop_redeliveries(deliveries, remember)
    return decode_properties(deliveries, output.stream) if decode else deliveries


def check_options(options: Mapping[str, str]) -> None:
    """Raise BadQuestion for an option that is neither in OPTIONS, in whatever case, nor begins with
    `kafka.`: Spark ignores options that it does not know, and `subscribe` and `includeHeaders` are
    set here.
    """
    known = {name.lower() for name in OPTIONS}
    for name in options:
        if name.lower() not in known and not name.lower().startswith(KAFKA):
            raise BadQuestion(
                f"options: there is no option {name!r}.{suggest(name, OPTIONS)} Options are {', '.join(OPTIONS)}, and Kafka's"
                f" own after {KAFKA!r}"
            )


def _choose_options(output: Output, options: Mapping[str, str]) -> dict[str, str]:
    ours = {"subscribe": output.topic, "includeHeaders": "true", "kafka.isolation.level": "read_committed"}
    return {**options, **for_spark(output.kafka), **ours}


def _shape(raw: DataFrame, output: Output, *, decode: bool) -> DataFrame:
    stream, name = output.consumer.id
    mine = (F.col("stream") == stream) & (F.col("consumer") == name)
    deliveries = read_envelope(raw).where(mine)
    return decode_properties(deliveries, output.stream) if decode else deliveries
