"""Acks from Spark: records for the stream's ack topic, written by Spark's own Kafka sink.

    def handle(batch, batch_id):
        batch.write.parquet(f"out/batch={batch_id}", mode="overwrite")   # first what must not be lost
        ack(batch, "config")

    read_stream_consumer(spark, "config", "late-jfk").writeStream.foreachBatch(handle)...

Acks are at-least-once, like everything in foreachBatch. A driver that ends between sink and ack
writes the batch again after a restart, and acks it then. The order matters: write to the sink
first, so that nothing is acked before it is safe. To have each message once, a sink has to replace
what the same batch wrote before, or drop rows that it has already, by stream, consumer and
sequence.

A row without an ack token, or a batch without rows, writes nothing.
"""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from overlay.client import BadQuestion
from overlay.config import Loaded, load_service
from overlay.consumer.acks import Verb
from overlay.default_folder import SERVICE_FILE
from overlay.kafka.own_topics import acks_topic
from overlay.units import INT64_MAX

from .connection import for_spark
from .output import Config

_NS_PER_US = 1_000


def ack(deliveries: DataFrame, config: Config) -> None:
    """Write an ack for each of these messages to the ack topic of its stream, and return when
    Spark's job has written them all.

    `deliveries`: with the columns `stream` and `ack_token`, of any consumers of the config folder;
    rows without a token are left out. `config`: the folder, or one that is loaded.
    """
    _write(deliveries, Verb.ACK.value, config)


def nak(deliveries: DataFrame, config: Config, delay: timedelta | None = None) -> None:
    """Request redelivery of these messages, at once or after `delay`. Writes as `ack` does.

    Raises BadQuestion for a negative delay, or one of more than 292 years.

    A stream of `read_stream_consumer` leaves redeliveries out unless it has `redeliveries=True`.
    """
    _write(deliveries, Verb.NAK.value + (_write_delay(delay) if delay is not None else b""), config)


def term(deliveries: DataFrame, config: Config, reason: str = "") -> None:
    """Request that these messages are never delivered again. Writes as `ack` does.

    `reason`: for the advisory in `<prefix>.events`; the dead letter says only `term`.
    """
    _write(deliveries, Verb.TERM.value + (f" {reason}".encode() if reason else b""), config)


def _write_delay(delay: timedelta) -> bytes:
    ns = delay // timedelta(microseconds=1) * _NS_PER_US
    if not 0 <= ns <= INT64_MAX:
        raise BadQuestion(f"a nak's delay is {delay}, and has to be 0 or more and at most 292 years")
    return b" " + json.dumps({"delay": ns}).encode()


def _write(deliveries: DataFrame, body: bytes, config: Config) -> None:
    service = config.service if isinstance(config, Loaded) else load_service(Path(config) / SERVICE_FILE, os.environ)
    acks = deliveries.where(F.col("ack_token").isNotNull()).select(
        F.format_string(acks_topic(service.topics.prefix, "%s"), "stream").alias("topic"),
        F.col("ack_token").alias("key"),
        F.lit(body).alias("value"),
    )
    acks.write.format("kafka").options(**for_spark(service.kafka)).save()
