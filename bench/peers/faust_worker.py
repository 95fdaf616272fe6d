"""The worker that faust_scan.py starts: `python -m bench.peers.faust_worker ORDER`, ORDER a JSON object."""

from __future__ import annotations

import json
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import faust
from faust.types import StreamT


def make_app(order: dict[str, Any]) -> faust.App:
    """An app whose one agent counts and writes the report; the process that started the worker then ends it."""
    app = faust.App(
        f"bench-{uuid.uuid4().hex}",
        broker=f"kafka://{order['bootstrap']}",
        store="memory://",
        datadir=order["folder"],
        web_enabled=False,
        topic_partitions=1,
        topic_replication_factor=1,
        consumer_auto_offset_reset="earliest",
        consumer_max_fetch_size=8 << 20,
        broker_max_poll_records=10_000,
    )
    topic = app.topic(order["topic"], value_type=bytes, value_serializer="raw")
    wanted = {name: value.encode() for name, value in order["wanted"].items()}

    @app.agent(topic)
    async def count(stream: StreamT[bytes]) -> None:
        read = matched = 0
        began = time.perf_counter()
        async for event in stream.events():
            if not read:
                began = time.perf_counter()
            read += 1
            headers = event.headers
            if all(headers.get(name) == value for name, value in wanted.items()):
                matched += 1
            if read == order["records"]:
                report = {"records": read, "matched": matched, "seconds": time.perf_counter() - began}
                write_report(Path(order["report"]), report)

    return app


def write_report(path: Path, report: dict[str, float]) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps(report))
    part.replace(path)


if __name__ == "__main__":
    app = make_app(json.loads(sys.argv[1]))
    faust.Worker(app, loglevel="WARNING", redirect_stdouts=False).execute_from_commandline()
