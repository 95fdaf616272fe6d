"""The real nats-server as oracle: the same configs, the same error numbers and texts, the same defaults."""

from __future__ import annotations

import json
import subprocess
import sysconfig
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import nats
import pytest
import pytest_asyncio
from pydantic import ValidationError

from overlay.config import check_consumer, check_update, fill_defaults, to_wire
from overlay.config.consumer import ConsumerConfig
from overlay.subject import Pattern
from tests.config.wire_cases import BAD, GOOD, UPDATES
from tests.support.waiting import wait_until
from tests.support.wire import from_wire

ANSWER_S = 60
"""How long the server may take for an answer, and to start."""
SUBJECTS = (Pattern.parse("a.>"), Pattern.parse("b"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a nats-server with JetStream, on a port of its own choice."""
    folder = tmp_path_factory.mktemp("nats")
    binary = Path(sysconfig.get_path("scripts")) / "nats-server"
    log = folder / "log"
    command = [str(binary), "-a", "127.0.0.1", "-p", "-1", "-js", "-sd", str(folder / "store"), "-l", str(log)]
    with subprocess.Popen([*command, "--ports_file_dir", str(folder)]) as process:
        try:
            wait_until(lambda: any(folder.glob("*.ports")), ANSWER_S, "nats-server's ports file")
            ports = next(folder.glob("*.ports"))
            wait_until(lambda: ports.read_text().endswith("}"), ANSWER_S, "the ports in nats-server's ports file")
            yield json.loads(ports.read_text())["nats"][0]
        finally:
            process.terminate()


class Api:
    """JetStream's API on one stream, raw."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    async def ask(self, subject: str, request: object) -> dict[str, Any]:
        reply = await self.connection.request(f"$JS.API.{subject}", json.dumps(request).encode(), timeout=ANSWER_S)
        answer: dict[str, Any] = json.loads(reply.data)
        return answer

    async def create(self, config: Mapping[str, object]) -> dict[str, Any]:
        return await self.ask("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": config})

    async def delete(self) -> None:
        await self.ask("CONSUMER.DELETE.S.c", {})


@pytest_asyncio.fixture
async def api(server: str) -> AsyncIterator[Api]:
    connection = await nats.connect(server, connect_timeout=ANSWER_S)
    found = Api(connection)
    await found.ask("STREAM.CREATE.S", {"name": "S", "subjects": [str(own) for own in SUBJECTS]})
    yield found
    await found.ask("STREAM.DELETE.S", {})
    await connection.close()


def answer(config: Mapping[str, object]) -> tuple[int, int, str] | None:
    """What our rules answer: err_code, code and description of the first error; None for a good config."""
    try:
        parsed = from_wire("S", config)
    except ValidationError:
        return 10025, 400, ""
    found = next(check_consumer(fill_defaults(parsed), SUBJECTS), None)
    return (found.error.err_code, found.error.code, found.description) if found else None


async def test_bad_configs_get_the_servers_errors(api: Api) -> None:
    differences = []
    for config in BAD:
        error = (await api.create(config)).get("error", {})
        theirs = (error.get("err_code"), error.get("code"), error.get("description", ""))
        if theirs[0] == 10025:
            theirs = (10025, 400, "")
        if theirs != answer(config):
            differences.append((str(config)[:200], theirs, answer(config)))
        await api.delete()
    assert not differences, "\n".join(map(str, differences))


async def test_good_configs_get_the_servers_defaults(api: Api) -> None:
    differences = []
    for config in GOOD:
        reply = await api.create(config)
        theirs = reply.get("config", reply)
        theirs.get("metadata", {}).clear()
        ours = to_wire(fill_defaults(from_wire("S", config)))
        ours["metadata"] = {}
        if answer(config) is not None or theirs != ours:
            differences.append((config, theirs, ours, answer(config)))
        await api.delete()
    assert not differences, "\n".join(map(str, differences))


def refusal(old: ConsumerConfig, new: ConsumerConfig) -> tuple[int, str] | None:
    found = next(check_update(old, new), None)
    return (found.error.err_code, found.description) if found else None


async def test_updates_are_refused_like_the_server_does(api: Api) -> None:
    differences = []
    for old, new in UPDATES:
        assert "error" not in await api.create(old), old
        error = (await api.create(new)).get("error")
        theirs = (error["err_code"], error["description"]) if error else None
        ours = refusal(*(fill_defaults(from_wire("S", config)) for config in (old, new)))
        if theirs != ours:
            differences.append((old, new, theirs, ours))
        await api.delete()
    assert not differences, "\n".join(map(str, differences))
