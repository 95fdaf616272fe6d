"""Requests to the service's control topic, written and answered as docs/control.md says."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from aiokafka import AIOKafkaProducer

from .applications import CONTROL, Run, write_request
from .plan import REPLIES
from .reading import read_topic

ANSWER_S = 10.0


async def inquire(run: Run, op: str, **fields: Any) -> dict[str, Any] | None:
    """Send a request and return its answer, None if none comes within ANSWER_S."""
    correlation = f"ask-{next(run.correlations)}"
    producer = AIOKafkaProducer(bootstrap_servers=run.world.bootstrap, enable_idempotence=True)
    await producer.start()
    await producer.send_and_wait(
        CONTROL, write_request(op, **fields), key=f"request {correlation}".encode(), partition=0
    )
    await producer.stop()
    for _ in range(int(ANSWER_S / 0.5)):
        await asyncio.sleep(0.5)
        for record in read_topic(run.world.cluster, REPLIES):
            if record.header("Overlay-Correlation-Id") == correlation.encode():
                answer: dict[str, Any] = json.loads(record.value or b"")
                return answer
    return None
