"""Faust's Kafka consumer, made to read committed records only, and all of them.

The overlay writes deliveries in transactions. Faust reads uncommitted records, unless it runs with
transactions of its own; an agent would then get deliveries that were taken back, whose acks do not
count. Faust has no setting for this. Records with a header name that aiokafka cannot read are made
readable (header_names.py).
"""

from __future__ import annotations

from typing import Any

from faust import App
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread, Consumer, Transport

from overlay.client.arguments import BadQuestion

from .header_names import leave_out_names


class _CommittedThread(AIOKafkaConsumerThread):
    def _create_worker_consumer(self, transport: Transport) -> Any:
        consumer = super()._create_worker_consumer(transport)
        # aiokafka takes both over when the consumer starts
        consumer._isolation_level = "read_committed"
        leave_out_names(consumer._client)
        return consumer


class CommittedConsumer(Consumer):
    """Faust's consumer with isolation level read_committed, which leaves out headers whose names are not UTF-8."""

    def _new_consumer_thread(self) -> AIOKafkaConsumerThread:
        return _CommittedThread(self, loop=self.loop, beacon=self.beacon)


def read_committed(app: App) -> None:
    """Have an application that has not started yet read committed records only, of all its topics.

    Raises BadQuestion if it reaches Kafka by another driver than aiokafka's.
    """
    transport = app.transport
    if not isinstance(transport, Transport):
        raise BadQuestion(f"the application reaches Kafka by {transport!r}; use a broker URL that begins with kafka://")
    transport.Consumer = CommittedConsumer  # type: ignore[misc] # for this transport alone
