"""Late departures from Kennedy: a count for each carrier, in a Faust table.

    overlay run --config examples/faust &
    cd examples/faust && faust -A late worker --without-web

Kafka is OVERLAY_BROKER of the environment, by default 127.0.0.1:9092, and the config folder OVERLAY_CONFIG, by default that of
this file.
A message is acked when the agent takes the next one. A message that the agent fails at comes again after `ack_wait`, and after
five times goes to the topic late-jfk.dead.
"""

from __future__ import annotations

import os
from pathlib import Path

import faust
from faust.types import StreamT

from overlay.faust import AgentMessage, agent_topic

HERE = Path(__file__).parent

app = faust.App(
    "late",
    broker=f"kafka://{os.environ.get('OVERLAY_BROKER', '127.0.0.1:9092')}",
    topic_partitions=4,
    store="memory://",
)
flights = agent_topic(app, os.environ.get("OVERLAY_CONFIG", HERE), "late-jfk")
by_carrier = app.Table("late-by-carrier", default=int, partitions=4)


@app.agent(flights)
async def count(stream: StreamT[AgentMessage]) -> None:
    """Count departures by carrier, each for the partition that it came from."""
    async for message in stream:
        carrier = message.properties["carrier"]
        by_carrier[carrier] += 1
        print(f"{message.subject}: {message.properties['dep_delay']:.0f} minutes; {carrier} now {by_carrier[carrier]}")
