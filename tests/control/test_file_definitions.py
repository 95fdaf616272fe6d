"""What the control topic is told of the consumers of files."""

from __future__ import annotations

import pytest

from overlay.config import ConsumerConfig
from overlay.control.file_definitions import FileDefinitions
from overlay.control.registry import Registry
from overlay.control.serve import RequestServer
from tests.control.registries import make_config, make_files
from tests.control.request_servers import Log
from tests.control.request_servers import log as log
from tests.control.request_servers import request_server as request_server


async def test_many_files_are_written_at_once_and_compared_once_each(
    request_server: RequestServer, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Work in proportion to their number: thousands of files once kept the event loop for a minute."""
    compared = 0
    compare = ConsumerConfig.__eq__

    def count(config: ConsumerConfig, other: object) -> bool:
        nonlocal compared
        compared += 1
        return compare(config, other)

    names = [f"c{number}" for number in range(300)]
    registry = Registry(make_files(*map(make_config, names)))
    files = FileDefinitions(registry, request_server.admin, request_server._journals)
    monkeypatch.setattr(ConsumerConfig, "__eq__", count)
    await files.write()
    written = [(record.key or b"").decode() for record in log.own]
    assert [key.split()[-1] for key in written] == names
    assert compared <= 2 * len(names)
    assert not files._unwritten
