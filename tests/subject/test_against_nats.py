"""The same questions to a real nats-server: which patterns are legal, what they match, which may stand side by side."""

from __future__ import annotations

import asyncio
import json
import sysconfig
from collections.abc import AsyncIterator, Iterable
from itertools import combinations
from pathlib import Path
from typing import Any

import nats
import pytest
import pytest_asyncio
from nats.aio.client import Client

from overlay.errors import SubjectError
from overlay.subject import Pattern, check_stream_subject, intersects, overlapping
from tests.oracle.subjects import EVERY_PATTERN, EVERY_SUBJECT

SERVER = Path(sysconfig.get_path("scripts")) / "nats-server"
SECONDS = 60
"""For its start and for each answer: the client's own default of half a second is too short on a busy machine."""

OVERLAP, NOT_UNIQUE = 10138, 10100


@pytest_asyncio.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    arguments = ["-a", "127.0.0.1", "-p", "-1", "-js", "-sd", str(tmp_path), "--ports_file_dir", str(tmp_path)]
    log = (tmp_path / "server.log").open("wb")
    server = await asyncio.create_subprocess_exec(SERVER, *arguments, stdout=log, stderr=log)
    try:
        async with asyncio.timeout(SECONDS):
            connected = await nats.connect(await _address(server, tmp_path), connect_timeout=SECONDS)
        yield connected
        await connected.close()
    finally:
        if server.returncode is None:
            server.kill()
        await server.wait()
        log.close()


async def _address(server: asyncio.subprocess.Process, folder: Path) -> str:
    while not (address := _read_address(folder)):
        if server.returncode is not None:
            pytest.fail(f"nats-server ended with {server.returncode}: see server.log in {folder}")
        await asyncio.sleep(0.01)
    return address


def _read_address(folder: Path) -> str:
    """The address in the file that the server writes once it listens; empty until then."""
    texts = [ports.read_text() for ports in folder.glob("*.ports")]
    return str(json.loads(texts[0])["nats"][0]) if any(texts) else ""


async def ask(client: Client, subject: str, config: dict[str, Any], **request: object) -> dict[str, Any]:
    body = {"config": config, **request} if request else config
    answer = await client.request(f"$JS.API.{subject}", json.dumps(body).encode(), timeout=SECONDS)
    found: dict[str, Any] = json.loads(answer.data)
    return found


async def create_stream(client: Client, subjects: Iterable[str], **config: object) -> int:
    """The error code, 0 for success."""
    whole = {"name": "S", "subjects": list(subjects), "storage": "memory", **config}
    answer = await ask(client, "STREAM.CREATE.S", whole)
    return int(answer.get("error", {}).get("err_code", 0))


async def create_consumer(client: Client, name: str, filters: Iterable[str]) -> dict[str, Any]:
    config = {"name": name, "ack_policy": "explicit", "mem_storage": True, "filter_subjects": list(filters)}
    return await ask(client, f"CONSUMER.CREATE.S.{name}", config, stream_name="S")


async def create_each(client: Client, filters: Iterable[Iterable[str]]) -> list[dict[str, Any]]:
    """Many consumers, some at a time."""
    answers: list[dict[str, Any]] = []
    rest = list(enumerate(filters))
    while rest:
        some, rest = rest[:64], rest[64:]
        answers += await asyncio.gather(*(create_consumer(client, f"c{at}", texts) for at, texts in some))
    return answers


async def test_filters_match_the_same_subjects(client: Client) -> None:
    # not `>`, which would take in the requests of this test as well
    assert await create_stream(client, ["a", "b", "x", "a.>", "b.>", "x.>"]) == 0
    # each is answered once the stream has it: consumers count what is there when they are created
    await asyncio.gather(*(client.request(subject, timeout=SECONDS) for subject in EVERY_SUBJECT))
    for text, answer in zip(EVERY_PATTERN, await create_each(client, [[text] for text in EVERY_PATTERN]), strict=True):
        wanted = sum(map(Pattern(text).matches, EVERY_SUBJECT))
        assert answer["num_pending"] == wanted, (text, answer)


async def test_the_same_filters_overlap(client: Client) -> None:
    assert await create_stream(client, ["a.>", "b.>"]) == 0
    small = [text for text in EVERY_PATTERN if text.count(".") == 1] + ["a", "*", ">", "a.b.>", "a.*.b", "*.a.>"]
    pairs = [(a, b) for a, b in combinations(small, 2)] + [(text, text) for text in small]
    for pair, answer in zip(pairs, await create_each(client, pairs), strict=True):
        wanted = OVERLAP if overlapping([Pattern(text) for text in pair]) else 0
        assert answer.get("error", {}).get("err_code", 0) == wanted, (pair, answer)


async def test_the_same_filters_intersect(client: Client) -> None:
    """A work queue refuses two consumers that could want the same message."""
    assert await create_stream(client, [">"], retention="workqueue", no_ack=True) == 0
    small = [text for text in EVERY_PATTERN if "b" not in text]
    for first in small:
        assert "error" not in await create_consumer(client, "first", [first])
        for second in small:
            answer = await create_consumer(client, "second", [second])
            wanted = NOT_UNIQUE if intersects(Pattern(first), Pattern(second)) else 0
            assert answer.get("error", {}).get("err_code", 0) == wanted, (first, second, answer)
            if not wanted:
                await ask(client, "CONSUMER.DELETE.S.second", {})
        await ask(client, "CONSUMER.DELETE.S.first", {})


@pytest.mark.parametrize("no_ack", [False, True])
async def test_the_same_stream_subjects_are_allowed(client: Client, no_ack: bool) -> None:
    texts = ["a", "a.*", "a.>", "a*.b", "a>b", "é.大", "a\v", "$JS", "$JS.EVENT.>", "$JS.EVENT.a", "$JSX.>", "x.$JS.>"]
    texts += ["", ".", "a..b", ".a", "a.", "a b", "a\tb", "a\r", "a\n", "a\f", ">.a", "a.>.b", "*.>.*"]
    texts += ["$JS.>", "$JS.API.a", "$JS.*", "$JS.EVENT", "$JSC.>", "$NRG.a", "$JS.*.a"]
    for text in texts:
        refused = await create_stream(client, [text], no_ack=no_ack) != 0
        await ask(client, "STREAM.DELETE.S", {})
        # a server lets a stream without acks have reserved subjects; ours are such streams and still may not
        check = Pattern.parse if no_ack else check_stream_subject
        assert refused is _refuses(check, text), text


async def test_wildcards_may_reach_into_reserved_subjects_without_an_answer(client: Client) -> None:
    for text in (">", "*.*", "*.>", "*.a"):
        assert await create_stream(client, [text], no_ack=False) != 0
        assert await create_stream(client, [text], no_ack=True) == 0
        await ask(client, "STREAM.DELETE.S", {})
        assert str(check_stream_subject(text)) == text


def _refuses(check: object, text: str) -> bool:
    assert callable(check)
    try:
        check(text)
    except SubjectError:
        return True
    return False
