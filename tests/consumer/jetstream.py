"""The real nats-server as the other consumer: one stream and one consumer, and what they told."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sysconfig
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg

from overlay.consumer.acks import Token, parse_token
from tests.support.waiting import wait_until

SUBJECTS = ("a.x", "a.y", "b.x", "b.y.z")

ANSWER_S = 60
"""How long the server may take for an answer, and to start."""

Told = tuple[Any, ...]


@contextmanager
def serve(folder: Path) -> Iterator[str]:
    """The address of a nats-server with JetStream, on a port of its own choice."""
    binary = Path(sysconfig.get_path("scripts")) / "nats-server"
    command = [binary, "-a", "127.0.0.1", "-p", "-1", "-js", "-sd", folder / "store", "-l", folder / "log"]
    with subprocess.Popen([*map(str, command), "--ports_file_dir", str(folder)]) as process:
        try:
            wait_until(lambda: any(folder.glob("*.ports")), ANSWER_S, "nats-server's ports file")
            ports = next(folder.glob("*.ports"))
            wait_until(lambda: ports.read_text().endswith("}"), ANSWER_S, "the ports in nats-server's ports file")
            yield json.loads(ports.read_text())["nats"][0]
        finally:
            process.terminate()


class Peer:
    """A stream `name` whose subjects begin with it, and a consumer `c` on it.

    `told` lists what came, by inbox: `(deliveries, stream_seq, consumer_seq, num_pending)` for messages, `(code, description,
    headers)` for statuses. `advised` counts advisories: kind, stream_seq, deliveries, reason.
    """

    def __init__(self, client: Client, name: str, config: dict[str, Any]) -> None:
        self.client, self.name, self.config = client, name, config
        self.told: dict[str, list[Told]] = {}
        self.tokens: list[Token] = []
        self.flows: list[str] = []
        """Subjects of the flow control requests."""
        self.advised: Counter[Told] = Counter()
        self.answered: Counter[str] = Counter()
        self.sequence = 0
        self._inbox = f"_T.{name}"

    async def start(self) -> None:
        await self.client.subscribe(f"{self._inbox}.pull.*", cb=self._hear)
        if "deliver_subject" in self.config:
            # a wildcard is no interest to a push consumer
            await self.client.subscribe(self.config["deliver_subject"], cb=self._hear)
        await self.client.subscribe(f"_A.{self.name}.>", cb=self._hear_answer)
        await self.client.subscribe(f"$JS.EVENT.ADVISORY.CONSUMER.*.{self.name}.c", cb=self._hear_advisory)
        await self.ask(f"STREAM.CREATE.{self.name}", name=self.name, subjects=[f"{self.name}.>"], storage="memory")
        await self.configure(self.config)

    async def configure(self, config: dict[str, Any]) -> None:
        """Create or update the consumer."""
        self.config = config
        await self.ask(f"CONSUMER.CREATE.{self.name}.c", stream_name=self.name, config=config)

    async def stop(self) -> None:
        await self.ask(f"STREAM.DELETE.{self.name}")

    async def ask(self, subject: str, /, **body: object) -> dict[str, Any]:
        reply = await self.client.request(
            f"$JS.API.{subject}", json.dumps(body).encode() if body else b"", timeout=ANSWER_S
        )
        answer: dict[str, Any] = json.loads(reply.data)
        assert "error" not in answer, (subject, body, answer)
        return answer

    async def publish(self, subject: str, payload: bytes) -> int:
        """Store a message; returns its sequence."""
        reply = await self.client.request(f"{self.name}.{subject}", payload, timeout=ANSWER_S)
        self.sequence = json.loads(reply.data)["seq"]
        return self.sequence

    async def pull(self, body: bytes, inbox: str) -> None:
        await self.client.publish(f"$JS.API.CONSUMER.MSG.NEXT.{self.name}.c", body, reply=self.inbox(inbox))

    def inbox(self, name: str) -> str:
        """The subject behind a name of `told`."""
        return f"{self._inbox}.pull.{name}"

    async def ack(self, token: Token, body: bytes, reply: str = "") -> None:
        await self.client.publish(str(token), body, reply=reply)

    async def info(self) -> Told:
        """delivered, floor, num_ack_pending, num_redelivered, num_pending, num_waiting."""
        found = await self.ask(f"CONSUMER.INFO.{self.name}.c")
        pairs = [found[name][part] for name in ("delivered", "ack_floor") for part in ("consumer_seq", "stream_seq")]
        counts = [found[name] for name in ("num_ack_pending", "num_redelivered", "num_pending", "num_waiting")]
        return (*pairs, *counts)

    async def _hear(self, message: Msg) -> None:
        token = parse_token(message.reply)
        if message.reply.startswith("$JS.FC."):
            self.flows.append(message.reply)
        if token is None:
            headers = dict(message.headers or {})
            code, description = int(headers.pop("Status")), headers.pop("Description", "")
            where = message.subject.removeprefix(f"{self._inbox}.pull.")
            self.told.setdefault(where, []).append((code, description, tuple(sorted(headers.items()))))
            return
        self.tokens.append(token)
        self.told.setdefault("", []).append((token.deliveries, token.stream_seq, token.consumer_seq, token.num_pending))

    async def _hear_answer(self, message: Msg) -> None:
        self.answered[message.subject] += 1

    async def _hear_advisory(self, message: Msg) -> None:
        body = json.loads(message.data)
        kind = body["type"].rpartition(".")[2]
        if kind in ("max_deliver", "nak", "terminated"):
            self.advised[kind, body["stream_seq"], body["deliveries"], body.get("reason", "")] += 1


async def settle(condition: Any, seconds: float) -> Any:
    """Ask until the answer is true or the time is over; returns the last answer."""
    end = asyncio.get_running_loop().time() + seconds
    while not (answer := await condition()):
        if asyncio.get_running_loop().time() > end:
            return answer
        await asyncio.sleep(0.005)
    return answer
