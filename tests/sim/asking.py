"""Requests to the service's control topic, written and answered as docs/control.md says."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from aiokafka import AIOKafkaProducer

from .applications import Run
from .plan import REPLIES
from .reading import read_topic

CONTROL = "overlay.control"
ANSWER_S = 10.0
VALID_S = 300
"""How long a request counts. A worker whose clock is further ahead of the brokers' answers nothing."""


async def ask(run: Run, op: str, **fields: Any) -> dict[str, Any] | None:
    """Send a request and return its answer, None if none comes within ANSWER_S."""
    correlation = f"ask-{next(run.correlations)}"
    producer = AIOKafkaProducer(bootstrap_servers=run.world.bootstrap)
    await producer.start()
    value = json.dumps({"v": 1, "op": op, "timeout": f"{VALID_S}s", **fields}).encode()
    await producer.send_and_wait(CONTROL, value, key=f"request {correlation}".encode(), partition=0)
    await producer.stop()
    for _ in range(int(ANSWER_S / 0.5)):
        await asyncio.sleep(0.5)
        for record in read_topic(run.world.cluster, REPLIES):
            if record.header("Overlay-Correlation-Id") == correlation.encode():
                answer: dict[str, Any] = json.loads(record.value or b"")
                return answer
    return None
